"""HFDT's decisions, with no process anywhere: events in, outcomes out."""

from fdt.job import FEED_WINDOW
from fdt.rpc.session_pb2 import Command, Epoch, EpochEnd, Event, Failed, FeedBatch, FeedWanted, Finished, Progress
from fdt.rpc.tensor_pb2 import BlobRef
from hfdt.coordinator import RanksCoordinator


def started(size=2):
    coordinator = RanksCoordinator(size)
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


def test_the_first_failure_ends_the_job():
    coordinator = started()
    (event,) = say(coordinator, 1, failed=Failed(message="no")).events
    assert (event.failed.message, coordinator.done, coordinator.failed) == ("no", True, True)
    assert say(coordinator, 0, failed=Failed(message="again")).events == []


def test_events_of_an_earlier_job_are_passed_over():
    coordinator = started(1)
    assert coordinator.from_member("worker", 0, Event(job="old", finished=Finished())).events == []
    assert not coordinator.done


def test_what_the_client_changed_is_dropped_after_the_epoch():
    coordinator = RanksCoordinator(1)
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
