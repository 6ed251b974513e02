"""The contract of all algorithm files. Each algorithm's own numbers: test_nfdt_rules_by_hand.py."""

import pickle
import subprocess
import sys

import keras
import numpy as np
import numpy.testing as npt
import pytest
import tensorflow as tf
import tf_keras

from fdt.errors import UsageError, UserError
from nfdt import algorithms
from nfdt.algorithms import dc_asgd
from nfdt.model.settings import algorithm_of
from nfdt.model.variables import off
from nfdt.options import Options
from nfdt.server import EpochDone, Send
from nfdt.server.algorithm_state import AlgorithmState
from nfdt.server.scheduler import Scheduler
from nfdt.transport import WorkerGradient
from nfdt.tree import leaves
from tests.single.numpy_applier import PlainApplier
from tests.single.schedules import START, computed, gradient, sgd, train

RULES = algorithms.names()
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
    ("rennala", "ssgd"),
    ("malenia", "ssgd"),
    ("ringmaster(r=99)", "asgd"),
    ("fedbuff(buffer=1, weighted=False)", "asgd"),
    ("fedbuff", "ssgd"),
    ("server_optimizer", "asgd"),
    ("server_optimizer(sync=True)", "ssgd"),
]


def policy_of(name, workers, steps):
    applier = PlainApplier([START])
    return Scheduler(AlgorithmState(algorithms.make(name), applier, workers), steps), applier


def push(policy, sent, number=1):
    worker, batch = sent.worker, sent.batches[0]
    return policy.push(worker, number, WorkerGradient([gradient(sent.sent[0])], 1, batches=(batch,)))


def sends(instructions):
    return [i for i in instructions if isinstance(i, Send)]


@pytest.mark.parametrize("name", RULES)
def test_one_worker_is_plain_sgd(name):
    npt.assert_allclose(train(algorithms.make(name), "aAaAaA"), sgd(3))


@pytest.mark.parametrize(("reduced", "parent"), REDUCTIONS)
def test_its_reduction_is_its_parent(reduced, parent):
    schedule = ROUNDS if algorithms.make(parent).waits else SCHEDULE
    npt.assert_allclose(train(algorithms.make(reduced), schedule), train(algorithms.make(parent), schedule), rtol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_shards_add_up_to_the_whole(name):
    """What --ps K does: each shard plays the same events over its own variables. Norms are per variable."""
    values = [START, np.array([[1.0, -3.0], [0.5, 2.0]])]

    def play(params):
        core = AlgorithmState(algorithms.make(name), applier := PlainApplier(params, mu=0.5), 3)
        seen, number = {}, dict.fromkeys("abc", 0)
        for letter in ROUNDS:
            worker = "abc".index(letter.lower())
            if letter.islower():
                seen[letter] = core.pull(worker)
            else:
                number[letter.lower()] += 1
                core.push(worker, number[letter.lower()], WorkerGradient([0.5 * w for w in seen[letter.lower()]], 1))
        core.leave(1)
        core.flush()
        return applier.params

    for whole, part in zip(play(values), [play([value])[0] for value in values], strict=True):
        npt.assert_array_equal(whole, part)


@pytest.mark.parametrize("name", RULES)
def test_what_a_leaver_leaves_behind_stays_finite_and_serves_the_others(name):
    core = AlgorithmState(algorithms.make(name), applier := PlainApplier([START], mu=0.9), 3)
    sent = [core.pull(worker) for worker in range(3)]
    core.push(0, 1, WorkerGradient([gradient(sent[0][0])], 1))
    core.leave(0)
    for worker in (1, 2):
        core.push(worker, 1, WorkerGradient([gradient(sent[worker][0])], 1))
    core.flush()
    npt.assert_array_equal(np.isfinite(core.pull(1)[0]), True)
    assert not np.array_equal(applier.params[0], START)


@pytest.mark.parametrize("name", RULES)
def test_state_pickles(name):
    core = AlgorithmState(algorithms.make(name), PlainApplier([START]), 2)
    core.push(0, 1, WorkerGradient(core.pull(0), 1))
    state = (core.shared, [slot.mine for slot in core.worker_states.values()])
    again = pickle.loads(pickle.dumps(state))
    assert type(again[0]) is type(state[0])
    for was, now in zip(leaves(state), leaves(again), strict=True):
        npt.assert_array_equal(was, now)


@pytest.mark.parametrize("name", RULES)
def test_a_retried_push_applies_once(name):
    core = AlgorithmState(algorithms.make(name), applier := PlainApplier([START]), 1)
    sent = core.pull(0)
    pushed = WorkerGradient([computed(core.rule, sent[0])], 1)
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
    assigned = {sent.worker: sent for sent in sends(first)}
    assert sorted(assigned) == [0, 1, 2]
    out = push(policy, assigned[0]) + push(policy, assigned[1]) + policy.leave(2)
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
    core = AlgorithmState(algorithms.make(name), applier := PlainApplier([START]), 1)
    sent = core.pull(0)
    before = sent[0].copy()
    core.push(0, 1, WorkerGradient([gradient(sent[0])], 1))
    npt.assert_array_equal(sent[0], before)
    assert not np.array_equal(applier.params[0], before)


def test_every_rule_says_what_it_is():
    assert all(algorithms.describe(name) for name in RULES)


# On "abAB" both pull [4, -2] and a's push makes it [3.6, -1.9]; b's gradient [4, -1] lands there, one version late,
# after a drift of [-.4, .1]. eta is 0.1.


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
    assert algorithms.default_for(optimizer, []) == rule
    algorithm_of(Options(), optimizer, [])


@pytest.mark.parametrize(("lib", "variable"), [(keras, tf.Variable), (keras, keras.Variable), (tf_keras, tf.Variable)])
def test_an_adaptive_optimizer_divides_the_direction_of_a_variable_of_either_kind(lib, variable):
    optimizer, w = lib.optimizers.Adam(0.1), variable([1.0, 2.0])
    optimizer.build([w])
    with off(optimizer, [w], [tf.constant([3.0, 4.0])], [tf.constant([1.0, 1.0])]) as passed:
        npt.assert_array_equal(passed[0], [1.0, 1.0])
    npt.assert_allclose(optimizer._momentums[0].numpy(), [2 / 9, 3 / 9], rtol=1e-6)  # (1 - beta) / beta (u - g)


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
    assert algorithms.default_for(lib.optimizers.SGD(0.1, momentum=0.9), model.trainable_variables) == rule


@pytest.mark.parametrize("name", [name for name in RULES if algorithms.make(name).needs_sgd])
def test_a_rule_that_needs_sgd_is_refused_with_another(name):
    assert algorithm_of(Options(name), keras.optimizers.SGD(0.1), []).needs_sgd
    with pytest.raises(UserError, match="needs SGD.* Received: Adam"):
        algorithm_of(Options(name), keras.optimizers.Adam(), [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nope", "must be one of asgd, dana_dc, dc_asgd, "),
        ("dc_asgd(mu=1)", "its parameters: lam"),
        ("dc_asgd(lam='x')", "must be float"),
        ("dc_asgd(lam=-1)", "lam must be >= 0"),
        ("dc_asgd_a(m=1)", "m must be in"),
        ("dc_asgd_k(mu=1.0)", "mu must be in"),
        ("gap_aware(keep=2)", "keep must be in"),
        ("dana_dc(lam=-1)", "lam must be >= 0"),
        ("ddc_asgd(k=0)", "k must be > 0"),
        ("ddc_asgd(micro_steps=0)", "micro_steps must be >= 1"),
        ("ssp(bound=-1)", "bound must be >= 0"),
        ("k_sync(k=-1)", "k must be >= 0"),
        ("rennala(batch=-1)", "batch must be >= 0"),
        ("malenia(s=-1)", "s must be >= 0"),
        ("ringmaster(r=-1)", "r must be >= 0"),
        ("fedbuff(local_steps=0)", "local_steps must be >= 1"),
        ("fedbuff(buffer=-1)", "buffer must be >= 0"),
        ("fedbuff(lr=0)", "lr must be > 0"),
        ("dc_asgd_k(weights='tau')", "weights must be constant or delay"),
        ("group_sync(groups=-1)", "groups must be >= 0"),
        ("group_sync(ratio=1.0)", "ratio must be > 1"),
        ("group_sync(warm_up=0)", "warm_up must be >= 1"),
        ("group_sync(momentum='mine')", "momentum must be algorithm or captured"),
        ("group_sync(rate='one')", "rate must be own or equal"),
        ("server_optimizer(local_steps=0)", "local_steps must be >= 1"),
        ("server_optimizer(optimizer='lion', tau=1)", "tau go with the paper's. Received: beta2=None, tau=1.0"),
        ("server_optimizer(optimizer=3)", "must be a name or a config with class_name"),
        ("server_optimizer(optimizer=Lion(), lr=1)", "stand in the optimizer's config. Received: learning_rate=1.0"),
        ("server_optimizer(worker_optimizer=sgd)", "worker_optimizer must be captured"),
        ("server_optimizer(lr='x')", "lr must be float"),
        ("server_optimizer(lr=0)", "lr must be > 0"),
        ("server_optimizer(momentum=1.0)", "momentum must be in"),
        ("server_optimizer(beta2=1.0)", "beta2 must be in"),
        ("server_optimizer(tau=0)", "tau must be > 0"),
        ("dc_asgd(0.1)", "name=|parameter=value"),
        ("missing_rule.py", "must name a file that exists"),
        ("dc_asgd(lam=1e400)", "lam must be a number up to 3.4e[+]38. Received: inf"),
        ("dc_asgd(lam=1e39)", "lam must be a number up to"),
        (f"dc_asgd(lam={10**400})", "lam must be a whole number up to 2147483647. Received: one of 1329 bits"),
        ("ssp(bound=2147483648)", "bound must be a whole number up to 2147483647"),
        ("server_optimizer(optimizer=adamw, learning_rate=1e400)", "learning_rate must be a number up to"),
        ("server_optimizer(optimizer=SGD(learning_rate=1e400))", "optimizer must be a number up to"),
        ("server_optimizer(optimizer='')", "optimizer must not be empty"),
        ("dc_asgd(lam=0.1, lam=0.2)", "must be NAME or NAME"),
    ],
)
def test_a_bad_rule_is_one_line(text, said):
    with pytest.raises(UsageError, match=said):
        algorithms.make(text)


def test_parameters_come_from_the_signature():
    assert algorithms.parameters("dc_asgd")["lam"].default == 0.04
    got = train(algorithms.make("dc_asgd(lam=0.1)", {"lam": "0.5"}), "abAB")
    npt.assert_allclose(got, train(dc_asgd.rule(lam=0.5), "abAB"))


def test_a_rule_of_ones_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from nfdt.algorithms import asgd\ndef rule(k: int = 1):\n    return asgd.rule()\n")
    npt.assert_allclose(train(algorithms.make(f"{path}(k=2)"), "aA"), sgd(1))


TYPED = """
from __future__ import annotations
from dataclasses import dataclass
from typing import NamedTuple
from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm
from nfdt.tree import send_current

@dataclass(frozen=True)
class Mine:
    count: int = 0

class Shared(NamedTuple):
    scale: float

def rule(scale: float = 0.5) -> AsyncAlgorithm:
    def push(shared, mine, params, push):
        return AlgorithmUpdate([shared.scale * g for g in push.gradient]), shared, Mine(mine.count + 1)
    return AsyncAlgorithm(lambda params, workers: (Shared(scale), Mine()), send_current, push)
"""


def test_the_state_of_a_rule_of_ones_own_is_restored_in_another_process(tmp_path):
    (tmp_path / "mine.v2.py").write_text(TYPED)
    text = f"{tmp_path / 'mine.v2.py'}(scale=2)"
    state = algorithms.make(text).init([], 1)
    assert [type(part) for part in algorithms.make(text).init([], 1)] == [type(part) for part in state]
    code = "import pickle, sys; from nfdt import algorithms; algorithms.make(sys.argv[1])"
    code += "; print(pickle.loads(bytes.fromhex(sys.argv[2])))"
    command = [sys.executable, "-c", code, text, pickle.dumps(state).hex()]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{state}\n"
    assert str(state) == "(Shared(scale=2.0), Mine(count=0))"


def test_a_rule_of_ones_own_has_typed_parameters_and_is_read_again_when_it_changes(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(TYPED)
    with pytest.raises(UsageError, match="scale must be float. Received: 'abc'"):
        algorithms.make(f"{path}(scale=abc)")
    path.write_text(TYPED.replace("AsyncAlgorithm:", "Unknown:"))
    assert algorithms.make(f"{path}(scale=2.0)").init([], 1)[0] == (2.0,)
    path.write_text("raise KeyError")
    for _ in range(2):
        with pytest.raises(KeyError):
            algorithms.make(str(path))
