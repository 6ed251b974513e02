"""Commits within an epoch: when they are made, and that an epoch resumed from one ends like a whole one."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from fdt.job import BatchHooks, FeedData, FitArguments, GraphData, JobSpec
from fdt.rpc.session_pb2 import Commit
from fdt.rpc.tensor_pb2 import BlobRef
from hfdt import algorithms
from hfdt.worker import progress
from hfdt.worker.progress import Watch

pytestmark = pytest.mark.filterwarnings("default")


def spec(data=None, hooks=BatchHooks.NONE, **options):
    data = data or GraphData(BlobRef(), BlobRef(), BlobRef(), 10, 0)
    return JobSpec("j", None, None, data, FitArguments(batch_hooks=hooks), options=options)


@pytest.mark.parametrize(
    ("job", "rule", "every", "said"),
    [
        (spec(), "allreduce", 0, ""),
        (spec(commit_every="5"), "allreduce", 5, ""),
        (spec(commit_every="5"), "local_sgd", 0, "differ within a round"),
        (spec(FeedData("training", 3), commit_every="5"), "allreduce", 0, "reads the batches"),
        (spec(hooks=BatchHooks.LOGS, commit_every="5"), "allreduce", 0, "receive every step"),
    ],
)
def test_where_an_epoch_can_be_taken_up_in_its_midst(job, rule, every, said):
    steps, notes = progress.plan(job, algorithms.make(rule))
    assert (steps, len(notes)) == (every, int(bool(said)))
    assert said in "".join(notes)


def test_a_line_says_what_is_in_no_commit_where_ranks_go_on_from_one():
    def line(rule, epoch, *, within=False, begun=False, size=2, feedback=False):
        compression = SimpleNamespace(compressor=SimpleNamespace(feedback=feedback), name="powersgd")
        sharded = SimpleNamespace(terms=SimpleNamespace(compression=compression))
        session = SimpleNamespace(rule=algorithms.make(rule), comm=SimpleNamespace(size=size), sharded=sharded)
        job = progress.Job("j", spec(), session, None, None, {}, begun=begun)
        return job.begin(epoch, within=within)

    assert "epoch 3: each rank has lost its multipliers" in line("admm", 2)
    assert "measured mu" in line("dane(solver='cg')", 2) and "moments" in line("dane", 2)
    assert "has lost the gradients that powersgd has not sent yet" in line("allreduce", 0, within=True, feedback=True)
    for nothing in (line("admm", 0), line("admm", 2, begun=True), line("admm", 2, size=1), line("allreduce", 2)):
        assert nothing == ""
    assert line("local_sgd", 2) == line("dane(solver='cg', mu=0.5)", 2) == ""


@pytest.mark.parametrize(("executions", "before", "at"), [(1, 0, [4, 8]), (3, 0, [6, 9]), (1, 4, [8]), (1, 5, [8])])
def test_commits_fall_on_the_same_steps_however_the_epoch_is_walked(executions, before, at):
    taken = []
    session = SimpleNamespace(epoch_steps=12, check_finite=lambda epoch: None)
    job = SimpleNamespace(spec=spec(), commits_every=4, session=session, suspension=None)
    worker = SimpleNamespace(
        job=job, commit=lambda epoch, step, logs: taken.append(step), progress=lambda *_: None, lock_step=None
    )
    watch = Watch(worker, 0, before)
    for step in range(executions - 1, 12 - before, executions):
        watch.on_batch(step, {})
    assert taken == at, "and none at the epoch's end, which is a commit anyway"
    assert watch.steps == 12


def test_a_preempted_epoch_is_committed_once_and_ends_there():
    taken, asked = [], []
    session = SimpleNamespace(epoch_steps=12, check_finite=lambda epoch: None)
    vote = SimpleNamespace(agreed=lambda steps: len(asked) > 0)
    job = SimpleNamespace(spec=spec(), commits_every=0, session=session, suspension=vote)
    worker = SimpleNamespace(job=job, commit=lambda epoch, step, logs: taken.append(step), progress=lambda *_: None)
    watch = Watch(worker, 0)
    assert watch.on_batch(0, {})
    asked.append("suspend")
    assert not watch.on_batch(1, {})
    assert taken == [2]
    assert Watch(worker, 0, 11).on_batch(0, {}), "the last step ends the epoch anyway"
    assert taken == [2]


@pytest.mark.parametrize("informed", [0, 1])
def test_ranks_suspend_after_the_same_step_whoever_is_told_first(informed):
    from hfdt.worker.suspension import SuspensionVote
    from tests.in_process_comm import on_ranks

    def rank(comm):
        step, clock = [0], [0.0]
        told = 7 if comm.rank == informed else 9
        vote = SuspensionVote(comm, lambda: step[0] >= told, lambda: clock[0])
        for n in range(1, 100):
            step[0], clock[0] = n, clock[0] + (4.0 if n == 1 else 0.125)  # traced in the first step; 4 steps a vote
            if vote.agreed(1):
                return n
        return None

    assert on_ranks(2, rank) == [10, 10]  # votes after 1, 2, 6 and 10 steps


FIT = FitArguments(batch_size=10, epochs=2)


def made(spec, flavor="keras"):
    from fdt.keras import flavor_of
    from fdt.trainable import Trainable

    api = pytest.importorskip(flavor)
    api.utils.set_random_seed(3)
    model = api.Sequential([api.layers.InputLayer((4,)), api.layers.Dropout(0.3), api.layers.Dense(1)])
    model.compile(api.optimizers.Adam(0.1), "mse", metrics=["mae"])
    flavor_of(model).build(model, spec)
    return Trainable(flavor_of(model), model)


def trained(trainable, data, blobs, on_step, begin=None):
    """Train the second epoch, or its rest after `begin`; return its logs and its number of samples."""
    from fdt.data import open_source
    from hfdt.collectives.base import SoloComm
    from hfdt.worker.session import RankProgram

    with contextlib.closing(RankProgram(trainable, SoloComm(), {"rule": "allreduce"})) as session:
        source = open_source(data.train, FIT, blobs, 7, training=True)
        session.prepare(source, None)
        logs = session.train(source, 1, lambda step, logs: on_step(session, step, logs), begin)
        return logs, session.samples()


def test_an_epoch_taken_up_in_its_midst_ends_as_a_whole_one():
    from client_shim.capture.data import capture_data
    from fdt.blobs import LocalBlobs
    from hfdt.worker.session import patches

    x = np.random.default_rng(0).normal(size=(150, 4)).astype("float32")
    with contextlib.closing(LocalBlobs.create()) as blobs, patches("keras"):
        data = capture_data("keras", blobs, x, x.sum(axis=1), batch_size=10)
        whole, kept = made(data.spec), {}

        def keep(session, step, logs):
            if step == 6:
                metrics, samples = progress.take(session, logs)
                kept["begin"] = progress.Begin(7, samples, metrics)
                kept["state"] = whole.model_arrays(), whole.optimizer_arrays()
            return True

        expected = trained(whole, data, blobs, keep)
        again = made(data.spec)
        again.write_model(kept["state"][0])
        again.write_optimizer(kept["state"][1])
        seen = []
        found = trained(again, data, blobs, lambda session, step, logs: seen.append(step) or True, kept["begin"])
    assert found == expected, "logs over all of the epoch, and all of its samples"
    assert len(seen) == 15 - 7
    for a, b in zip(again.model_arrays(), whole.model_arrays(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_each_rank_goes_on_with_its_own_metrics_unless_their_number_changed(tmp_path):
    import tensorflow as tf

    from fdt.blobs import LocalBlobs
    from hfdt.exactness.metrics import MetricTotals
    from tests.in_process_comm import on_ranks

    def rank(comm):
        metric = tf.Variable(0.1 * (comm.rank + 1))
        return [each.numpy() for each in MetricTotals(comm, [metric, tf.Variable(comm.rank == 1)]).by_rank()]

    stacked, same = on_ranks(2, rank)
    np.testing.assert_array_equal(stacked[0], np.float32([0.1, 0.2]))
    np.testing.assert_array_equal([stacked[1], same[1]], [[False, True]] * 2)
    blobs = LocalBlobs(tmp_path)
    total = blobs.put_arrays([np.float32(0.3), np.bool_(True)])
    commit = Commit(step=3, samples=12, metrics=total, rank_metrics=blobs.put_arrays(stacked))
    starts = [float(progress.begin_of(commit, blobs, r, 2).metrics[0]) for r in range(2)]
    assert starts == [float(np.float32(0.1)), float(np.float32(0.2))]
    fewer = progress.begin_of(commit, blobs, 0, 1)
    assert (fewer.step, fewer.samples, float(fewer.metrics[0])) == (3, 12, float(np.float32(0.3)))
    assert list(progress.begin_of(commit, blobs, 1, 3).metrics) == []


def test_what_all_ranks_had_before_is_counted_once():
    import tensorflow as tf

    from hfdt.exactness.metrics import MetricTotals
    from tests.in_process_comm import on_ranks

    def rank(comm):
        metric = tf.Variable(0.0)
        totals = MetricTotals(comm, [metric])
        with totals.beginning_with([np.float32(10)] if comm.rank == 0 else ()):
            metric.assign(0.0)
            totals.started()
        metric.assign_add(comm.rank + 1)
        return float(totals.total()[0])

    assert on_ranks(2, rank) == [13.0, 13.0]


@pytest.mark.parametrize("flavor", ["keras", "tf_keras"])
def test_an_epoch_of_unknown_length_committed_after_its_last_step_keeps_its_logs(flavor):
    import tensorflow as tf

    from client_shim.capture.data import capture_data
    from fdt.blobs import LocalBlobs
    from hfdt.worker.session import patches

    x = np.random.default_rng(0).normal(size=(150, 4)).astype("float32")
    batches = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).batch(10).filter(lambda x, y: True)
    with contextlib.closing(LocalBlobs.create()) as blobs, patches(flavor):
        data = capture_data(flavor, blobs, batches)
        whole, kept = made(data.spec, flavor), []

        def keep(session, step, logs):
            metrics, samples = progress.take(session, logs)
            kept.append(progress.Begin(step + 1, samples, metrics))
            return True

        expected = trained(whole, data, blobs, keep)
        assert len(kept) == 15 and expected[0]["loss"] > 0
        again = made(data.spec, flavor)
        assert trained(again, data, blobs, lambda *_: pytest.fail("no step is left"), kept[-1]) == expected
