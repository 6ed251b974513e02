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


def test_a_rank_trains_the_next_job_after_an_error_of_the_scripts_own_code():
    try:
        [].index(1)
    except ValueError as error:  # this file is none of the project's packages
        failed = reported(setup(), error)
    assert failed.users_code and failed.refused


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


class Two(SoloComm):
    """Another rank that agrees."""

    size = 2


def probing_of(by_script=False):
    import keras

    from hfdt.exactness.probe_schedule import Probing

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    found = Probing(SimpleNamespace(model=model), Two(), {}, synchronised=True)
    found._probe, found._spec = SimpleNamespace(by_script=by_script), "pairs"
    return found


def source_of(spec="pairs", batch=8, rows=24):
    return SimpleNamespace(element_spec=spec, batch_size=batch, samples=rows, steps=-(-rows // batch))


def test_a_session_is_for_data_of_one_structure():
    probing, closed = probing_of(), []
    worker = HfdtWorker(SimpleNamespace(rank=0, blobs=None, commands=list), Two(), [])
    job = JobSpec.from_proto(setup().setup.job)
    warm = SimpleNamespace(probing=probing, close=lambda: closed.append(1))
    worker._warm = (job.made_for, job.options), warm
    assert worker._session(job, source_of()) is warm and not closed
    with pytest.raises(AttributeError):  # there is no program to build
        worker._session(job, source_of("triples"))
    assert closed == [1]


@pytest.mark.parametrize(("by_script", "again"), [(False, ""), (True, "aBs")])
def test_other_rows_are_probed_once_where_the_script_wrote_a_part_of_the_step(monkeypatch, by_script, again):
    probing, probed = probing_of(by_script), []
    monkeypatch.setattr(probing, "_terms", None, raising=False)

    def first(source, terms, validation):
        probed.append(source)
        probing._forms.add(probing._form_of(source, validation))

    monkeypatch.setattr(probing, "first", first)
    first(source_of(), None, None)
    sources = {
        "a": source_of(batch=6),
        "A": source_of(batch=6),
        "B": source_of(batch=6, rows=25),
        "s": source_of(rows=25),
    }
    named = {id(source): name for name, source in sources.items()}
    for source in sources.values():
        probing.warm(source, None)
    assert "".join(named[id(source)] for source in probed[1:]) == again
