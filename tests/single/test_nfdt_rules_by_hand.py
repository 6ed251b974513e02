"""Each algorithm's own numbers, computed by hand."""

import numpy as np
import numpy.testing as npt
import pytest

from nfdt.algorithms import (
    asgd,
    dana_dc,
    dc_asgd,
    dc_asgd_a,
    dc_asgd_k,
    ddc_asgd,
    fedbuff,
    gap_aware,
    group_sync,
    k_sync,
    malenia,
    rennala,
    ringleader,
    ringmaster,
    server_optimizer,
    ssgd,
    ssp,
    staleness_aware,
)
from nfdt.server.algorithm_state import AlgorithmState
from nfdt.transport import WorkerGradient
from tests.single.numpy_applier import PlainApplier
from tests.single.schedules import CURVATURE, START, gradient, sgd, train


def test_asgd_applies_late_gradients_as_they_are():
    npt.assert_allclose(train(asgd.rule(), "abAB"), START - 0.2 * CURVATURE * START)


def test_dc_asgd_compensates_the_stale_push():
    # Lower case pulls, upper case pushes: b's gradient [4, -1] lands one version late, at [3.6, -1.9] instead of
    # [4, -2]: it becomes [4 - .5*16*.4, -1 + .5*1*.1] = [.8, -.95].
    npt.assert_allclose(train(dc_asgd.rule(lam=0.5), "abAB"), [3.52, -1.805])


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
    core = AlgorithmState(ddc_asgd.rule(), applier := PlainApplier([START], mu=0.5), 2)
    sent = [core.pull(worker)[0] for worker in (0, 1)]
    for worker in (0, 1):
        core.push(worker, 1, WorkerGradient([gradient(sent[worker])], 1))
    p = np.sqrt(0.01 * 0.16 / (0.99 * 0.01 * 16 + 0.01 * (4 / 3.5) ** 2))
    npt.assert_allclose(core.pull(0)[0], applier.params[0] - 0.5 * p * np.array([4.0, -1.0]) * (1 + 1 / 3.5))
    core.leave(1)
    npt.assert_allclose(core.pull(0)[0], applier.params[0] - 0.5 * p * np.array([4.0, -1.0]))


def test_ddc_asgd_counts_a_step_in_full_that_nobody_has_taken():
    # b's gradient wants the other way than a's push went.
    core = AlgorithmState(ddc_asgd.rule(), applier := PlainApplier([START]), 2)
    for worker in (0, 1):
        core.pull(worker)
    core.push(0, 1, WorkerGradient([np.ones(2)], 1))
    core.push(1, 1, WorkerGradient([-np.ones(2)], 1))
    npt.assert_allclose(applier.params[0], START)


class Pushes:
    """Workers that push the first coordinate of a gradient as they are told to; they pull after each push."""

    def __init__(self, rule, workers=2):
        self.core = AlgorithmState(rule, PlainApplier([START]), workers)
        self.numbers = [0] * workers
        for worker in range(workers):
            assert self.core.pull(worker) is not None

    def push(self, worker, first, again=True):
        """What is taken off the first weight, in gradients, by the update that the push causes."""
        before = self.core.applier.params[0][0]
        self.numbers[worker] += 1
        self.core.push(worker, self.numbers[worker], WorkerGradient([np.array([first, 0.0])], 1))
        if again:
            assert self.core.pull(worker) is not None, "nobody waits"
        return pytest.approx((before - self.core.applier.params[0][0]) / 0.1)


def test_rennala_takes_the_first_gradients_of_the_same_weights_whoever_sent_them():
    run = Pushes(rennala.rule(batch=3))
    assert [run.push(0, 2.0), run.push(0, 4.0), run.push(1, 9.0)] == [0.0, 0.0, 5.0]
    assert run.push(0, 50.0) == 0.0, "stale: worker 0 had pulled before the update"
    assert [run.push(0, 2.0), run.push(1, 4.0), run.push(0, 6.0)] == [0.0, 0.0, 4.0]
    assert run.push(1, 50.0) == 0.0
    assert [run.push(1, 1.0), run.push(1, 1.0), run.push(0, 1.0)] == [0.0, 0.0, 1.0]


def test_malenia_counts_every_worker_once():
    run = Pushes(malenia.rule())
    assert [run.push(0, 2.0), run.push(0, 4.0), run.push(1, 9.0)] == [0.0, 0.0, 6.0]
    assert run.push(0, 50.0) == 0.0, "stale: worker 0 had pulled before the update"
    assert [run.push(1, 3.0), run.push(0, 5.0)] == [0.0, 4.0]


@pytest.mark.parametrize(("order", "updates"), [((0, 1, 0), 0), ((0, 1, 0, 1), 1), ((0, 1, 0, 0), 1)])
def test_malenia_collects_until_the_harmonic_mean_of_counts(order, updates):
    run = Pushes(malenia.rule(s=3))  # of counts 1 and 1 it is 1, of 2 and 1 1.33, of 3 and 1 1.5, of 2 and 2 2
    for worker in order:
        run.push(worker, 1.0)
    assert run.core.version == updates


def test_ringleader_gives_every_worker_one_update_in_a_round():
    run = Pushes(ringleader.rule(), workers=3)
    assert [run.push(0, 2.0), run.push(0, 4.0), run.push(1, 3.0)] == [0.0, 0.0, 0.0], "phase 1 needs every worker"
    assert run.push(2, 6.0) == 4.0, "the mean of 3, 3 and 6"
    assert run.push(2, 90.0) == 0.0, "worker 2 has had its update: this is for the next round"
    assert run.push(0, 9.0) == pytest.approx((5 + 3 + 6) / 3), "worker 0's own mean is that of 2, 4 and 9"
    assert run.push(1, 5.0) == pytest.approx((5 + 4 + 6) / 3)
    assert [run.push(0, 30.0), run.push(1, 60.0)] == [0.0, 60.0], "the next round's table began with worker 2's 90"


def test_ringleader_sends_new_weights_only_with_the_update_that_a_worker_triggers():
    run = Pushes(ringleader.rule())
    run.push(0, 1.0)
    npt.assert_array_equal(run.core.pull(0)[0], START)
    run.push(1, 1.0)
    npt.assert_array_equal(run.core.pull(0)[0], START)
    npt.assert_array_equal(run.core.pull(1)[0], run.core.applier.params[0])
    run.push(0, 1.0)
    npt.assert_array_equal(run.core.pull(0)[0], run.core.applier.params[0])


def test_ringleader_applies_at_an_epochs_end_what_no_update_has_used():
    run = Pushes(ringleader.rule())
    run.push(0, 4.0)
    run.core.flush()
    npt.assert_allclose(run.core.applier.params[0], START - [0.4, 0.0])
    npt.assert_array_equal(run.core.pull(0)[0], run.core.applier.params[0])
    assert [run.push(0, 2.0), run.push(1, 4.0)] == [0.0, 3.0], "a new round"


def test_ringmaster_drops_what_is_too_stale():
    assert Pushes(ringmaster.rule(r=1)).push(0, 1.0) == 1.0
    run = Pushes(ringmaster.rule(r=2), workers=3)
    assert [run.push(0, 1.0), run.push(1, 1.0), run.push(2, 1.0)] == [1.0, 1.0, 0.0]
    assert run.push(2, 1.0) == 1.0, "it has pulled since"


def test_fedbuff_weights_by_staleness_and_waits_for_its_buffer():
    late = START - 0.1 * CURVATURE * START * (1 + 2**-0.5)
    npt.assert_allclose(train(fedbuff.rule(buffer=1), "abAB"), late)
    npt.assert_allclose(train(fedbuff.rule(buffer=2, lr=0.5), "abAB"), START - 0.05 * CURVATURE * START)
    assert Pushes(fedbuff.rule(buffer=3)).push(0, 1.0) == 0.0


def test_dc_asgd_k_weights_momentum_and_compensation_by_the_delay():
    # Lower case pulls, upper case pushes: b's gradient is one version late, so both of its terms count half.
    g = CURVATURE * START
    w = START - 0.1 * g
    v = 0.5 / 2 * g + g + 0.2 / 2 * g * g * (w - START)
    npt.assert_allclose(train(dc_asgd_k.rule(lam=0.2, weights="delay"), "abAB", mu=0.5), w - 0.1 * v)


def test_group_sync_parts_workers_where_their_speeds_do():
    seconds = {0: 1.0, 1: 3.1, 2: 1.1, 3: 0.9, 4: 3.0, 5: 8.0}
    assert group_sync.groups_by_speed(seconds, ratio=1.5) == {3: 0, 0: 0, 2: 0, 4: 1, 1: 1, 5: 2}
    assert group_sync.groups_by_speed(seconds, ratio=1.5, count=2) == {3: 0, 0: 0, 2: 0, 4: 1, 1: 1, 5: 1}
    assert set(group_sync.groups_by_speed(seconds, ratio=1.5, count=1).values()) == {0}


class Groups:
    """Workers that take the given seconds a batch, each gradient one."""

    def __init__(self, seconds, mu=0.0, **parameters):
        self.seconds = list(seconds)
        self.core = AlgorithmState(group_sync.rule(**parameters), PlainApplier([START], 1.0, mu), len(seconds))
        self.pushes = [0] * len(seconds)

    def pull(self, *workers):
        return [self.core.pull(worker) is not None for worker in workers]

    def push(self, *workers):
        """What is taken off the weights by the workers' pushes."""
        before = self.core.applier.params[0]
        for worker in workers:
            self.pushes[worker] += 1
            self.core.push(worker, self.pushes[worker], WorkerGradient([np.ones(2)], 1, self.seconds[worker]))
        return (before - self.core.applier.params[0])[0]

    def warmed_up(self):
        everybody = range(len(self.seconds))
        assert all(self.pull(*everybody))
        assert self.push(*everybody) == pytest.approx(1.0), "the warm-up is a round of all"
        assert all(self.pull(*everybody))
        return self


@pytest.mark.parametrize(("parameters", "late"), [({}, 1 / 3), ({"momentum": "captured"}, 1 / 3 / 2)])
def test_group_sync_waits_within_a_group_only(parameters, late):
    run = Groups([1.0, 1.1, 3.0], warm_up=1, **parameters).warmed_up()
    assert run.push(0) == 0.0
    assert run.pull(0) == [False], "it waits for the other fast one"
    assert run.push(1) == pytest.approx(2 / 3), "two of three workers, nothing came between"
    assert run.pull(0, 1) == [True, True]
    run.push(0, 1)
    assert run.push(2) == pytest.approx(late), "one of three, two updates late"
    assert run.pull(2) == [True]


def test_group_sync_has_a_momentum_for_each_group_and_looks_ahead():
    run = Groups([1.0, 1.1, 3.0], mu=0.5, warm_up=1).warmed_up()
    assert run.push(0, 1) == pytest.approx(2 / 3 * 1.5), "each group begins with the momentum of all: 1"
    w, p = run.core.applier.params[0], (0.01 / (0.99 * 0.01 + 0.01)) ** 0.5  # steps and directions: 1, then 1
    npt.assert_allclose(run.core.pull(0)[0], w - 0.5 * p * (2 / 3 * 1.5 + 1 / 3 * 1))
    assert run.push(2) == pytest.approx(1 / 3 * 1.5)


def test_group_sync_has_its_momentum_where_a_flush_ends_each_round():
    """An epoch of fewer batches than workers, or a worker that joins late: no round has all of its pushes."""
    run = Groups([1.0, 1.0], mu=0.5)
    for moved in (1.0, 1.5, 1.75):
        run.pull(0)
        before = run.core.applier.params[0]
        assert run.push(0) == 0.0
        run.core.flush()
        npt.assert_allclose(before - run.core.applier.params[0], moved)
    run.pull(0)
    run.push(0)
    seen = 0.01 * (0.99**2 + 0.99 * 1.5**2 + 1.75**2)
    npt.assert_allclose(run.core.shared.momenta.step[0], seen, err_msg="each step is measured, once")
    run.pull(1)
    run.push(1)
    npt.assert_allclose(run.core.shared.momenta.step[0], seen)


def test_group_sync_can_give_every_group_one_rate():
    run = Groups([1.0, 1.1, 3.0], warm_up=1, rate="equal").warmed_up()
    assert [run.push(0, 1), run.push(2)] == pytest.approx([1 / 2, 1 / 2])


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
    core = AlgorithmState(ssp.rule(bound=1), PlainApplier([START]), 2)
    for number in (1, 2):
        core.push(0, number, WorkerGradient(core.pull(0), 1))
    assert core.pull(0) is None, "two ahead"
    core.push(1, 1, WorkerGradient(core.pull(1), 1))
    assert core.pull(0) is not None
    core.push(0, 3, WorkerGradient(core.pull(0), 1))
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
    core = AlgorithmState(ssgd.rule(), PlainApplier([START]), 2)
    core.push(0, 1, WorkerGradient(core.pull(0), 1))
    assert core.pull(0) is None
    assert core.pull(1) is not None
    assert core.version == 0


def test_ssgd_averages_by_samples():
    core = AlgorithmState(ssgd.rule(), applier := PlainApplier([START], eta=1.0), 2)
    for worker, (value, samples) in enumerate([(1.0, 3), (5.0, 1)]):
        core.push(worker, 1, WorkerGradient([np.full(2, value)], samples))
    npt.assert_allclose(applier.params[0], START - 2.0)
