"""One contract for every rule file, and each rule's own numbers, worked out by hand."""

import pickle

import keras
import numpy as np
import numpy.testing as npt
import pytest
import tf_keras

from fdt.errors import UsageError, UserError
from nfdt import rulebook
from nfdt.options import Options
from nfdt.rules import (
    asgd,
    dana_dc,
    dc_asgd,
    dc_asgd_a,
    dc_asgd_k,
    ddc_asgd,
    gap_aware,
    group_sync,
    k_sync,
    server_optimizer,
    ssgd,
    ssp,
    staleness_aware,
)
from nfdt.server.core import Core, Gradient
from nfdt.server.instructions import EpochDone, Pushed, Send
from nfdt.server.job import rule_of
from nfdt.server.plain import PlainApplier
from nfdt.server.policy import Policy
from nfdt.tree import leaves
from tests.single.schedules import CURVATURE, START, computed, gradient, train

RULES = rulebook.names()
SCHEDULE = "abcABaCbBcaACB"
ROUNDS = "abcABCabcCBAabcBCA"  # nobody pulls before all have pushed: for rules that make workers wait
REDUCTIONS = [  # (rule at neutral options, its parent)
    ("dc_asgd(lam=0)", "asgd"),
    ("dc_asgd_a(lam0=0)", "asgd"),
    ("dc_asgd_k(lam=0)", "asgd"),
    ("dc_asgd_k", "dc_asgd"),
    ("dc_asgd_k(mu=0.0)", "dc_asgd_k"),
    ("gap_aware(strength=0)", "asgd"),
    ("dana_dc(lam=0)", "asgd"),
    ("ddc_asgd(k=1e18)", "asgd"),
    ("ddc_asgd(momentum='captured')", "ddc_asgd"),
    ("ssp(bound=99)", "asgd"),
    ("k_sync(k=3)", "ssgd"),
    ("k_sync(k=99)", "ssgd"),
    ("group_sync(groups=1)", "ssgd"),
    ("server_optimizer", "asgd"),
    ("server_optimizer(sync=True)", "ssgd"),
]


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
    return policy.push(Pushed(worker, number, (batch,), Gradient([gradient(sent.sent[0])], 1)))


def sends(instructions):
    return [i for i in instructions if isinstance(i, Send)]


@pytest.mark.parametrize("name", RULES)
def test_one_worker_is_plain_sgd(name):
    npt.assert_allclose(train(rulebook.make(name), "aAaAaA"), sgd(3))


@pytest.mark.parametrize(("reduced", "parent"), REDUCTIONS)
def test_its_reduction_is_its_parent(reduced, parent):
    schedule = ROUNDS if rulebook.make(parent).waits else SCHEDULE
    npt.assert_allclose(train(rulebook.make(reduced), schedule), train(rulebook.make(parent), schedule), rtol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_shards_add_up_to_the_whole(name):
    """What --ps K does: each shard plays the same events over its own variables. Norms are per variable."""
    values = [START, np.array([[1.0, -3.0], [0.5, 2.0]])]

    def play(params):
        core = Core(rulebook.make(name), applier := PlainApplier(params, mu=0.5), 3)
        seen, number = {}, dict.fromkeys("abc", 0)
        for letter in ROUNDS:
            worker = "abc".index(letter.lower())
            if letter.islower():
                seen[letter] = core.pull(worker)
            else:
                number[letter.lower()] += 1
                core.push(worker, number[letter.lower()], Gradient([0.5 * w for w in seen[letter.lower()]], 1))
        core.leave(1)
        core.flush()
        return applier.params

    for whole, part in zip(play(values), [play([value])[0] for value in values], strict=True):
        npt.assert_array_equal(whole, part)


@pytest.mark.parametrize("name", RULES)
def test_what_a_leaver_leaves_behind_stays_finite_and_serves_the_others(name):
    core = Core(rulebook.make(name), applier := PlainApplier([START], mu=0.9), 3)
    sent = [core.pull(worker) for worker in range(3)]
    core.push(0, 1, Gradient([gradient(sent[0][0])], 1))
    core.leave(0)
    for worker in (1, 2):
        core.push(worker, 1, Gradient([gradient(sent[worker][0])], 1))
    core.flush()
    npt.assert_array_equal(np.isfinite(core.pull(1)[0]), True)
    assert not np.array_equal(applier.params[0], START)


@pytest.mark.parametrize("name", RULES)
def test_state_pickles(name):
    core = Core(rulebook.make(name), PlainApplier([START]), 2)
    core.push(0, 1, Gradient(core.pull(0), 1))
    state = (core.shared, [slot.mine for slot in core.slots.values()])
    again = pickle.loads(pickle.dumps(state))
    assert type(again[0]) is type(state[0])
    for was, now in zip(leaves(state), leaves(again), strict=True):
        npt.assert_array_equal(was, now)


@pytest.mark.parametrize("name", RULES)
def test_a_retried_push_applies_once(name):
    core = Core(rulebook.make(name), applier := PlainApplier([START]), 1)
    sent = core.pull(0)
    pushed = Gradient([computed(core.rule, sent[0])], 1)
    assert core.push(0, 1, pushed) == 0
    assert core.push(0, 1, pushed) is None
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


def test_asgd_applies_late_gradients_as_they_are():
    npt.assert_allclose(train(asgd.rule(), "abAB"), START - 0.2 * CURVATURE * START)


def test_dc_asgd_compensates_the_stale_push():
    # Lower case pulls, upper case pushes: b's gradient [4, -1] lands one version late, at [3.6, -1.9] instead of
    # [4, -2]: it becomes [4 - .5*16*.4, -1 + .5*1*.1] = [.8, -.95].
    npt.assert_allclose(train(dc_asgd.rule(lam=0.5), "abAB"), [3.52, -1.805])


# On "abAB" both pull [4, -2] and a's push makes it [3.6, -1.9]; b's gradient [4, -1] lands there, one version late,
# after a drift of [-.4, .1]. eta is 0.1.


def test_dc_asgd_a_divides_by_the_running_gradient():
    # mean square .05*[16, 1] = [.8, .05]; lam [2/.8944, 2/.2236] = [2.2361, 8.9443], with g*g*drift = [-6.4, .1].
    npt.assert_allclose(train(dc_asgd_a.rule(), "abAB"), [3.6 - 0.1 * (4 - 14.3108), -1.9 - 0.1 * (-1 + 0.89443)], 1e-5)


def test_dc_asgd_k_has_one_momentum():
    # v = [4, -1], then .5*[4, -1] + dc_asgd's [.8, -.95] = [2.8, -1.45].
    npt.assert_allclose(train(dc_asgd_k.rule(lam=0.5, mu=0.5), "abAB"), [3.6 - 0.28, -1.9 + 0.145])
    npt.assert_allclose(train(dc_asgd_k.rule(lam=0.5), "abAB", mu=0.5), [3.6 - 0.28, -1.9 + 0.145])


def test_staleness_aware_divides_the_rate():
    # a, b, c pull [4, -2]: tau 0, 1 and 2, so the third gradient counts half.
    npt.assert_allclose(train(staleness_aware.rule(), "abcABC"), START - 0.1 * 2.5 * CURVATURE * START)


def test_gap_aware_counts_the_drift_in_updates():
    # C is the root of .1*[.4, .1]**2, so the gap is sqrt(10) everywhere.
    npt.assert_allclose(train(gap_aware.rule(), "abAB"), [3.6 - 0.4 / 4.16228, -1.9 + 0.1 / 4.16228], rtol=1e-5)


def test_dana_dc_keeps_a_momentum_per_worker_and_looks_ahead():
    # b's is its own: v_b = dc_asgd's [.8, -.95] and nothing of a's. Then a is sent [3.52, -1.805] - .1*.5*sum v,
    # sum v = [4.8, -1.95], so [3.28, -1.7075]: its v is .5*[4, -1] + [3.28, -.85375] + .5*g*g*[.24, -.0975].
    rule = dana_dc.rule(lam=0.5)
    npt.assert_allclose(train(rule, "abAB", mu=0.5), [3.52, -1.805])
    v = np.array([2 + 3.28 + 0.5 * 3.28**2 * 0.24, -0.5 - 0.85375 - 0.5 * 0.85375**2 * 0.0975])
    npt.assert_allclose(train(rule, "abABaA", mu=0.5), [3.52, -1.805] - 0.1 * v)


def test_ddc_asgd_counts_a_step_less_that_others_have_taken():
    # The running size of an update is sqrt(.01) of [.4, .1], a's; the drift is 10 of them, the way b's gradient wants.
    late = np.array([4.0, -1.0]) / (1 + 10 / 4)
    npt.assert_allclose(train(ddc_asgd.rule(k=4.0), "abAB"), [3.6, -1.9] - 0.1 * late)


def test_ddc_asgd_sends_where_all_momenta_will_have_taken_the_weights():
    # Momentum .5: v_a = [4, -1], v_b = [4, -1]/3.5; a is sent w - .5 p (v_a + v_b). p: [.4, .1] for [4, -1].
    core = Core(ddc_asgd.rule(), applier := PlainApplier([START], mu=0.5), 2)
    sent = [core.pull(worker)[0] for worker in (0, 1)]
    for worker in (0, 1):
        core.push(worker, 1, Gradient([gradient(sent[worker])], 1))
    p = np.sqrt(0.01 * 0.16 / (0.99 * 0.01 * 16 + 0.01 * (4 / 3.5) ** 2))
    npt.assert_allclose(core.pull(0)[0], applier.params[0] - 0.5 * p * np.array([4.0, -1.0]) * (1 + 1 / 3.5))
    core.leave(1)
    npt.assert_allclose(core.pull(0)[0], applier.params[0] - 0.5 * p * np.array([4.0, -1.0]))


def test_ddc_asgd_counts_a_step_in_full_that_nobody_has_taken():
    # b's gradient wants the other way than a's push went.
    core = Core(ddc_asgd.rule(), applier := PlainApplier([START]), 2)
    for worker in (0, 1):
        core.pull(worker)
    core.push(0, 1, Gradient([np.ones(2)], 1))
    core.push(1, 1, Gradient([-np.ones(2)], 1))
    npt.assert_allclose(applier.params[0], START)


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        (keras.optimizers.SGD(0.1, momentum=0.9), "ddc_asgd"),
        (keras.optimizers.Adam(clipnorm=1.0), "ddc_asgd"),
        (keras.optimizers.RMSprop(), "ddc_asgd"),
        (keras.optimizers.Lion(), "ddc_asgd(momentum='captured')"),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), "ddc_asgd(momentum='captured')"),
        (tf_keras.optimizers.Adam(), "ddc_asgd"),
        (tf_keras.optimizers.legacy.Adam(), "ddc_asgd(momentum='captured')"),
        (tf_keras.optimizers.legacy.SGD(0.1, momentum=0.9), "ddc_asgd(momentum='captured')"),
    ],
)
def test_the_default_is_ddc_asgd_with_every_optimizer(optimizer, rule):
    assert rulebook.default_for(optimizer, []) == rule
    rule_of(Options(), optimizer, [])


@pytest.mark.parametrize("lib", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize(
    ("layer", "rule"),
    [
        ({"dtype": "float32"}, "ddc_asgd"),
        ({"dtype": "mixed_float16"}, "ddc_asgd"),
        ({"dtype": "float16"}, "asgd"),
        ({"kernel_constraint": "non_neg"}, "ddc_asgd(momentum='captured')"),
        ({"kernel_constraint": "non_neg", "dtype": "mixed_float16"}, "ddc_asgd(momentum='captured')"),
        ({"kernel_constraint": "non_neg", "dtype": "float16"}, "asgd"),
    ],
)
def test_the_default_suits_the_weights(lib, layer, rule):
    policy = getattr(lib, "DTypePolicy", None) or lib.mixed_precision.Policy
    dtype = policy(layer.get("dtype", "float32"))
    model = lib.Sequential(
        [lib.layers.Input((2,)), lib.layers.Dense(1), lib.layers.Dense(1, **{**layer, "dtype": dtype})]
    )
    assert rulebook.default_for(lib.optimizers.SGD(0.1, momentum=0.9), model.trainable_variables) == rule


@pytest.mark.parametrize("name", [name for name in RULES if rulebook.make(name).needs_sgd])
def test_a_rule_that_needs_sgd_is_refused_with_another(name):
    assert rule_of(Options(name), keras.optimizers.SGD(0.1), []).needs_sgd
    with pytest.raises(UserError, match="needs SGD.* Received: Adam"):
        rule_of(Options(name), keras.optimizers.Adam(), [])


def test_group_sync_parts_workers_where_their_speeds_do():
    seconds = {0: 1.0, 1: 3.1, 2: 1.1, 3: 0.9, 4: 3.0, 5: 8.0}
    assert group_sync.groups_by_speed(seconds, ratio=1.5) == {3: 0, 0: 0, 2: 0, 4: 1, 1: 1, 5: 2}
    assert group_sync.groups_by_speed(seconds, ratio=1.5, count=2) == {3: 0, 0: 0, 2: 0, 4: 1, 1: 1, 5: 1}
    assert set(group_sync.groups_by_speed(seconds, ratio=1.5, count=1).values()) == {0}


class Groups:
    """Workers that take the given seconds a batch, each gradient one."""

    def __init__(self, seconds, **parameters):
        self.seconds = list(seconds)
        self.core = Core(group_sync.rule(**parameters), PlainApplier([START], eta=1.0), len(seconds))
        self.pushes = [0] * len(seconds)

    def pull(self, *workers):
        return [self.core.pull(worker) is not None for worker in workers]

    def push(self, *workers):
        """What is taken off the weights by the workers' pushes."""
        before = self.core.applier.params[0]
        for worker in workers:
            self.pushes[worker] += 1
            self.core.push(worker, self.pushes[worker], Gradient([np.ones(2)], 1, self.seconds[worker]))
        return (before - self.core.applier.params[0])[0]

    def warmed_up(self):
        everybody = range(len(self.seconds))
        assert all(self.pull(*everybody))
        assert self.push(*everybody) == pytest.approx(1.0), "the warm-up is a round of all"
        assert all(self.pull(*everybody))
        return self


def test_group_sync_waits_within_a_group_only():
    run = Groups([1.0, 1.1, 3.0], warm_up=1).warmed_up()
    assert run.push(0) == 0.0
    assert run.pull(0) == [False], "it waits for the other fast one"
    assert run.push(1) == pytest.approx(2 / 3), "two of three workers, nothing came between"
    assert run.pull(0, 1) == [True, True]
    run.push(0, 1)
    assert run.push(2) == pytest.approx(1 / 3 / 2), "one of three, two updates late"
    assert run.pull(2) == [True]


def test_group_sync_groups_anew_when_speeds_drift():
    run = Groups([1.0, 1.0, 1.0], warm_up=1).warmed_up()
    run.seconds[2] = 3.0
    assert run.push(0, 1, 2) == pytest.approx(1.0), "still one group; now it is seen that worker 2 is slow"
    run.pull(0, 1, 2)
    assert run.push(0, 1) == pytest.approx(2 / 3), "nobody waits for it any more"


def test_group_sync_lets_those_go_on_who_waited_for_a_leaver():
    run = Groups([1.0, 1.0, 3.0], warm_up=1).warmed_up()
    run.push(0)
    run.core.leave(1)
    assert run.pull(0) == [True]
    assert run.push(0) == pytest.approx(1 / 2), "its group of one; both its gradients in one mean"
    run.core.join(1)
    assert run.pull(1) == [True]
    assert run.push(1) == pytest.approx(1 / 3), "measured anew, and meanwhile alone"


def test_server_optimizer_moves_a_part_of_the_way_to_where_the_worker_went():
    # Two local steps at rate .1 make [4, -2] to [3.24, -1.805]; the server goes half of that way.
    npt.assert_allclose(train(server_optimizer.rule(local_steps=2, lr=0.5), "aA"), [3.62, -1.9025])
    # Momentum: what the second push takes off [3.62, -1.9025], and half of the first's [.76, -.195].
    rule = server_optimizer.rule(local_steps=2, lr=0.5, momentum=0.5)
    taken = np.array([3.62 * 0.19, -1.9025 * 0.0975]) + 0.5 * np.array([0.76, -0.195])
    npt.assert_allclose(train(rule, "aAaA"), [3.62, -1.9025] - 0.5 * taken)


@pytest.mark.parametrize(
    ("optimizer", "v"),
    [("adagrad", 1e-6 + 0.16), ("adam", 0.99e-6 + 0.01 * 0.16), ("yogi", 1e-6 + 0.01 * 0.16)],
)
def test_server_optimizer_adapts_as_the_paper_says(optimizer, v):
    # One local step takes [.4, -.1] off; m is a tenth of it.
    w = train(server_optimizer.rule(optimizer=optimizer, lr=0.1), "aA")
    npt.assert_allclose(w[0], 4 - 0.1 * 0.04 / (v**0.5 + 1e-3), rtol=1e-9)


def test_server_optimizer_adapts_without_momentum_too():
    w = train(server_optimizer.rule(optimizer="adagrad", lr=0.1, momentum=0.0), "aA")
    npt.assert_allclose(w[0], 4 - 0.1 * 0.4 / ((1e-6 + 0.16) ** 0.5 + 1e-3), rtol=1e-9)


def test_server_optimizer_sync_takes_the_mean_of_a_round():
    npt.assert_allclose(train(server_optimizer.rule(local_steps=2, sync=True), "abABabAB"), sgd(4))


def test_ssp_makes_the_fast_wait_for_the_slowest():
    core = Core(ssp.rule(bound=1), PlainApplier([START]), 2)
    for number in (1, 2):
        core.push(0, number, Gradient(core.pull(0), 1))
    assert core.pull(0) is None, "two ahead"
    core.push(1, 1, Gradient(core.pull(1), 1))
    assert core.pull(0) is not None
    core.push(0, 3, Gradient(core.pull(0), 1))
    assert core.pull(0) is None
    core.leave(1)
    assert core.pull(0) is not None


def test_k_sync_drops_those_that_come_late():
    # The round is a's and b's mean; c's gradient is of the round before.
    npt.assert_allclose(train(k_sync.rule(k=2), "abcABC"), sgd(1))
    npt.assert_allclose(train(k_sync.rule(), "abcABCcaCA"), sgd(2))


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
        ("nope", "must be one of asgd, dana_dc, dc_asgd, "),
        ("dc_asgd(mu=1)", "it has lam"),
        ("dc_asgd(lam='x')", "must be float"),
        ("dc_asgd(lam=-1)", "lam must be >= 0"),
        ("dc_asgd_a(m=1)", "m must be in"),
        ("dc_asgd_k(mu=1.0)", "mu must be in"),
        ("gap_aware(keep=2)", "keep must be in"),
        ("dana_dc(lam=-1)", "lam must be >= 0"),
        ("ddc_asgd(k=0)", "k must be > 0"),
        ("ssp(bound=-1)", "bound must be >= 0"),
        ("k_sync(k=-1)", "k must be >= 0"),
        ("group_sync(groups=-1)", "groups must be >= 0"),
        ("group_sync(ratio=1.0)", "ratio must be > 1"),
        ("group_sync(warm_up=0)", "warm_up must be >= 1"),
        ("server_optimizer(local_steps=0)", "local_steps must be >= 1"),
        ("server_optimizer(optimizer='lion')", "must be one of sgd, adagrad, adam, yogi. Received: lion"),
        ("server_optimizer(lr=0)", "lr must be > 0"),
        ("server_optimizer(momentum=1.0)", "momentum must be in"),
        ("server_optimizer(beta2=1.0)", "beta2 must be in"),
        ("server_optimizer(tau=0)", "tau must be > 0"),
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
