"""What a worker pushes and reports, where servers end or train an epoch again, or a gradient is not finite."""

from types import SimpleNamespace

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from client_shim.capture.data import capture_data  # noqa: E402
from fdt.blobs import LocalBlobs  # noqa: E402
from fdt.job import FitArguments, JobSpec, Program, State  # noqa: E402
from fdt.keras import named  # noqa: E402
from fdt.keras.variables import tensor_variable  # noqa: E402
from fdt.rpc.tensor_pb2 import BlobRef  # noqa: E402
from fdt.trainable import Trainable  # noqa: E402
from nfdt.transport import EpochOver, Release, Weights  # noqa: E402
from nfdt.worker.run import WorkerJob  # noqa: E402
from nfdt.worker.step import GradientStep  # noqa: E402

BATCH = 4
X, Y = np.arange(24, dtype=np.float32).reshape(12, 2) / 10, np.ones(12, np.float32)


class Channel:
    """Answers as the script says: (epoch, batch) is weights, a number the end of that epoch."""

    bytes_sent = bytes_received = 0

    def __init__(self, script, part):
        self._script, self._part, self.pushes = list(script), part, []

    def open(self): ...

    def ask(self, pull=0): ...

    def push(self, number, gradient):
        self.pushes.append(gradient)

    def close(self): ...

    def answer(self):
        if not self._script:
            return Release(0)
        said = self._script.pop(0)
        self.bytes_sent += 1
        if isinstance(said, int):
            return EpochOver(0, said)
        if isinstance(said, EpochOver):
            return said
        part, (epoch, batch) = self._part, said
        behind = len(part.trainable) + len(part.others)
        positions = [*range(len(part.trainable)), *range(behind, behind + len(part.scalars))]
        tensors = [tensor_variable(v).read_value() for v in (*part.trainable, *part.scalars)]
        return Weights(positions, tensors, epoch, (batch,))


def trained(directory, script, x=X, second=(), **options):
    """Worker 0 by such a script; `second` is that of its second lane.

    Returns:
        Its reports (epoch, steps, samples, samples by the metric's state, bytes sent), and what it pushed.
    """
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    blobs, flavor, sent, errors = LocalBlobs(directory), named("keras"), [], []
    data = capture_data("keras", blobs, x, Y, batch_size=BATCH)
    flavor.build(model, data.spec)
    fit = FitArguments(batch_size=BATCH, epochs=3, shuffle=False)
    spec = JobSpec(
        "j", Program("keras", "d", BlobRef(), BlobRef()), State(), data.train, fit, options={"rule": "asgd", **options}
    )
    trainable = Trainable(flavor, model)
    member = SimpleNamespace(rank=0, size=1, blobs=blobs, pass_feeds_to=lambda offer: None)

    def channels(worker, steps, owned):
        return [Channel(second if worker else script, owned[0].part)]

    job = WorkerJob(spec, trainable, GradientStep(trainable), channels, 1, member, sent.append, errors.append)
    job.start()
    for thread in job._threads:
        thread.join(60)
        assert not thread.is_alive(), "a lane waits for another in vain"
    assert not errors
    ends = [event.epoch_end for event in sent if event.HasField("epoch_end")]
    counts = [(e.epoch, e.steps, e.samples, float(blobs.get_arrays(e.metrics)[-1]), e.bytes_sent) for e in ends]
    return counts, job._channels[0].channels[0].pushes


FIRST, SECOND, THIRD = ((0, batch) for batch in range(3))
EPOCH_1 = [(1, 0), 1]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([FIRST, SECOND, 0, *EPOCH_1, 2], [(0, 2, 8, 8, 3), (1, 1, 4, 4, 2), (2, 0, 0, 0, 1)]),
        ([FIRST, SECOND, 0, 0, *EPOCH_1], [(0, 2, 8, 8, 3), (0, 2, 8, 8, 4), (1, 1, 4, 4, 2)]),
        ([FIRST, SECOND, 0, SECOND, 0, *EPOCH_1], [(0, 2, 8, 8, 3), (0, 3, 12, 12, 5), (1, 1, 4, 4, 2)]),
        ([FIRST, 0, (1, 0), 0, (1, 0), 1], [(0, 1, 4, 4, 2), (0, 1, 4, 4, 2), (1, 2, 8, 8, 4)]),
    ],
    ids=["undisturbed", "its end again", "a part again", "the end before it again"],
)
def test_what_servers_repeat_is_counted_on(tmp_path, script, expected):
    """The engine drops what was reported before a restoration, and reports of epochs whose end the client has."""
    assert trained(tmp_path, script)[0] == expected


def test_a_push_that_is_left_out_has_no_tensors(tmp_path):
    """A compressor that saw them would add its residuals to a push that no server applies."""
    x = X.copy()
    x[BATCH] = np.nan  # in the second batch
    counts, pushes = trained(tmp_path, [FIRST, SECOND, THIRD, 0], x, on_nan="skip")
    assert [(p.finite, p.gradient.count(None), p.batches) for p in pushes] == [
        (True, 0, (0,)),
        (False, 2, (1,)),
        (True, 0, (2,)),
    ]
    assert counts == [(0, 2, 8, 8, 4)]


def test_lanes_wait_for_one_another_where_restored_servers_end_an_epoch_again(tmp_path):
    """One lane has the first end of epoch 0, the other has not, and both get the second one."""
    again = EpochOver(0, 0, 1)
    end = EpochOver(0, 1, 1)
    first, second = [(0, 0), 0, again, (1, 0), end], [(0, 1), again, (1, 1), end]
    counts, _ = trained(tmp_path, first, second=second, overlap="on")
    assert {count[0]: count[1:4] for count in counts} == {0: (2, 8, 8), 1: (2, 8, 8)}, "the last report of each epoch"
