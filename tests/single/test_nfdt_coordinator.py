"""The NFDT coordinator without processes: the commands that it sends, and its events for the client."""

import numpy as np
import pytest

from fdt.blobs import LocalBlobs
from fdt.job import FEED_WINDOW
from fdt.rpc.job_pb2 import JobSpec, State
from fdt.rpc.session_pb2 import (
    Checkpoint,
    Command,
    Epoch,
    EpochEnd,
    Event,
    Failed,
    FeedBatch,
    FeedWanted,
    Finish,
    Finished,
    Ready,
    Setup,
    Step,
    WorkerShare,
)
from fdt.rpc.tensor_pb2 import BlobRef
from nfdt.engine.coordinator import ServersCoordinator


class Room:
    """A coordinator, and members that say what the test has them say."""

    def __init__(self, directory, workers=2, servers=1):
        self.blobs = LocalBlobs(directory)
        self.members = [("server", s) for s in range(servers)] + [("worker", w) for w in range(workers)]
        self.coordinator = ServersCoordinator(workers, [f"ps{s}" for s in range(servers)], self.blobs)
        self.client(setup=Setup())

    def allow(self, **options):
        """Another job, with these options."""
        self.client(setup=Setup(job=JobSpec(options=options)))

    def lose(self, role, rank):
        return self.coordinator.lost(role, rank, Failed(message=f"{role} {rank} was lost"))

    def client(self, **kind):
        return self.coordinator.from_client(Command(job="j", **kind))

    def say(self, role, rank, **kind):
        return self.coordinator.from_member(role, rank, Event(job="j", **kind))

    def put(self, *values):
        return self.blobs.put_arrays([np.asarray(v, np.float32) for v in values])

    def end(self, role, rank, epoch=0, **more):
        if role == "server":
            more["state"] = State(model=self.put(1.0), optimizer=self.put(2.0))
            more.setdefault("workers", [WorkerShare(rank=w) for role, w in self.members if role == "worker"])
        else:
            more["metrics"] = self.put(rank + 1.0)
        return self.say(role, rank, epoch_end=EpochEnd(epoch=epoch, **more))


@pytest.fixture
def room(tmp_path):
    return Room(tmp_path)


def test_workers_are_told_where_the_servers_are(room):
    (to_servers, to_workers) = room.client(setup=Setup()).commands
    assert to_servers[0] == "server" and not to_servers[2].setup.peers
    assert to_workers[0] == "worker" and list(to_workers[2].setup.peers) == ["ps0"]


def test_ready_when_all_are(room):
    outcomes = [room.say(*m, ready=Ready(steps_per_epoch=7, notes="a\nb", algorithm="asgd")) for m in room.members]
    assert [len(o.events) for o in outcomes] == [0, 0, 1]
    ready = outcomes[-1].events[0].ready
    assert (ready.steps_per_epoch, ready.notes, ready.algorithm) == (7, "a\nb", "asgd")


def test_an_epoch_ends_when_all_have_reported(room):
    assert [c[0] for c in room.client(epoch=Epoch(epoch=0)).commands] == ["server"]
    assert not room.end("server", 0, steps=3, extra={"staleness_max": 2.0}).events
    assert not room.end("worker", 1, steps=1, samples=10, logs={"l": 4.0, "k": 1.0}, log_names="lk").events
    outcome = room.end("worker", 0, steps=2, samples=30, logs={"l": 0.0, "k": 1.0}, log_names="lk")
    end = outcome.events[0].epoch_end
    assert (end.steps, end.extra["staleness_max"], end.logs["l"]) == (3, 2.0, 1.0)
    assert list(end.log_names) == ["l", "k"]
    assert [w.samples for w in end.workers] == [30, 10]
    np.testing.assert_array_equal(room.blobs.get_arrays(end.metrics)[0], 3.0)
    assert len(outcome.drop) == 2, "the workers' own metrics"


def test_what_the_client_changed_is_there_until_the_next_epochs_end(room):
    changed = room.put(5.0)
    room.client(epoch=Epoch(epoch=0, changed=State(model=changed)))
    outcomes = [room.end(*member) for member in room.members]
    assert outcomes[-1].events[0].epoch_end.epoch == 0
    assert changed not in outcomes[-1].drop, "servers that go back read it again"
    assert changed in [ref for m in room.members for ref in room.say(*m, finished=Finished()).drop]


def test_writing_weights_in_a_batch_hook_is_refused(room):
    outcome = room.client(step=Step(changed=State(model=BlobRef(id="a", nbytes=1))))
    assert "a batch hook wrote weights" in outcome.events[0].failed.message
    assert room.coordinator.failed


def test_what_one_member_cannot_do_fails_the_job(room):
    outcome = room.say("worker", 1, failed=Failed(message="worker 1 failed", users_code=True))
    assert outcome.events[0].failed.users_code
    assert room.coordinator.done and room.coordinator.failed


def test_finished_when_all_are(room):
    assert {c[0] for c in room.client(finish=Finish()).commands} == {"server", "worker"}
    assert [len(room.say(*m, finished=Finished()).events) for m in room.members] == [0, 0, 1]
    assert room.coordinator.done and not room.coordinator.failed


def test_an_earlier_jobs_words_are_passed_over(room):
    event = Event(job="earlier", failed=Failed(message="late"))
    assert not room.coordinator.from_member("worker", 0, event).events


def test_the_fastest_worker_decides_what_is_fed(room):
    def want(rank, up_to):
        return room.say("worker", rank, feed_wanted=FeedWanted(name="f", up_to=up_to))

    refs = [BlobRef(id=f"{i}", nbytes=1) for i in range(12)]
    assert want(0, FEED_WINDOW).events
    for index, ref in enumerate(refs):
        room.client(feed=FeedBatch(name="f", index=index, arrays=ref))
    assert not want(1, FEED_WINDOW).events, "asked for already"
    ahead = want(0, FEED_WINDOW + 5)
    assert ahead.events[0].feed_wanted.up_to == FEED_WINDOW + 5
    assert not ahead.drop, "worker 1 may not have mapped them"
    assert want(1, FEED_WINDOW + 3).drop == refs[:3]
    room.client(epoch=Epoch(epoch=0))
    assert refs[-1] in [ref for m in room.members for ref in room.end(*m).drop]


def test_a_server_in_the_workers_process(tmp_path):
    """One member takes the commands of both and reports for both."""
    room = Room(tmp_path, workers=1)
    room.coordinator = ServersCoordinator(1, ["ps0"], room.blobs, hosted=True)
    assert [c[0] for c in room.client(setup=Setup()).commands] == ["worker"]
    assert room.say("worker", 0, ready=Ready(steps_per_epoch=3)).events
    assert [c[0] for c in room.client(epoch=Epoch(epoch=0)).commands] == ["worker"]
    state = State(model=room.put(1.0), optimizer=room.put(2.0))
    there = [WorkerShare(rank=0)]
    assert not room.say("worker", 0, epoch_end=EpochEnd(state=state, steps=3, workers=there)).events
    assert room.end("worker", 0).events[0].epoch_end.state == state
    assert [c[0] for c in room.client(finish=Finish()).commands] == ["worker"]
    assert room.say("worker", 0, finished=Finished()).events and room.coordinator.done


def test_a_lost_worker_is_the_end_unless_it_may_be_replaced(room):
    assert room.lose("worker", 1).events[0].failed.message == "worker 1 was lost"
    assert room.coordinator.failed


def test_a_replacement_gets_the_job_and_the_servers_are_told(room):
    room.allow(restarts="1")
    outcome = room.lose("worker", 1)
    assert outcome.restart == [("worker", 1)]
    (leave, setup) = outcome.commands
    assert (leave[0], leave[2].leave.rank, leave[2].leave.incarnation) == ("server", 1, 0)
    assert (setup[:2], setup[2].setup.incarnation, setup[2].setup.peers) == (("worker", 1), 1, ["ps0"])
    assert outcome.events[0].fault.action == "replaced"
    assert room.lose("worker", 1).events[0].HasField("failed"), "there is one replacement only"


def test_an_epoch_waits_for_those_who_were_there_at_its_end_and_still_are(room):
    room.allow(restarts="1", min_np="1")
    room.client(epoch=Epoch(epoch=0))
    room.end("server", 0, steps=3)
    room.end("worker", 0, samples=10)
    assert room.lose("worker", 1).events[1].epoch_end.steps == 3, "its replacement was not there"
    room.client(epoch=Epoch(epoch=1))
    room.end("worker", 0, epoch=1)
    there = [WorkerShare(rank=0), WorkerShare(rank=1, incarnation=1)]
    assert not room.end("server", 0, epoch=1, workers=there).events
    assert room.lose("worker", 1).events[1].HasField("epoch_end")


def test_a_worker_lost_at_the_very_end_is_not_waited_for(room):
    room.allow(restarts="5")
    room.client(finish=Finish())
    room.say("server", 0, finished=Finished())
    room.say("worker", 0, finished=Finished())
    outcome = room.lose("worker", 1)
    assert not outcome.restart and outcome.events[-1].HasField("finished") and room.coordinator.done


def test_a_worker_lost_before_the_job_came_is_replaced_with_the_job(tmp_path):
    coordinator = ServersCoordinator(2, ["ps0"], LocalBlobs(tmp_path))
    assert not coordinator.lost("worker", 0, Failed()).events
    setup = Command(job="j", setup=Setup(job=JobSpec(options={"restarts": "2"})))
    outcome = coordinator.from_client(setup)
    assert outcome.restart == [("worker", 0)]
    setups = [(rank, command) for role, rank, command in outcome.commands if role == "worker"]
    assert [(rank, command.setup.incarnation) for rank, command in setups] == [(1, 0), (0, 1)], "once each"


def test_what_the_client_draws_is_gone_with_the_worker_that_had_it(room):
    room.client(setup=Setup(job=JobSpec(options={"restarts": "1"}, data={"feed": {"name": "x"}})))
    assert room.lose("worker", 1).events[0].HasField("failed")


def test_servers_go_back_to_the_last_checkpoint_that_all_have_given(tmp_path):
    room = Room(tmp_path, servers=2)
    room.allow(restarts="3")
    room.client(epoch=Epoch(epoch=0))
    parts = [[room.put(1.0), room.put(2.0)], [room.put(3.0)], [room.put(4.0), room.put(5.0)]]

    def give(shard, number, ref):
        return room.say("server", shard, checkpoint=Checkpoint(number=number, epoch=0, running=True, state=ref)).drop

    assert [give(0, 1, parts[0][0]), give(1, 1, parts[0][1]), give(0, 2, parts[1][0])] == [[], [], []]
    outcome = room.lose("server", 1)
    assert outcome.restart == [("server", 1)] and outcome.events[0].fault.action == "restored"
    assert [c[2].setup.snapshot for c in outcome.commands] == parts[0], "half of the second was never there"
    assert outcome.drop == parts[1], "and no epoch is asked for again: it runs"
    assert give(0, 3, room.put(9.0)), "what shard 0 said before it went back"
    for shard in (0, 1):
        room.say("server", shard, ready=Ready())
    assert [give(0, 2, parts[2][0]), give(1, 2, parts[2][1])] == [[], parts[0]]
    assert room.coordinator.fail(Failed()).drop == parts[2]


def test_servers_that_die_before_a_checkpoint_begin_at_the_beginning(room):
    room.allow(restarts="2")
    assert [c[2].WhichOneof("kind") for c in room.lose("server", 0).commands] == ["setup"]
    room.say("server", 0, ready=Ready())
    room.client(epoch=Epoch(epoch=0))
    assert [c[2].WhichOneof("kind") for c in room.lose("server", 0).commands] == ["setup", "epoch"]
    assert room.lose("server", 0).events[0].HasField("failed"), "there are two replacements only"


@pytest.mark.parametrize("kept", [None, True, False])
def test_an_epoch_whose_end_the_client_has_is_not_trained_again(room, kept):
    """Its checkpoint could not be saved. `kept`: whether the last one is of the running epoch; None: there is none."""
    room.allow(restarts="2")
    room.client(epoch=Epoch(epoch=0))
    if kept is not None:
        room.say("server", 0, checkpoint=Checkpoint(number=1, epoch=0, running=kept, state=room.put(1.0)))
    assert [room.end(*member).events != [] for member in room.members] == [False, False, True]
    assert room.lose("server", 0).events[0].HasField("failed") == (kept is not False)


def test_a_report_that_was_under_way_while_servers_went_back_does_not_count(room):
    room.allow(restarts="1")
    room.client(epoch=Epoch(epoch=0))
    room.lose("server", 0)
    room.say("server", 0, ready=Ready())
    late = room.put(9.0)
    assert room.say("worker", 0, epoch_end=EpochEnd(epoch=0, metrics=late)).drop == [late]
    room.end("server", 0)
    assert not room.end("worker", 1, generation=1).events, "worker 0 reports again"
    (event,) = room.end("worker", 0, generation=1).events
    assert room.blobs.get_arrays(event.epoch_end.metrics)[0] == 1.0 + 2.0


@pytest.mark.parametrize(
    "options", [{}, {"restarts": "1", "checkpoint_every": "0"}, {"restarts": "1", "overlap_epochs": "1"}]
)
def test_a_lost_server_is_the_end_where_nobody_can_go_back(room, options):
    room.allow(**options)
    assert room.lose("server", 0).events[0].HasField("failed")


def test_an_epoch_that_is_told_again_is_not_given_again(room):
    room.client(epoch=Epoch(epoch=0))
    for member in room.members:
        room.end(*member)
    again = room.put(1.0)
    outcome = room.say("worker", 0, epoch_end=EpochEnd(epoch=0, metrics=again))
    assert (outcome.events, outcome.drop) == ([], [again])


def test_who_joins_gets_the_job_once_and_leaves_without_harm(room):
    assert room.coordinator.joined(2, "there").events[0].membership.action == "joined"
    assert not room.coordinator.joined(2, "there").commands
    for member in room.members:
        room.say(*member, ready=Ready())
    room.client(epoch=Epoch(epoch=0))
    for member in room.members[1:]:
        room.end(*member)
    assert not room.end("server", 0, workers=[WorkerShare(rank=rank) for rank in range(3)]).events
    outcome = room.coordinator.left(2, "failed", "no such file")
    assert [c[2].leave.rank for c in outcome.commands] == [2], "its batches are dealt again"
    membership, end = outcome.events
    assert "worker 2, which had joined, has failed: no such file" in membership.membership.message
    assert end.HasField("epoch_end") and not room.coordinator.failed
    assert not room.coordinator.left(2, "left").events
    (setup,) = room.coordinator.joined(2, "there").commands
    assert (setup[:2], setup[2].setup.incarnation, setup[2].setup.peers) == (("worker", 2), 1, ["ps0"])


def test_the_end_waits_for_a_guest_that_trains_and_for_no_other(room):
    for rank in (2, 3):
        room.coordinator.joined(rank, "there")
    room.say("worker", 2, ready=Ready())
    assert {c[1] for c in room.client(finish=Finish()).commands if c[0] == "worker"} == {0, 1, 2, 3}
    assert not [e for member in room.members for e in room.say(*member, finished=Finished()).events]
    assert room.say("worker", 2, finished=Finished()).events and room.coordinator.done


def test_a_guest_takes_a_lost_ones_place_and_nobody_replaces_a_guest(room):
    room.allow(restarts="1")
    room.coordinator.joined(2, "there")
    assert room.lose("worker", 1).restart == [("worker", 1)]
    assert room.lose("worker", 1).events[0].fault.action == "not replaced", "two are there, as many as began"
    assert not room.coordinator.left(2, "lost").restart and not room.coordinator.failed
    room.lose("worker", 0)
    assert room.coordinator.failed


def test_servers_that_go_back_hear_which_guests_have_left(room):
    room.allow(restarts="2")
    room.coordinator.joined(2, "there")
    room.coordinator.left(2, "left")
    leaves = [c[2].leave for c in room.lose("server", 0).commands if c[2].HasField("leave")]
    assert [(leave.rank, leave.incarnation) for leave in leaves] == [(2, 0)], "another may have that rank"


def test_a_guest_waits_where_the_client_draws_the_batches(room):
    room.client(setup=Setup(job=JobSpec(data={"feed": {"name": "x"}})))
    outcome = room.coordinator.joined(2, "there")
    assert "and waits" in outcome.events[0].note.text and not outcome.commands
    assert room.coordinator.left(2, "left").events == []
