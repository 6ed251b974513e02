"""One contract for every rule file, and each rule's own numbers, worked out by hand."""

import pickle

import numpy as np
import numpy.testing as npt
import pytest

from fdt.errors import UsageError
from nfdt import rulebook
from nfdt.rules import asgd, dc_asgd, ssgd
from nfdt.schedules import CURVATURE, START, gradient, train
from nfdt.server.core import Core, Gradient
from nfdt.server.plain import PlainApplier
from nfdt.server.policy import EpochDone, Policy, Pushed, Send

RULES = rulebook.names()
NEUTRAL = {"dc_asgd": "dc_asgd(lam=0)"}  # where the defaults are not plain SGD for one worker


def sgd(steps, eta=0.1):
    w = START
    for _ in range(steps):
        w = w - eta * gradient(w)
    return w


def policy_of(name, workers, steps):
    applier = PlainApplier([START])
    return Policy(Core(rulebook.make(name), applier, workers), steps), applier


def push(policy, sent, number=1):
    worker, batch = sent.worker, sent.batches[0]
    return policy.push(Pushed(worker, number, batch, Gradient([gradient(sent.sent[0])], 1)))


def sends(instructions):
    return [i for i in instructions if isinstance(i, Send)]


@pytest.mark.parametrize("name", RULES)
def test_one_worker_is_plain_sgd(name):
    npt.assert_allclose(train(rulebook.make(NEUTRAL.get(name, name)), "aAaAaA"), sgd(3))


@pytest.mark.parametrize("name", RULES)
def test_state_pickles(name):
    core = Core(rulebook.make(name), PlainApplier([START]), 2)
    core.push(0, 1, Gradient(core.pull(0), 1))
    state = (core.shared, [slot.mine for slot in core.slots.values()])
    assert pickle.dumps(pickle.loads(pickle.dumps(state))) == pickle.dumps(state)


@pytest.mark.parametrize("name", RULES)
def test_a_retried_push_applies_once(name):
    core = Core(rulebook.make(name), applier := PlainApplier([START]), 1)
    sent = core.pull(0)
    assert core.push(0, 1, Gradient([gradient(sent[0])], 1)) == 0
    assert core.push(0, 1, Gradient([gradient(sent[0])], 1)) is None
    npt.assert_allclose(applier.params[0], sgd(1))


@pytest.mark.parametrize("name", RULES)
def test_nobody_waits_for_a_worker_that_left(name):
    """Three workers; two have pushed and may wait; the third leaves: the epoch still ends, every batch done."""
    policy, _ = policy_of(name, workers=3, steps=6)
    first = policy.start_epoch(0)
    for worker in range(3):
        first += policy.ask(worker)
    hands = {sent.worker: sent for sent in sends(first)}
    assert sorted(hands) == [0, 1, 2]
    out = push(policy, hands[0]) + push(policy, hands[1]) + policy.leave(2)
    done, number = [], {0: 1, 1: 1}
    for _ in range(20):
        done += [i for i in out if isinstance(i, EpochDone)]
        todo, out = sends(out), []
        for sent in todo:
            number[sent.worker] += 1
            out += push(policy, sent, number[sent.worker])
    assert [d.steps for d in done] == [6]


@pytest.mark.parametrize("name", RULES)
def test_weights_sent_are_snapshots(name):
    core = Core(rulebook.make(name), applier := PlainApplier([START]), 1)
    sent = core.pull(0)
    before = sent[0].copy()
    core.push(0, 1, Gradient([gradient(sent[0])], 1))
    npt.assert_array_equal(sent[0], before)
    assert not np.array_equal(applier.params[0], before)


def test_every_rule_says_what_it_is():
    assert all(rulebook.describe(name) for name in RULES)


def test_dc_asgd_without_compensation_is_asgd():
    npt.assert_array_equal(train(dc_asgd.rule(lam=0.0), "abABaAbBabBA"), train(asgd.rule(), "abABaAbBabBA"))


def test_asgd_applies_late_gradients_as_they_are():
    npt.assert_allclose(train(asgd.rule(), "abAB"), START - 0.2 * CURVATURE * START)


def test_dc_asgd_compensates_the_stale_push():
    # Lower case pulls, upper case pushes: b's gradient [4, -1] lands one version late, at [3.6, -1.9] instead of
    # [4, -2]: it becomes [4 - .5*16*.4, -1 + .5*1*.1] = [.8, -.95].
    npt.assert_allclose(train(dc_asgd.rule(lam=0.5), "abAB"), [3.52, -1.805])


def test_ssgd_takes_one_step_a_round():
    npt.assert_allclose(train(ssgd.rule(), "abABabAB"), sgd(2))


def test_ssgd_makes_those_who_have_pushed_wait():
    core = Core(ssgd.rule(), PlainApplier([START]), 2)
    core.push(0, 1, Gradient(core.pull(0), 1))
    assert core.pull(0) is None
    assert core.pull(1) is not None
    assert core.version == 0


def test_ssgd_averages_by_samples():
    core = Core(ssgd.rule(), applier := PlainApplier([START], eta=1.0), 2)
    for worker, (value, samples) in enumerate([(1.0, 3), (5.0, 1)]):
        core.push(worker, 1, Gradient([np.full(2, value)], samples))
    npt.assert_allclose(applier.params[0], START - 2.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nope", "must be one of asgd, dc_asgd, ssgd"),
        ("dc_asgd(mu=1)", "it has lam"),
        ("dc_asgd(lam='x')", "must be float"),
        ("dc_asgd(lam=-1)", "lam must be >= 0"),
        ("dc_asgd(0.1)", "name=|parameter=value"),
        ("missing_rule.py", "must name a file that exists"),
    ],
)
def test_a_bad_rule_is_one_line(text, said):
    with pytest.raises(UsageError, match=said):
        rulebook.make(text)


def test_parameters_come_from_the_signature():
    assert rulebook.parameters("dc_asgd")["lam"].default == 0.04
    got = train(rulebook.make("dc_asgd(lam=0.1)", {"lam": "0.5"}), "abAB")
    npt.assert_allclose(got, train(dc_asgd.rule(lam=0.5), "abAB"))


def test_a_rule_of_ones_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from nfdt.rules import asgd\ndef rule(k: int = 1):\n    return asgd.rule()\n")
    npt.assert_allclose(train(rulebook.make(f"{path}(k=2)"), "aA"), sgd(1))
