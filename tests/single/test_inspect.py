"""`inspect`: it shows what the first fit would send, and trains nothing."""

import numpy as np
import pytest

from client_shim.inspect import inspect
from client_shim.inspection import Inspection, report, step_bytes
from client_shim.state import Settings
from fdt.report import JobSummary

JOB = JobSummary(
    "j", engine="hfdt", workers=4, model="net", parameters=1000, gradient_bytes=4000, state_bytes=8000, loss="mse",
    optimizer="SGD", data="arrays", data_bytes=1_000_000, samples=1003, batch_size=64, steps_per_epoch=16, epochs=3,
)  # fmt: skip

SCRIPT = """
import keras, numpy as np
print("before")
model = keras.Sequential([keras.layers.Dense(2)])
model.compile("sgd", "mse")
x, y = np.ones((10, 3), "float32"), np.ones((10, 2), "float32")
model.build((None, 3))
model.set_weights([np.ones((3, 2)), np.zeros(2)])
seen.append(model)
try:
    model.fit(x, y, batch_size=4, epochs=2, validation_split=0.2)
except Exception:
    print("an error")
print("after")
"""


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        return str(path)

    return write


def test_nothing_is_trained_and_the_script_ends_at_its_first_fit(script, capsys, monkeypatch):
    monkeypatch.setattr("builtins.seen", seen := [], raising=False)
    assert inspect(script(SCRIPT), [], "hfdt", 2, Settings()) == 0
    out = capsys.readouterr().out
    facts = dict(line.split(":", 1) for line in out.splitlines() if ":" in line)
    assert out.startswith("before\n")
    assert "after" not in out
    assert "an error" not in out
    assert "8 trainable parameters, 32 bytes" in facts["model"]
    assert "arrays, 8 samples" in facts["data"]
    assert facts["steps"].strip() == "2 per epoch"
    assert facts["epochs"].strip() == "2, with validation"
    assert "each worker, of 2, sends and receives 32 bytes" in facts["per step"]
    assert " ms per step" in facts["compute"]
    kernel, bias = seen[0].get_weights()
    np.testing.assert_array_equal(kernel, np.ones((3, 2)))
    np.testing.assert_array_equal(bias, np.zeros(2))
    assert int(seen[0].optimizer.iterations.numpy()) == 0


def test_each_compressor_has_its_bytes(script, capsys, monkeypatch):
    from hfdt.compressors import sizes as of_gradients
    from nfdt.compressors import sizes as of_pushes_and_pulls

    monkeypatch.setattr("builtins.seen", [], raising=False)
    wide = SCRIPT.replace("(3, 2)", "(3, 500)").replace("Dense(2)", "Dense(500)").replace("zeros(2)", "zeros(500)")
    wide = wide.replace("np.ones((10, 2)", "np.ones((10, 500)")
    for engine, sizes, line in (
        ("hfdt", of_gradients, "bf16 4 kB, fp16 4 kB, powersgd(rank=2) 6.02 kB per step"),
        (
            "nfdt",
            of_pushes_and_pulls,
            "bf16 5 kB and 5 kB, fp16 5 kB and 5 kB, int8 3.51 kB and 3.51 kB, "
            "topk(fraction=0.01) 2.12 kB and 8 kB per step",
        ),
    ):
        assert inspect(script(wide), [], engine, 2, Settings(), sizes) == 0
        assert f"--compress: {line}\n" in capsys.readouterr().out


def test_a_script_without_fit_is_said_to_send_nothing(script, capsys):
    path = script("print('ran')")
    assert inspect(path, [], "nfdt", 2, Settings()) == 0
    assert capsys.readouterr().out == f"ran\nnfdt: {path} does not call `fit`: nothing would be sent\n"


def test_a_script_that_fails_before_its_fit_ends_as_it_ends(script, capsys):
    assert inspect(script("raise SystemExit(3)"), [], "nfdt", 2, Settings()) == 3
    assert capsys.readouterr().out == ""


def test_a_loop_of_the_scripts_own_is_named_with_its_capture_and_not_run(script, capsys):
    path = script("print('ran')\nfor x, y in batches:\n    model.train_on_batch(x, y)\nmodel.fit(x, y, epochs=2)\n")
    assert inspect(path, [], "hfdt", 3, Settings()) == 0
    first, second, third, fourth, fifth, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{path}:3: replica: train_on_batch: every rank runs the script")
    assert second.startswith(f"{path}:4: extract: fit")
    assert third == "capture:    replica: on 3 ranks, each of which runs the script; this process is rank 0"
    assert fourth == "batches:    each rank takes a part of every batch"
    assert fifth.startswith("cost:       not estimated: ")
    assert last.startswith("input:      each rank runs pure maps before `batch` on its own rows alone; ")


def test_sessions_are_said_to_be_taken_in_turn_by_nfdt(script, capsys):
    path = script("with tf.compat.v1.Session() as session:\n    session.run(optimizer.minimize(loss))\n")
    assert inspect(path, [], "nfdt", 2, Settings()) == 0
    first, _, batches, sessions = capsys.readouterr().out.splitlines()
    assert first == f"{path}:2: replica: minimize, outside fit: every rank runs the script"
    assert batches == "batches:    ranks take whole batches in turn"
    assert "rank 0's session holds the variables; a run that cannot be divided like this raises an error" in sessions


@pytest.mark.parametrize(("workers", "sent"), [(1, 0), (2, 4000), (4, 6000)])
def test_a_ring_sends_2_times_n_minus_1_over_n_of_the_gradient(workers, sent):
    assert step_bytes(JobSummary("j", engine="hfdt", workers=workers, gradient_bytes=4000)) == sent


def test_a_link_that_takes_as_long_as_the_step_halves_the_gain():
    lines = report(Inspection(JOB, "", 4 * 6000 / 125e6))
    (slow,) = [line for line in lines if line.startswith("at 1 Gbit/s:")]
    assert "0.048 ms to send, 0.048 ms to compute" in slow
    assert "about 2.0 times as fast as one worker" in slow
    assert lines[-1] == "assumed:    each worker has a machine like this one"


def test_an_asynchronous_server_is_never_faster_than_its_link():
    job = JobSummary("j", engine="nfdt", workers=4, gradient_bytes=125_000_000, data="feed", epochs=1)
    lines = report(Inspection(job, "a generator", 1.0))
    (slow,) = [line for line in lines if line.startswith("at 1 Gbit/s:")]
    assert "about 1.0 times as fast as one worker" in slow


def test_what_is_not_known_is_said():
    text = "\n".join(report(Inspection(JobSummary("j", engine="nfdt", data="feed"), "a generator", None)))
    for words in ("samples not known", "not known before the end of the data", "(a generator)", "not measured", "own"):
        assert words in text
