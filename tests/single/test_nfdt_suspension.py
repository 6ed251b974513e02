"""An epoch that is suspended and resumed: every batch is applied once, and metrics count every row once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdt.job import BatchHooks
from fdt.rpc import job_pb2
from fdt.rpc.job_pb2 import JobSpec, State
from fdt.rpc.session_pb2 import Commit, Epoch, Ready, Remaining, Setup, Suspend
from nfdt.server import EpochDone, Send
from nfdt.server.batch_dispatcher import Begun
from tests.single.test_nfdt_coordinator import Room
from tests.single.test_nfdt_scheduler import Loop

RULES = ("asgd", "ssgd", "k_sync(k=2)", "server_optimizer(local_steps=3)", "rennala")


class Source(Loop):
    """A loop over a source of `length` batches; `known`: the scheduler knows its length."""

    def __init__(self, rule, workers, length, known):
        super().__init__(rule, workers, length if known else None)
        self.length, self.applied = length, []

    @property
    def end(self):
        return next((event for event in self.events if isinstance(event, EpochDone)), None)

    def run(self, draw, begun=None, until=None, leaver=None):
        """Run an epoch, or `until` so many pushes and then to its suspension. Return its end."""
        self.take(self.policy.start_epoch(0, *([begun] if begun else [])))
        self.ask_all()
        turns = 0
        while self.end is None:
            if turns == until:
                self.take(self.policy.suspend())
                self.take(self.policy.suspend())  # asked twice
            if leaver is not None and turns == leaver[1] and len(self.policy.state.worker_states) > 1:
                self.assigned.pop(leaver[0], None)
                self.take(self.policy.leave(leaver[0]))
            turns += 1
            if self.end is None:
                self.turn(sorted(self.assigned)[draw(st.integers(0, len(self.assigned) - 1))])
        return self.end

    def turn(self, worker):
        beyond = [batch for batch in self.assigned[worker].batches if batch >= self.length]
        if beyond:
            self.assigned.pop(worker)
            self.take(self.policy.end_of_data(worker, beyond[0]))
            return
        self.applied += self.assigned[worker].batches
        self.push(worker)


@settings(max_examples=150, derandomize=True, database=None)
@given(st.data(), st.sampled_from(RULES), st.integers(1, 4), st.integers(0, 13), st.booleans(), st.integers(0, 14))
def test_every_batch_is_applied_once(data, rule, workers, length, known, until):
    leaver = data.draw(st.none() | st.tuples(st.integers(0, workers - 1), st.integers(0, 16)))
    before = Source(rule, workers, length, known)
    end = before.run(data.draw, until=until, leaver=leaver)
    applied = before.applied
    assert end.steps == len(applied)
    if end.remaining is not None:
        after = Source(rule, data.draw(st.integers(1, 4)), length, known)
        end = after.run(data.draw, begun=Begun(end.remaining, end.samples, end.skipped))
        applied = applied + after.applied
        assert end.remaining is None
    assert sorted(applied) == list(range(length))
    assert (end.steps, end.skipped) == (length, 0)


def test_a_suspended_epoch_assigns_no_batch_more():
    loop = Source("asgd", 2, 9, True)
    loop.take(loop.policy.start_epoch(0))
    loop.ask_all()
    loop.take(loop.policy.suspend())
    sent = [event for event in loop.events if isinstance(event, Send)]
    loop.push(0)
    loop.push(1)
    assert [event for event in loop.events if isinstance(event, Send)] == sent
    assert (loop.end.remaining.next, loop.end.remaining.returned) == (4, (2, 3))


def test_an_epoch_whose_last_batches_are_computed_is_not_suspended():
    loop = Source("asgd", 2, 2, True)
    loop.take(loop.policy.start_epoch(0))
    loop.ask_all()
    loop.take(loop.policy.suspend())
    loop.push(0)
    loop.push(1)
    assert loop.end.remaining is None


@pytest.fixture
def room(tmp_path):
    return Room(tmp_path)


@pytest.mark.parametrize(
    ("job", "suspendable"),
    [
        (JobSpec(options={"suspendable": "1"}), True),
        (JobSpec(), False),
        (JobSpec(options={"suspendable": "1", "overlap_epochs": "1"}), False),
        (JobSpec(options={"suspendable": "1"}, fit=job_pb2.FitArguments(batch_hooks=BatchHooks.LOGS)), False),
        (JobSpec(options={"suspendable": "1"}, data=job_pb2.Data(feed=job_pb2.FeedData())), False),
    ],
)
def test_a_job_is_suspendable_if_no_batch_or_hook_is_the_clients_own(room, job, suspendable):
    room.client(setup=Setup(job=job))
    (event,) = [e for m in room.members for e in room.say(*m, ready=Ready()).events]
    assert event.ready.suspendable == suspendable


def test_the_end_of_a_suspended_epoch_is_a_commit(room):
    assert [c[0] for c in room.client(suspend=Suspend()).commands] == ["server"]
    room.client(epoch=Epoch(epoch=0))
    room.end("worker", 0)
    room.end("worker", 1)
    counts = {"steps": 5, "samples": 40, "skipped": 1}
    (event,) = room.end("server", 0, **counts, remaining=Remaining(next=9, returned=[2, 4, 8])).events
    commit = event.commit
    assert (commit.step, commit.samples, commit.skipped, commit.remaining.next) == (6, 40, 1, 9)
    assert list(commit.remaining.returned) == [2, 4, 8]
    np.testing.assert_array_equal(room.blobs.get_arrays(commit.metrics)[0], 3.0)


def test_a_resumed_epoch_loads_the_commit_and_goes_on_with_its_metrics(room):
    state, changed = State(model=room.put(7.0), optimizer=room.put(8.0)), State(model=room.put(1.0))
    begin = Commit(step=6, state=state, metrics=room.put(100.0), remaining=Remaining(next=9, returned=[2]))
    outcome = room.client(epoch=Epoch(epoch=0, changed=changed, begin=begin))
    (_, _, command), = outcome.commands  # fmt: skip
    assert command.epoch.changed == state and command.epoch.begin.remaining == begin.remaining
    assert outcome.drop == [changed.model]
    room.end("worker", 0)
    room.end("worker", 1)
    (event,) = room.end("server", 0, steps=10).events
    np.testing.assert_array_equal(room.blobs.get_arrays(event.epoch_end.metrics)[0], 103.0)
    room.client(epoch=Epoch(epoch=1))
    dropped = [ref for member in room.members for ref in room.end(*member, epoch=1).drop]
    assert all(dropped.count(ref) == 1 for ref in (state.model, state.optimizer, begin.metrics))
