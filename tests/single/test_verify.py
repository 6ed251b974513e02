"""Verdicts of `verify` on recorded runs, whose updates and noise are given."""

import io
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from client_shim.verify import table
from client_shim.verify.compare import FACTOR, compare
from client_shim.verify.options import OF_THE_RUN, without
from client_shim.verify.records import Number, RecordedRun, RecordedStep, VariableRecord, lines_of
from client_shim.verify.table import DIFFERS, EQUAL, STILL, UNPROVEN, judge
from client_shim.verify.variables import SIZE, sketch
from hfdt.elastic_options import ELASTIC_FLAGS

UNIT = 2.0**-52  # float64's, so that what storing weights rounds is far below the noise of these examples
NOISE = 1e-9
AT = "train.py:7"


def run(updates, losses=None, output=b"", printed=None):
    """A run of one variable "w" of two values, from 1."""
    now, steps = np.ones(2), []
    for k, update in enumerate(updates):
        now = now + update
        values = {"w": VariableRecord("w", now, np.array(update) + np.zeros(2), UNIT)}
        logs = {} if losses is None else {"loss": losses[k]}
        steps.append(RecordedStep(AT, 0 if printed is None else printed[k], logs, values))
    return RecordedRun(steps, output)


def verdict(divided, alone=None, shaken=None, wanted=3):
    alone = run([0.1] * 3, [3.0, 2.0, 1.0]) if alone is None else alone
    shaken = run([0.1 + NOISE] * 3, [3.0 + NOISE, 2.0, 1.0]) if shaken is None else shaken
    return judge(alone, shaken, divided, compare(alone, shaken, divided), wanted)


def test_a_difference_within_the_noise_is_equal_and_the_verdict_says_what_would_have_been_seen():
    found = verdict(run([0.1 + FACTOR * NOISE * 0.9] * 3, [3.0 + FACTOR * NOISE * 0.9, 2.0, 1.0]))
    assert (found.outcome, found.exit_code) == (EQUAL, 0)
    # FACTOR * NOISE / 0.1 of the update
    assert found.text == "3 steps are equal to float rounding; an update wrong by 1.6e-05 % would have been found"


def test_without_an_update_nothing_is_proven():
    found = verdict(run([0.0] * 3), run([0.0] * 3), run([0.0] * 3))
    assert (found.outcome, found.text) == (UNPROVEN, STILL)


def test_a_difference_beyond_the_noise_is_told_with_its_step_line_and_variable():
    found = verdict(run([0.1, 0.1 + 1e-3, 0.1], [3.0, 2.0, 1.0]))
    assert (found.outcome, found.exit_code) == (DIFFERS, 1)
    assert found.text == "step 2 at train.py:7: update of w is off by 1 %, and rounding explains 1.6e-05 %"


def test_a_loss_that_is_off_is_different_even_if_weights_agree():
    found = verdict(run([0.1] * 3, [3.0, 4.0, 1.0]))
    assert found.outcome == DIFFERS
    assert found.text.startswith("step 2 at train.py:7: loss is off by 100 %")


def test_a_state_that_no_gradient_trains_is_compared_too():
    def with_average(value):
        steps = run([0.1] * 3).steps
        average = VariableRecord("average", np.array([value]), np.array([value]), UNIT, trainable=False)
        return RecordedRun([replace(step, variables={**step.variables, "average": average}) for step in steps])

    found = verdict(with_average(0.5), with_average(1.0), with_average(1.0))
    assert found.text.startswith("step 1 at train.py:7: update of average is off by 50 %")


def test_a_script_that_magnifies_rounding_beyond_its_updates_proves_nothing():
    found = verdict(run([0.1] * 3), run([0.1] * 3), run([0.12] * 3))
    assert (found.outcome, found.exit_code) == (UNPROVEN, 1)
    assert "two runs of the script alone differ" in found.text
    assert found.text.startswith("step 1 at train.py:7: an error of 320 % of its update would not be found")


def test_a_step_that_proves_nothing_is_named_and_how_many_before_it_are_proven():
    found = verdict(run([0.1, 0.1, 0.2]), run([0.1] * 3), run([0.1 + NOISE, 0.1, 0.12]))
    assert (found.outcome, found.exit_code) == (UNPROVEN, 1)
    assert found.text.startswith("step 3 at train.py:7: an error of 320 % of its update would not be found")
    assert found.text.endswith("The steps before it are equal: compare 2 only")
    assert verdict(run([0.1, 0.101, 0.1]), run([0.1] * 3), run([0.1 + NOISE, 0.1, 0.12])).outcome == DIFFERS


def test_the_error_that_would_have_been_found_is_that_of_every_step():
    found = verdict(run([0.1, 0.01, 0.1]), run([0.1, 0.01, 0.1]), run([0.1 + NOISE, 0.01, 0.1]))
    assert found.text == "3 steps are equal to float rounding; an update wrong by 0.00016 % would have been found"


def test_a_step_that_makes_its_variables_has_no_update_and_the_others_prove():
    def made(run):
        first = {name: replace(v, update=v.now * math.nan) for name, v in run.steps[0].variables.items()}
        return RecordedRun([replace(run.steps[0], variables=first), *run.steps[1:]])

    assert verdict(*(made(run([0.1] * 3)) for _ in range(3))).outcome == EQUAL
    found = verdict(made(run([0.1] * 3)), made(run([0.1] * 3)), made(run([0.1, 0.12, 0.1])))
    assert found.text.startswith("step 2") and found.text.endswith("as in a warm-up?")  # step 1 proves no update


def test_as_many_steps_must_be_taken_as_alone():
    found = verdict(run([0.1] * 2))
    assert found.outcome == DIFFERS and "2 divided, 3 alone" in found.text
    again = verdict(run([0.1] * 3), shaken=run([0.1] * 2))
    assert again.outcome == UNPROVEN and "alone took 3 steps, and 2 when run again" in again.text
    assert verdict(RecordedRun([]), RecordedRun([]), RecordedRun([])).outcome == UNPROVEN


def test_nan_is_itself_and_no_number():
    nan = math.nan
    alone, same = run([nan] * 2, [nan] * 2), run([0.1, nan], [1.0, nan])
    assert not compare(same, same, same).steps[1].beyond
    assert compare(same, same, alone).steps[0].beyond
    assert compare(same, same, run([0.1, 0.1], [1.0, 1.0])).steps[1].beyond


def test_layers_that_draw_on_each_rank_make_a_difference_no_proof():
    divided = replace(run([0.2] * 3), notes=["each rank draws other random numbers in random_flip"])
    found = verdict(divided)
    assert (found.outcome, found.exit_code) == (UNPROVEN, 1) and "random_flip" in found.text
    assert verdict(replace(run([0.1] * 3), notes=divided.notes)).outcome == EQUAL


def test_numbers_that_are_printed_are_compared_to_their_last_digit_and_whole_ones_exactly():
    def printing(text):
        return run([0.1] * 3, output=text, printed=[0, len(b"loss 0.1234\n"), 99])

    alone = printing(b"loss 0.1234\n5 of 8\nin 3.1 s\n")
    assert verdict(printing(b"loss 0.1235\n5 of 8\nin 9.9 s\n"), alone, alone).outcome == EQUAL
    found = verdict(printing(b"loss 0.1234\n6 of 8\nin 3.1 s\n"), alone, alone)
    assert found.text == "after step 2 the script prints '6 of 8', and '5 of 8' when run alone"
    assert verdict(printing(b"loss 0.1236\n5 of 8\n"), alone, alone).outcome == DIFFERS
    missing = verdict(printing(b"loss 0.1234\n"), alone, alone)
    assert missing.text == "after step 2 the script prints '', and '5 of 8' when run alone"


@pytest.mark.parametrize(
    ("alone", "divided", "outcome"),
    [
        ("1", "0.999999999999", EQUAL),
        ("0.5", "0.500000000001", EQUAL),
        ("0.5", "0.510000000001", DIFFERS),
        ("0.123456789012\nloss 1", "0.123456789013\nloss 1", EQUAL),
        ("1", "0.9", DIFFERS),
        ("2", "3", DIFFERS),
    ],
)
def test_a_number_without_its_last_zeros_is_compared_to_the_last_digit_of_the_others(alone, divided, outcome):
    own, other = (run([0.1] * 3, output=f"loss {text}\n".encode(), printed=[0, 0, 99]) for text in (alone, divided))
    assert verdict(other, own, own).outcome == outcome


def test_prints_that_two_runs_alone_do_not_share_are_left_out_and_said_to_be():
    alone, shaken = run([0.1] * 3, output=b"id a1 3.0\n"), run([0.1] * 3, output=b"id b1 and c2 3.0\n")
    compared = compare(alone, shaken, alone)
    assert not compared.lines
    assert compared.left_out == ["printed lines: not compared, because two runs alone do not print the same lines"]


def test_times_rates_and_names_are_no_numbers():
    text = b"12:01:02 conv2d_1 (None, 10) 35ms/step - loss: -1.5e-3 - 1,234 samples/s nan\n"
    (line,) = lines_of(text)
    assert line.numbers[:2] == (Number(10.0, 0.0), Number(-1.5e-3, pytest.approx(1e-4)))
    assert math.isnan(line.numbers[2].value) and len(line.numbers) == 3


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("took 12 s", []),
        ("took 1.2 seconds.", []),
        ("3min", []),
        ("in 5 min, loss 0.5", [0.5]),
        ("1 h 5 min 3.5 s", []),
        ("2h 5min", []),
        ("0.5 ms/step - loss: 0.25", [0.25]),
        ("8/8 - 1s - 3ms/step - loss: 0.25", [8, 8, 0.25]),
        ("8/8 1s 3ms/step", [8, 8]),
        ("epoch 3 (0.4 s): 0.25", [3, 0.25]),
        ("3.1 s | 0.25", [0.25]),
        ("1,234 samples/s", []),
        ("35it/s 0.25", [0.25]),
        ("mean 0.5123 min 0.2 max 0.9", [0.5123, 0.2, 0.9]),
        ("mean: 0.5 min: -0.2 max: 0.9", [0.5, -0.2, 0.9]),
        ("loss 0.5321 s=3", [0.5321, 3]),
        ("loss 0.5321 s = 3", [0.5321, 3]),
        ("dice 0.75 ms-ssim 0.93", [0.75, 0.93]),
        ("loss 0.25 h 3", [0.25, 3]),
        ("mean 0.5 min [0.2] max $0.9", [0.5, 0.2, 0.9]),
        ("loss 0.25 min .5", [0.25, 0.5]),
        ("loss 0.25 samples/s 99", [0.25, 99]),
        ("loss 0.25 seconds 3 s", [0.25]),
    ],
)
def test_a_number_is_a_time_unless_the_word_after_it_names_the_next_number(text, numbers):
    assert [number.value for line in lines_of(text.encode()) for number in line.numbers] == numbers


def test_of_a_progress_bar_the_last_state_counts():
    bar = b"\x1b[1m1/8\x1b[0m 9s 1s/step - loss: 3.0\r\x1b[1m8/8\x1b[0m 1s 3ms/step - loss: 1.5\n"
    (line,) = lines_of(bar)
    assert [number.value for number in line.numbers] == [8.0, 8.0, 1.5]
    assert line.numbers[-1] == Number(1.5, pytest.approx(0.1)) and len(lines_of(b"\n" + bar + bar)) == 2


def test_a_sketch_is_linear_and_keeps_the_norm():
    values = np.random.default_rng(0).normal(size=(300, 100))
    other = np.random.default_rng(1).normal(size=(300, 100))
    assert sketch(values).shape == (SIZE,)
    assert sketch(values) - sketch(other) == pytest.approx(sketch(values - other), abs=1e-12)
    assert np.linalg.norm(sketch(values)) == pytest.approx(np.linalg.norm(values), rel=0.1)
    assert sketch(values[0]) == pytest.approx(values[0], abs=0)


def test_options_of_the_comparison_are_not_those_of_its_runs():
    typed = ["-np", "3", "--steps", "5", "--seed=4", "-q", "--algorithm", "dane", "--verify=2"]
    assert without(typed, {"--steps", "--seed", "--verify"}, {"-q"}) == ["-np", "3", "--algorithm", "dane"]


def test_options_that_need_one_that_is_left_out_are_left_out_too():
    messages = Path(__file__).with_name("messages.txt").read_text()
    needing = {flag for flag, needed in re.findall(r"(--[\w-]+) needs ([^.]*)", messages) if "--run-dir" in needed}
    assert {"--grace-period", "--commit-every"} <= needing - {"--resume"} <= OF_THE_RUN[0]
    assert set(ELASTIC_FLAGS.values()) - {"--host-discovery-script"} <= OF_THE_RUN[0]


@pytest.mark.parametrize(("terminal", "width"), [(True, 110), (True, 80), (False, 80)])
def test_what_is_shown(terminal, width):
    losses = [2.32738, 2.12345, 1.98765]
    alone, wrong = run([0.0123] * 3, losses, b"loss 3.0\n"), run([0.0234] * 3, losses, b"loss 4.0\n")
    compared, out = compare(alone, alone, wrong), io.StringIO()
    screen = Console(file=out, width=width, force_terminal=terminal, color_system="standard" if terminal else None)
    table.show(screen, "hfdt verify train.py", compared, ["a note"], judge(alone, alone, wrong, compared, 3))
    text = out.getvalue()
    assert ("\x1b[" in text) == terminal
    for expected in ("steps at train.py:7", "a note", "loss 3.0", "divided: loss 4.0", "update of w"):
        assert expected in text
    assert text.count("NO") == 4  # three steps and a line
    assert "…" not in text, "no column is cut"
