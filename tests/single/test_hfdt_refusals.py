"""A rank between jobs: whether it says, after a failure, that it can train the next one; and whether it is idle."""

from types import SimpleNamespace

import pytest

from fdt.errors import NeedsReplica, UserError
from fdt.job import ArrayData, FeedData, FitArguments, JobSpec, Program, State
from fdt.rpc.session_pb2 import Command, Epoch, Finish, Setup
from fdt.rpc.tensor_pb2 import BlobRef
from hfdt.collectives.base import SoloComm
from hfdt.worker.process import HfdtWorker

ARRAYS = ArrayData(BlobRef(), "0", 8)
REFUSAL = NeedsReplica("the loss does not split; use --capture replica", "the loss does not split", trained=False)


def setup(data=ARRAYS):
    program = Program("keras", "digest", BlobRef(id="c"), BlobRef(id="p"))
    return Command(job="j", setup=Setup(job=JobSpec("j", program, State(), data, FitArguments()).to_proto()))


class Recorded(SoloComm):
    def __init__(self):
        self.calls = []

    def pause(self):
        self.calls.append("pause")

    def resume(self):
        self.calls.append("resume")


def reported(command, error, close=lambda: None):
    """The Failed message, after a session of the job was made. Only a rank that trains the next job is paused."""
    sent, comm = [], Recorded()
    worker = HfdtWorker(SimpleNamespace(rank=0, commands=list, send=sent.append), comm, [])
    worker._warm = ("digest", {}), SimpleNamespace(close=close)
    worker._report(command, error)
    (event,) = sent
    assert event.job == "j"
    assert comm.calls == ["pause"] * event.failed.refused
    return event.failed


def test_a_refusal_names_its_remedy_and_the_session_is_closed():
    closed = []
    failed = reported(setup(), REFUSAL, lambda: closed.append(1))
    assert (failed.refused, failed.replica, closed) == (True, "the loss does not split", [1])


@pytest.mark.parametrize(
    ("command", "error", "close"),
    [
        (setup(FeedData("train", -1)), REFUSAL, lambda: None),
        (setup(), UserError("Horovod has been shut down"), lambda: None),
        (setup(), ValueError("a bug"), lambda: None),
        (setup(), REFUSAL, lambda: 1 / 0),
        (Command(job="j", epoch=Epoch()), UserError("no"), lambda: None),
    ],
    ids=["batches on their way", "connections lost", "a bug", "a session that does not close", "training"],
)
def test_a_rank_whose_state_may_reach_the_next_job_does_not_refuse_but_fails(command, error, close):
    assert not reported(command, error, close).refused


def test_a_rank_exchanges_from_a_jobs_setup_to_its_end():
    """The job's program does not exist, so its setup fails; the Comm is resumed before it."""
    sent, comm = [], Recorded()
    commands = [setup(), Command(job="j", finish=Finish())]
    worker = HfdtWorker(SimpleNamespace(rank=0, commands=lambda: commands, send=sent.append), comm, [])
    worker.job = SimpleNamespace(feeds={})
    worker.run()
    assert comm.calls == ["resume", "pause"]
    assert [event.WhichOneof("kind") for event in sent] == ["failed", "finished"]
