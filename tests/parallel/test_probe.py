"""The results of the probe and the effects of a session's options, on two ranks over MPI (probe_ranks.py)."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from under_mpirun import needs_mpirun, run

pytestmark = [needs_mpirun, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    pytest.importorskip("mpi4py")
    out = tmp_path_factory.mktemp("probe") / "found"
    run(2, "probe_ranks.py", out, "mpi", timeout_s=350)
    return [json.loads(Path(f"{out}-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture
def found(ranks):
    return ranks[0]


@pytest.fixture(scope="module")
def plain():
    """Keras alone: (logs, weights) after two epochs of one batch size and rate."""
    pytest.importorskip("keras")
    import probe_ranks

    def train(batch_size, rate, epochs):
        model = probe_ranks.model(probe_ranks.nothing)
        model.optimizer.learning_rate = rate
        logs = model.fit(probe_ranks.X, probe_ranks.Y, batch_size, epochs, shuffle=False, verbose=0)
        return logs.history["loss"], model.get_weights()

    return train


def same(ours, theirs, tolerance=1e-5):
    losses, weights = theirs
    np.testing.assert_allclose([logs["loss"] for logs in ours["logs"]], losses, rtol=tolerance)
    for mine, other in zip(ours["weights"], weights, strict=True):
        np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance)


def test_a_loss_that_does_not_split_is_refused_by_name(found):
    assert f"(Sqrt at probe_ranks.py:{line_within('def of_the_batch', 'tf.sqrt')})" in found["inexact"]["error"]
    assert "--allow-inexact" in found["inexact"]["error"]


def line_of(code):
    """ "probe_ranks.py:LINE" of a piece of its code."""
    lines = (Path(__file__).parent / "probe_ranks.py").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(code))
    functions = [i for i in range(start, len(lines)) if lines[i].lstrip().startswith(("def call", "def train_step"))]
    return f"probe_ranks.py:{(start if code.startswith('def') else functions[0]) + 1}"


def line_within(code, part):
    """The number of the line with `part` in a piece of probe_ranks.py."""
    lines = (Path(__file__).parent / "probe_ranks.py").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(code))
    return next(i for i in range(start, len(lines)) if part in lines[i]) + 1


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("ordered", f"the loss ordered ({line_of('def ordered')}) must be a mean or a sum over samples, but "),
        ("term", f"the loss that layer 'term' ({line_of('class Term')}) adds must be a mean over samples, but "),
        ("one row", "the model's inputs have a fixed batch size, 1, and the step fails for others (ValueError: "),
    ],
)
def test_what_does_not_split_is_named(found, case, message):
    assert found["refused"][case].startswith(message)
    assert "\n" not in found["refused"][case]


@pytest.mark.parametrize(
    ("case", "code", "part"),
    [
        ("pairs", "def of_pairs", "predicted[None]"),
        ("mixing", "class Mixing", "reduce_mean"),
        ("gate", "class Gate", "reduce_mean"),
        ("own", "def of_the_batch", "tf.sqrt"),
    ],
)
def test_a_line_that_needs_rows_of_other_ranks_is_named(found, case, code, part):
    message = found["refused"][case]
    assert message.startswith("the training step may need all rows of a batch (")
    assert f" at probe_ranks.py:{line_within(code, part)}), of which each rank has a part" in message


def test_a_sum_of_the_scripts_own_and_a_mean_that_a_layer_adds_are_divided(found):
    assert found["refused"]["a sum and a mean"] == ""


def test_a_weight_that_is_raised_later_is_seen_then(found):
    message, looks = found["later"]["sum"]
    assert message.startswith("the loss that layer 'term")
    assert looks == 1


def test_the_probe_looks_again_only_when_something_was_written(found):
    assert found["later"]["unchanged"] == ["", 0]
    assert found["later"]["mean"] == ["", 3]


def test_writes_of_each_step_are_looked_at_ever_more_seldom(found):
    assert found["later"]["each step"] == ["", 3]


def test_it_trains_when_the_user_says_so(found):
    line, loss = found["allowed"]["notes"]
    assert "Sqrt at probe_ranks.py" in line
    assert "of_the_batch" in loss
    assert np.isfinite(found["allowed"]["logs"][0]["loss"])


def test_dropout_is_no_reason_to_refuse_or_to_warn(found):
    assert found["dropout"]["notes"] == []


def test_local_batch_norm_trains_and_says_what_it_costs(found):
    (note,) = found["local"]["notes"]
    assert "each rank has its own BatchNorm statistics" in note


def test_local_batch_norm_hides_nothing_else_from_the_probe(found):
    assert found["beside local"]["sum"][0] == "LOSS_SUM"
    assert any("layer 'mixing" in note for note in found["beside local"]["mixing"][1])


def test_a_metric_whose_state_does_not_add_up_is_refused(found):
    assert f"(Max at probe_ranks.py:{line_within('class Largest', 'ops.max(')})" in found["metric"]["error"]


def test_a_metric_that_the_user_allows_is_named(found):
    assert any("'largest'" in note for note in found["metric allowed"]["notes"])


def test_the_probe_leaves_no_trace(found, plain):
    same(found["hooked"], plain(64, 0.05, 1))
    assert found["hooked"]["iterations"] == 4


def test_training_runs_the_pass_that_was_probed(found):
    assert found["hooked"]["traced"] == 0


def test_training_with_local_batch_norm_traces_its_own_pass(found):
    assert found["local"]["traced"] > 0


def test_a_look_in_the_middle_sees_all_ranks_and_changes_nothing(found):
    assert found["hooked"]["seen"][-1] == pytest.approx(found["hooked"]["logs"][0]["loss"], rel=1e-6)


def test_half_precision_on_the_wire_is_close(found, plain):
    same(found["half"], plain(64, 0.05, 1), tolerance=5e-3)


def test_per_worker_batches_are_one_large_batch(found, plain):
    same(found["per_worker"], plain(128, 0.05, 2))


def test_per_worker_with_a_linear_scale_is_a_large_batch_at_a_larger_rate(found, plain):
    same(found["scaled"], plain(128, 0.10, 2))


def test_ranks_end_equal(ranks):
    one, other = ranks
    for case, result in one.items():
        if "weights" in result and case != "local":
            for mine, theirs in zip(result["weights"], other[case]["weights"], strict=True):
                np.testing.assert_array_equal(mine, theirs)
            assert result["logs"] == other[case]["logs"]
