"""The scheduler without a server: which worker gets which batch, when an epoch ends, which worker waits for which."""

from itertools import cycle

import numpy as np
import pytest

from nfdt import algorithms
from nfdt.server import EpochDone, NotFinite, Send, StepDone
from nfdt.server.algorithm_state import AlgorithmState
from nfdt.server.batch_dispatcher import BatchDispatcher
from nfdt.server.scheduler import Scheduler
from nfdt.transport import EpochOver, Release, WorkerGradient
from tests.single.numpy_applier import PlainApplier
from tests.single.schedules import START, gradient


class Loop:
    """Workers that take turns in a given order, as a simulated cluster would."""

    def __init__(self, rule="asgd", workers=2, steps=5, **options):
        self.applier = PlainApplier([START])
        self.policy = Scheduler(AlgorithmState(algorithms.make(rule), self.applier, workers), steps, **options)
        self.assigned, self.pushes, self.events = {}, [0] * workers, []

    def take(self, instructions):
        for instruction in instructions:
            self.events.append(instruction)
            if isinstance(instruction, Send):
                self.assigned[instruction.worker] = instruction

    def ask_all(self):
        for worker in range(len(self.pushes)):
            self.take(self.policy.ask(worker))

    def push(self, worker, logs=None):
        sent = self.assigned.pop(worker)
        self.pushes[worker] += 1
        pushed = WorkerGradient([gradient(sent.sent[0])], 1, batches=sent.batches, logs=logs)
        self.take(self.policy.push(worker, self.pushes[worker], pushed))
        return sent.batches[0]

    def run(self):
        order = []
        while self.assigned:
            order.append(self.push(min(self.assigned)))
        return order

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


@pytest.mark.parametrize("rule", algorithms.names())
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_every_batch_is_pushed_once(rule, workers):
    loop = Loop(rule, workers, steps=5)
    loop.take(loop.policy.start_epoch(3))
    loop.ask_all()
    assert sorted(loop.run()) == [0, 1, 2, 3, 4]
    (done,) = loop.of(EpochDone)
    assert (done.epoch, done.steps, done.samples, done.staleness.total()) == (3, 5, 5, 5)
    assert [over.worker for over in loop.of(EpochOver)] != []


def test_a_push_is_of_several_batches():
    loop = Loop("server_optimizer(local_steps=3)", workers=2, steps=11)
    loop.take(loop.policy.start_epoch(0))
    loop.ask_all()
    assert [sent.batches for sent in loop.assigned.values()] == [(0, 2, 4), (1, 3, 5)]
    loop.run()
    sent = [len(event.batches) for event in loop.of(Send)]
    assert sent[:3] == [3, 3, 3] and sum(sent) == 11, "an epoch's last pushes are of what is left"
    assert loop.of(EpochDone)[0].steps == 11


@pytest.mark.parametrize("next_begins", [False, True])
def test_a_report_that_the_data_end_is_repeated_without_harm_when_its_answer_is_lost(next_begins):
    loop = Loop(workers=1, steps=None)
    loop.take(loop.policy.start_epoch(0))
    loop.ask_all()
    loop.push(0)
    loop.take(loop.policy.end_of_data(0, 1))
    assert loop.of(EpochDone)[0].steps == 1
    loop.policy.reconnect(0, ends_received=0)
    if next_begins:
        loop.take(loop.policy.start_epoch(1))
    assert loop.policy.end_of_data(0, 1) == [EpochOver(0, 0)]
    if next_begins:
        assert loop.policy.epoch.dispatcher.steps is None, "the next epoch is not cut short"


def test_a_source_that_ends_within_a_push_shortens_it():
    loop = Loop("server_optimizer(local_steps=3)", workers=2, steps=None)
    loop.take(loop.policy.start_epoch(0))
    loop.ask_all()
    loop.take(loop.policy.end_of_data(1, 5))
    assert loop.assigned[1].batches == (1, 3)
    loop.run()
    assert loop.of(EpochDone)[0].steps == 5


def test_ssgd_counts_rounds():
    loop = Loop("ssgd", workers=3, steps=7)
    loop.take(loop.policy.start_epoch(0))
    loop.ask_all()
    loop.run()
    assert loop.policy.state.version == 3  # 3 + 3 + 1 batches


def test_one_worker_takes_the_batches_in_order():
    loop = Loop(workers=1, steps=4)
    loop.ask_all()
    assert not loop.events, "nothing is dealt before the epoch starts"
    loop.take(loop.policy.start_epoch(0))
    assert loop.run() == [0, 1, 2, 3]


def test_pulls_are_held_between_epochs():
    loop = Loop(workers=2, steps=2)
    loop.take(loop.policy.start_epoch(0))
    loop.ask_all()
    loop.run()
    loop.ask_all()
    assert not loop.assigned
    loop.take(loop.policy.start_epoch(1))
    assert sorted(loop.assigned) == [0, 1]
    assert all(sent.first for sent in loop.assigned.values())


def test_a_source_that_ends_unannounced():
    loop = Loop(workers=2, steps=None)
    loop.take(loop.policy.start_epoch(0))
    loop.ask_all()
    assert (loop.push(0), loop.push(1)) == (0, 1)
    loop.assigned.pop(0), loop.assigned.pop(1)
    loop.take(loop.policy.end_of_data(0, 2))
    loop.take(loop.policy.end_of_data(1, 3))
    assert loop.of(EpochDone)[0].steps == 2


def test_staleness_counts_updates_since_the_pull():
    loop = Loop(workers=2, steps=4)
    loop.take(loop.policy.start_epoch(0))
    loop.ask_all()
    for worker in (0, 0, 0, 1):  # 1's second batch goes to 0, who has none left
        loop.push(worker)
    assert loop.of(EpochDone)[0].staleness == {0: 3, 3: 1}


def test_lock_step_waits_for_the_client_after_each_push():
    loop = Loop(workers=2, steps=3, lock_step=True)
    loop.take(loop.policy.start_epoch(0))
    loop.ask_all()
    loop.push(0, "a")
    loop.push(1, "b")
    assert [step.gradient.logs for step in loop.of(StepDone)] == ["a"]
    loop.take(loop.policy.step())
    steps = [(step.step, step.gradient.logs, step.last) for step in loop.of(StepDone)]
    assert steps == [(1, "a", False), (2, "b", False)]
    loop.take(loop.policy.step())
    loop.run()
    assert loop.of(StepDone)[-1].last
    assert loop.of(EpochDone)[0].steps == 3


def test_stopping_drops_what_is_still_computed():
    loop = Loop(workers=2, steps=10, lock_step=True)
    loop.take(loop.policy.start_epoch(0))
    loop.ask_all()
    loop.push(0)
    loop.take(loop.policy.stop_epoch())
    assert not loop.of(EpochDone), "worker 1 is still computing"
    before = loop.applier.params[0].copy()
    loop.push(1)
    assert loop.of(EpochDone)[0].steps == 1
    assert (loop.applier.params[0] == before).all()


def test_finish_releases_who_asks():
    loop = Loop(workers=2)
    loop.take(loop.policy.ask(0))
    loop.take(loop.policy.finish())
    loop.take(loop.policy.ask(1))
    assert [release.worker for release in loop.of(Release)] == [0, 1]


def test_a_leavers_batches_are_dealt_again():
    dispatcher = BatchDispatcher(steps=3)
    assert [dispatcher.assign(0), dispatcher.assign(0), dispatcher.assign(1)] == [0, 1, 2]
    dispatcher.take_back(0)
    assert [dispatcher.assign(1), dispatcher.assign(1), dispatcher.assign(1)] == [0, 1, None]


def test_who_has_a_batch_is_served_in_the_order_of_asking():
    dispatcher, asking = BatchDispatcher(steps=3), dict.fromkeys([4, 2, 0, 1])
    for worker in (0, 1, 2):
        dispatcher.assign(worker)
    assert dispatcher.busy(asking) == [2, 0, 1]
    dispatcher.finish(0, 0)
    dispatcher.end_at(2)  # worker 2's batch does not exist
    assert dispatcher.busy(asking) == [1]


def test_a_batch_that_was_not_dealt_is_refused():
    with pytest.raises(ValueError, match="not assigned"):
        BatchDispatcher(steps=3).finish(0, 1)


def test_a_worker_that_was_away_when_an_epoch_ended_is_told():
    """Fewer batches than workers: the epoch is over before the last worker has asked."""
    loop = Loop(workers=3, steps=1)
    loop.take(loop.policy.start_epoch(4))
    loop.take(loop.policy.ask(0))
    loop.run()
    loop.take(loop.policy.ask(2))
    loop.take(loop.policy.ask(1))
    assert [(over.worker, over.epoch) for over in loop.of(EpochOver)] == [(0, 4), (2, 4), (1, 4)]


def test_the_last_batch_goes_to_whoever_is_free_but_never_back():
    dispatcher = BatchDispatcher(steps=4)
    assert [dispatcher.assign(w) for w in (0, 1, 1, 0)] == [0, 1, 2, 3]
    dispatcher.finish(1, 1), dispatcher.finish(1, 2)
    assert not dispatcher.exhausted
    assert dispatcher.reassign(1) == 3
    assert (dispatcher.assigned(0), dispatcher.assigned(1)) == ((0,), (3,))
    assert dispatcher.exhausted
    assert dispatcher.reassign(0) is None
    dispatcher.take_back(0)
    assert not dispatcher.exhausted and dispatcher.assign(1) == 0


@pytest.mark.parametrize("rule", algorithms.names())
def test_one_that_joins_in_place_of_one_that_left_is_dealt_batches_again(rule):
    loop = Loop(rule, workers=2, steps=9)
    loop.take(loop.policy.start_epoch(0))
    loop.ask_all()
    done = [loop.push(1)]
    loop.assigned.pop(1, None)
    loop.take(loop.policy.leave(1))
    assert not loop.policy.push(1, 2, WorkerGradient([START], 1, batches=(3,))), "its last words come too late"
    loop.take(loop.policy.join(1))
    loop.pushes[1] = 0
    loop.take(loop.policy.ask(1))
    assert sorted(done + loop.run()) == list(range(9))
    (over,) = loop.of(EpochDone)
    assert (over.steps, over.workers) == (9, (0, 1))


@pytest.mark.parametrize("rule", algorithms.names())
def test_no_algorithm_counts_a_worker_that_has_not_started(rule):
    without, loop = Loop(rule, workers=3, steps=20), Loop(rule, workers=5, steps=20, absent=(3, 4))
    for each in (without, loop):
        each.applier.eta = np.asarray(1e-3)
        each.take(each.policy.start_epoch(0))
        for worker in range(3):
            each.take(each.policy.ask(worker))
        order = cycle((0, 1, 0, 1, 2))  # one is slow
        while each.assigned:
            if (worker := next(order)) in each.assigned:
                each.push(worker)
        assert each.of(EpochDone)[0].workers == (0, 1, 2)
    assert loop.policy.state.version == without.policy.state.version > 0
    np.testing.assert_array_equal(loop.applier.params[0], without.applier.params[0])
    loop.take(loop.policy.leave(4))
    loop.ask_all()
    loop.take(loop.policy.start_epoch(1))
    assert set(loop.assigned) <= {0, 1, 2, 3}, "a worker that leaves before its start does not join"
    loop.run()
    assert loop.pushes[3] > 0 and loop.of(EpochDone)[1].workers == (0, 1, 2, 3)


def test_a_gradient_that_is_not_finite_is_refused_or_left_out():
    def push(on_nan):
        loop = Loop(workers=1, steps=2, on_nan=on_nan)
        loop.take(loop.policy.start_epoch(0))
        loop.ask_all()
        before = loop.applier.params[0]
        for batch in (0, 1):
            last = WorkerGradient([START * np.nan], 1, finite=False, batches=(batch,))
            loop.take(loop.policy.push(0, batch + 1, last))
            loop.take(loop.policy.push(0, batch + 1, last))  # a retry
        np.testing.assert_array_equal(loop.applier.params[0], before)
        return loop.of(EpochDone)[0]

    with pytest.raises(NotFinite) as raised:
        push("stop")
    assert (raised.value.worker, raised.value.push, raised.value.batches, raised.value.epoch) == (0, 1, (0,), 0)
    assert (push("skip").steps, push("skip").samples, push("skip").skipped) == (0, 0, 2)


@pytest.mark.parametrize("rule", ["ssgd", "k_sync(k=2)"])
def test_a_round_waits_for_a_worker_that_has_a_batch_and_has_not_asked_yet(rule):
    loop = Loop(rule, workers=2, steps=4)
    loop.take(loop.policy.ask(0))
    loop.take(loop.policy.start_epoch(0))
    loop.push(0)
    assert (loop.applier.params[0] == START).all(), "a round of one gradient"
    loop.take(loop.policy.ask(1))
    loop.run()
    assert loop.of(EpochDone)[0].steps == 4


def test_lock_step_goes_on_behind_a_gradient_that_is_left_out():
    loop = Loop(workers=3, steps=3, lock_step=True, on_nan="skip")
    loop.take(loop.policy.start_epoch(0))
    loop.ask_all()
    loop.push(0, "a")
    last = WorkerGradient([START * np.nan], 1, finite=False, batches=loop.assigned.pop(1).batches)
    loop.take(loop.policy.push(1, 1, last))
    loop.push(2, "c")
    loop.take(loop.policy.step())
    assert [(step.gradient.logs, step.last) for step in loop.of(StepDone)] == [("a", False), ("c", True)]
    assert (loop.of(EpochDone)[0].steps, loop.of(EpochDone)[0].skipped) == (2, 1)
