"""HFDT's coordinator without processes: events in, outcomes out."""

import pytest

from fdt.blobs import LocalBlobs
from fdt.job import FEED_WINDOW, BatchHooks
from fdt.rpc.job_pb2 import FitArguments, JobSpec, State
from fdt.rpc.session_pb2 import (
    Command,
    Commit,
    Epoch,
    EpochEnd,
    Event,
    Failed,
    FeedBatch,
    FeedWanted,
    Finished,
    Progress,
    Ready,
    Setup,
    Suspend,
)
from fdt.rpc.tensor_pb2 import BlobRef
from hfdt.engine.coordinator import REFUSE_S, RanksCoordinator
from hfdt.engine.recovery import RankRecovery


@pytest.fixture
def blobs(tmp_path):
    return LocalBlobs(tmp_path)


def started(size=2, blobs=None, **options):
    coordinator = RanksCoordinator(RankRecovery(blobs, size))
    fit = FitArguments(batch_hooks=int(options.pop("hooks", 0)))
    job = JobSpec(options=options, fit=fit)
    coordinator.from_client(Command(job="j", setup=Setup(job=job)))
    coordinator.from_client(Command(job="j", epoch=Epoch(epoch=0)))
    return coordinator


def say(coordinator, rank, **kind):
    return coordinator.from_member("worker", rank, Event(job="j", rank=rank, **kind))


def test_the_client_hears_one_epoch_end_with_everybodys_counts():
    coordinator = started()
    assert say(coordinator, 1, epoch_end=EpochEnd(samples=4, seconds=2)).events == []
    (event,) = say(coordinator, 0, epoch_end=EpochEnd(samples=6, seconds=1, logs={"loss": 0.5})).events
    assert event.epoch_end.samples == 10
    assert event.epoch_end.logs["loss"] == 0.5
    assert [(w.rank, w.samples, w.seconds) for w in event.epoch_end.workers] == [(0, 6, 1), (1, 4, 2)]


def test_progress_is_passed_on_worker_by_worker():
    assert say(started(), 1, progress=Progress(step=3)).events[0].rank == 1


def test_the_first_failure_of_a_job_that_has_begun_ends_it():
    coordinator = started()
    for rank in range(2):
        say(coordinator, rank, ready=Ready())
    (event,) = say(coordinator, 1, failed=Failed(message="no")).events
    assert (event.failed.message, coordinator.done, coordinator.failed) == ("no", True, True)
    assert say(coordinator, 0, failed=Failed(message="again")).events == []


def refusal(message, **more):
    return {"failed": Failed(message=message, refused=True, **more)}


def test_ranks_that_all_refuse_a_job_before_it_begins_can_train_the_next():
    coordinator = started()
    assert say(coordinator, 1, **refusal("no")).events == []
    assert coordinator.tick(0.1).events == []
    (event,) = say(coordinator, 0, **refusal("of rank 0")).events
    assert (event.failed.message, coordinator.done, coordinator.failed) == ("of rank 0", True, False)


def test_ranks_that_cannot_train_the_next_job_after_a_failure():
    bug = started()
    (event,) = say(bug, 1, failed=Failed(message="no", detail="Traceback")).events
    assert event.failed.message == "no" and bug.failed, "it may be anywhere"
    start = started()
    (event,) = start.from_member("worker", 1, Event(rank=1, failed=Failed(message="no Horovod"))).events
    assert event.failed.message == "no Horovod" and start.failed, "it waits for its end"
    begun = started()
    for rank in range(2):
        say(begun, rank, ready=Ready())
    assert say(begun, 0, **refusal("of a rank that was restarted")).events and begun.failed


def test_a_rank_that_refuses_alone_is_not_waited_for_long():
    waiting = started()
    assert say(waiting, 1, **refusal("no")).events == []
    assert waiting.tick(5.0).events == [] and not waiting.done
    (event,) = waiting.tick(5.1 + REFUSE_S).events
    assert event.failed.message == "no" and waiting.failed, "rank 0 is in an exchange"


def test_a_refusal_with_a_remedy_is_told_whatever_comes_after_it():
    lost = started()
    assert say(lost, 0, **refusal("inexact", replica="inexact")).events == []
    assert lose(lost).events[0].failed.replica == "inexact"
    both = started()
    assert say(both, 1, **refusal("inexact", replica="inexact")).events == []
    (event,) = say(both, 0, **refusal("no")).events
    assert (event.failed.replica, both.failed) == ("inexact", False)


def test_the_time_for_refusals_begins_again_with_new_ranks(blobs):
    coordinator = started(blobs=blobs, restarts="1")
    say(coordinator, 0, **refusal("no"))
    coordinator.tick(10.0)
    assert lose(coordinator).relaunch == 2
    say(coordinator, 0, **refusal("no"))
    assert coordinator.tick(10.1 + REFUSE_S).events == [] and not coordinator.done


def test_events_of_an_earlier_job_are_passed_over():
    coordinator = started(1)
    assert coordinator.from_member("worker", 0, Event(job="old", finished=Finished())).events == []
    assert not coordinator.done


def test_what_the_client_changed_is_dropped_after_the_epoch():
    coordinator = RanksCoordinator(RankRecovery(None, 1))
    epoch = Epoch()
    epoch.changed.model.id = "m"
    coordinator.from_client(Command(job="j", epoch=epoch))
    assert BlobRef(id="m") in say(coordinator, 0, epoch_end=EpochEnd()).drop


def test_a_feed_goes_as_far_as_the_slowest_rank_and_forgets_what_all_have_taken():
    coordinator = started()
    for index in range(3):
        batch = FeedBatch(name="x", index=index, arrays=BlobRef(id=f"b{index}"))
        assert coordinator.from_client(Command(job="j", feed=batch)).commands[0][:2] == ("worker", None)
    assert say(coordinator, 0, feed_wanted=FeedWanted(name="x", up_to=FEED_WINDOW + 2)).events == []
    outcome = say(coordinator, 1, feed_wanted=FeedWanted(name="x", up_to=FEED_WINDOW + 1))
    assert outcome.events[0].feed_wanted.up_to == FEED_WINDOW + 1
    assert [ref.id for ref in outcome.drop] == ["b0"]


def test_restarted_ranks_take_the_options_that_the_first_ranks_chose(blobs):
    coordinator = started(blobs=blobs, restarts="1", bucket_mb="auto", on_nan="skip")
    chosen = Ready(chosen={"bucket_mb": "8"}, why_chosen="buckets of 8 MB")
    assert say(coordinator, 1, ready=chosen).events == []
    (event,) = say(coordinator, 0, ready=chosen).events
    assert event.ready.why_chosen == "buckets of 8 MB"
    (_, _, setup), _ = lose(coordinator).commands
    assert dict(setup.setup.job.options) == {"restarts": "1", "bucket_mb": "8", "on_nan": "skip"}


# -- a rank is lost ------------------------------------------------------------------------------------------------
def lose(coordinator):
    return coordinator.lost("worker", 1, Failed(message="worker 1 was lost"))


def test_without_restarts_a_loss_ends_the_job():
    coordinator = started()
    (event,) = lose(coordinator).events
    assert (event.failed.message, coordinator.failed) == ("worker 1 was lost", True)


def test_all_ranks_take_up_the_last_commit_and_the_epoch_under_way(blobs):
    coordinator = started(blobs=blobs, restarts="1")
    model, optimizer = blobs.put(b"model"), blobs.put(b"optimizer")
    say(coordinator, 1, epoch_end=EpochEnd())
    say(coordinator, 0, epoch_end=EpochEnd(state=State(model=model, optimizer=optimizer)))
    for ref in (model, optimizer):  # the client has loaded it
        blobs.drop(ref)
    coordinator.from_client(Command(job="j", epoch=Epoch(epoch=1)))
    say(coordinator, 0, epoch_end=EpochEnd(epoch=1))

    outcome = lose(coordinator)
    assert (outcome.relaunch, outcome.events[0].fault.action) == (2, "restarted from the end of epoch 1")
    (_, _, setup), (_, _, epoch) = outcome.commands
    assert bytes(blobs.get(setup.setup.job.state.model)) == b"model"
    assert bytes(blobs.get(setup.setup.job.state.optimizer)) == b"optimizer"
    assert epoch.epoch.epoch == 1
    assert say(coordinator, 1, epoch_end=EpochEnd(epoch=1)).events == [], "what was said before counts no more"
    assert lose(coordinator).events[0].HasField("failed"), "one restart was given"


def test_the_client_hears_once_that_the_ranks_are_ready(blobs):
    coordinator = started(blobs=blobs, restarts="1")
    heard = [say(coordinator, rank, ready=Ready()).events for rank in (0, 1)]
    lose(coordinator)
    again = [say(coordinator, rank, ready=Ready()).events for rank in (0, 1)]
    assert [len(events) for events in heard + again] == [0, 1, 0, 0]


def test_with_no_restart_left_fewer_ranks_go_on(blobs):
    coordinator = started(3, blobs, restarts="1", min_np="2")
    assert [lose(coordinator).relaunch for _ in range(3)] == [3, 2, 0]
    assert coordinator.failed


def test_as_many_as_there_is_room_for_take_part_from_the_start(blobs):
    coordinator, short = RanksCoordinator(RankRecovery(blobs, 4)), Failed(message="slots for 3 of 4")
    assert coordinator.short(3, short).events == []
    outcome = coordinator.from_client(Command(job="j", setup=Setup(job=JobSpec(options={"min_np": "2"}))))
    assert (outcome.relaunch, outcome.events[0].fault.message) == (
        3,
        "slots for 3 of 4; training continues from the beginning, with -np 3",
    )
    assert [command.WhichOneof("kind") for _, _, command in outcome.commands] == ["setup"]
    assert coordinator.short(2, short).relaunch == 2
    assert coordinator.short(1, short).events[0].HasField("failed"), "--min-np 2"


def test_without_min_np_all_ranks_are_wanted_from_the_start(blobs):
    coordinator = RanksCoordinator(RankRecovery(blobs, 4))
    coordinator.short(3, Failed(message="slots for 3 of 4"))
    (event,) = coordinator.from_client(Command(job="j", setup=Setup(job=JobSpec()))).events
    assert event.failed.message == "slots for 3 of 4"


def test_what_cannot_be_trained_again_is_said_at_the_start(blobs):
    coordinator = started(1, blobs, restarts="1", hooks=BatchHooks.LOGS)
    (event,) = say(coordinator, 0, ready=Ready()).events
    assert "--restarts and --min-np are not used" in event.ready.notes
    assert lose(coordinator).events[0].HasField("failed")


def test_a_commit_in_the_midst_of_an_epoch_is_where_the_ranks_take_it_up(blobs):
    coordinator = started(blobs=blobs, restarts="2")
    refs = [blobs.put(word) for word in (b"model", b"optimizer", b"metrics")]
    commit = Commit(epoch=0, step=40, samples=80, state=State(model=refs[0], optimizer=refs[1]), metrics=refs[2])
    (event,) = say(coordinator, 0, commit=commit).events
    assert event.commit == commit, "the client may keep it, too"
    for ref in refs:
        blobs.drop(ref)
    outcome = lose(coordinator)
    assert outcome.events[0].fault.action == "restarted from step 40 of epoch 1"
    (_, _, setup), (_, _, epoch) = outcome.commands
    assert not setup.setup.job.state.model.id, "the job's own, the epoch brings the commit's"
    begin = epoch.epoch.begin
    assert (begin.step, begin.samples, bytes(blobs.get(begin.state.model))) == (40, 80, b"model")
    ended = State(model=blobs.put(b"m"), optimizer=blobs.put(b"o"))
    for rank in (0, 1):
        say(coordinator, rank, epoch_end=EpochEnd(epoch=0, state=ended if rank == 0 else None))
    with pytest.raises(KeyError):
        blobs.get(begin.state.model)
    coordinator.from_client(Command(job="j", epoch=Epoch(epoch=1)))
    assert not lose(coordinator).commands[1][2].epoch.HasField("begin"), "that epoch is over"


def damage(blobs, ref, how):
    """Flip each bit of a byte of a blob in turn, or cut the blob short; leave the blob damaged."""
    file = blobs.directory / ref.id
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-1])
        return
    data = bytearray(file.read_bytes())
    data[how // 8] ^= 1 << how % 8
    file.write_bytes(data)


@pytest.mark.parametrize("how", [*range(16), "cut"])
@pytest.mark.parametrize("blob", range(3))
def test_a_damaged_commit_is_named_and_the_one_before_it_is_used(blobs, blob, how):
    coordinator = started(blobs=blobs, restarts="2")
    state = State(model=blobs.put(b"m0"), optimizer=blobs.put(b"o0"))
    for rank in (0, 1):
        say(coordinator, rank, epoch_end=EpochEnd(state=state if rank == 0 else None))
    coordinator.from_client(Command(job="j", epoch=Epoch(epoch=1)))
    refs = [blobs.put(word) for word in (b"m1", b"o1", b"s1")]
    commit = Commit(epoch=1, step=4, state=State(model=refs[0], optimizer=refs[1]), metrics=refs[2])
    say(coordinator, 0, commit=commit)
    damage(blobs, refs[blob], how)

    outcome = lose(coordinator)
    note, fault = outcome.events
    assert note.note.text == "the commit at step 4 of epoch 2 is damaged, and the one before it is used"
    assert fault.fault.action == "restarted from the end of epoch 1"
    (_, _, setup), (_, _, epoch) = outcome.commands
    assert bytes(blobs.get(setup.setup.job.state.model)) == b"m0"
    assert not epoch.epoch.HasField("begin")

    damage(blobs, (state.model, state.optimizer)[blob % 2], how)
    (event,) = lose(coordinator).events
    assert event.failed.message.startswith(
        "worker 1 was lost; the commit at the end of epoch 1 is damaged, so no worker"
    )
    assert coordinator.failed


def test_ranks_that_restart_are_told_again_that_the_run_is_preempted(blobs):
    coordinator = started(blobs=blobs, restarts="1")
    asked = coordinator.from_client(Command(job="j", suspend=Suspend())).commands
    assert [(role, rank, command.WhichOneof("kind")) for role, rank, command in asked] == [("worker", None, "suspend")]
    again = [command.WhichOneof("kind") for _, _, command in lose(coordinator).commands]
    assert again == ["setup", "epoch", "suspend"]


def test_a_rank_that_is_lost_before_the_first_fit_counts_in_it(blobs):
    coordinator = RanksCoordinator(RankRecovery(blobs, 2))
    lost = Failed(message="worker 1 was lost")
    assert coordinator.lost("worker", 1, lost).events == []
    setup = Setup(job=JobSpec(options={"restarts": "1"}))
    outcome = coordinator.from_client(Command(job="j", setup=setup))
    assert outcome.relaunch == 2
    assert [command.WhichOneof("kind") for _, _, command in outcome.commands] == ["setup"]
    assert "restart 1 of 1" in outcome.events[0].fault.message

    without = RanksCoordinator(RankRecovery(blobs, 2))
    without.lost("worker", 1, lost)
    assert without.from_client(Command(job="j", setup=Setup(job=JobSpec()))).events[0].HasField("failed")


def test_a_failure_before_the_setup_does_not_hide_the_loss_that_it_follows_from():
    """mpirun was killed, and a rank that it had started finds itself alone."""
    coordinator = RanksCoordinator(RankRecovery(None, 2))
    coordinator.lost("worker", None, Failed(message="mpirun was killed"))
    assert coordinator.from_member("worker", 0, Event(failed=Failed(message="rank 0 of 1"))).events == []
    (event,) = coordinator.from_client(Command(job="j", setup=Setup(job=JobSpec()))).events
    assert event.failed.message == "mpirun was killed"
