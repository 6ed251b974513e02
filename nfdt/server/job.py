"""One job on one server: the built model, the variables that this server owns, the algorithm, and the snapshot of them.

A snapshot is one blob from which a new server continues. It holds the variables, the optimizers, the algorithm's state
with every worker's, and push ids. Shard 0 adds the scheduler's decisions, such as the assignment of batches. All shards
save at the same position of shard 0's log. A snapshot counts only when all parts exist (nfdt/engine/recovery.py), so a
half-written one is never read. It begins with a checksum, which is compared before anything is unpickled.
"""

import pickle
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.script_code import of_library, with_inner
from fdt.blobs import Blobs
from fdt.errors import CaptureError, UserError
from fdt.job import BatchHooks, FeedData, JobSpec, State
from fdt.keras import is_of_keras
from fdt.rpc.session_pb2 import Checkpoint, EpochEnd, Event, StepEnd
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.timeline import SpanRecorder, trace_time
from fdt.trainable import Trainable, read, write
from fdt.typing import Array
from nfdt import compressors
from nfdt.algorithm import AsyncAlgorithm
from nfdt.model import add_up
from nfdt.model.settings import algorithm_of, lanes_of, server_optimizer
from nfdt.model.shards import check_splittable, own, partial
from nfdt.options import Options
from nfdt.server.algorithm_state import AlgorithmState, Applier, WorkerState
from nfdt.server.applier import ModelApplier
from nfdt.server.batch_dispatcher import Epoch
from nfdt.transport import WorkerGradient
from nfdt.transport.buffers import Layout, array_over
from nfdt.tree import leaves, lower, tree_map


@dataclass
class ServedJob:
    """One job on one server.

    `loads` counts how often the client wrote the model's variables. After each load, the next pull contains all
    variables. Those of the optimizer that workers receive are in every pull, so a learning rate does not count.
    """

    spec: JobSpec
    trainable: Trainable
    blobs: Blobs
    shard: int
    shards: int
    workers: int
    generation: int = 0  # number of restorations of the servers in this job
    loads: int = 1
    places: int = 0  # largest number of workers, elastic ones included; 0: `workers`
    options: Options = field(init=False)

    def __post_init__(self) -> None:
        self.options = Options.read(self.spec.options)
        if len(self.trainable.flavor.optimizers(self.trainable.model)) > 1:
            raise CaptureError("NFDT needs a model with one optimizer. Received: several; use --capture replica")
        if self.shards > 1 and self.spec.fit.batch_hooks == BatchHooks.STATE:
            raise UserError(
                "--ps must be 1 with a callback whose hooks may use the model at each batch (save_freq, or a hook of "
                f"the script's own). Received: {self.shards}"
            )
        self.ownership = own(self.trainable, self.shard, self.shards)
        self.rule = algorithm_of(self.options, self.trainable.model.optimizer, self.trainable.trainable)
        if self.shards > 1 and self.rule.local_steps is None:
            check_splittable(self.trainable.model.optimizer)
        self.lanes = lanes_of(self.options, self.rule, self.workers, fed=isinstance(self.spec.data, FeedData))
        self.trainable.load(self.spec.state, self.blobs)
        part, own_optimizer = self.ownership.part, None
        if self.rule.optimizer is not None:
            own_optimizer = server_optimizer(
                self.trainable.flavor.name, self.rule.optimizer, part.trainable, self.shards
            )
        self.applier = ModelApplier(part, own_optimizer)
        self.layout = Layout.of(part, compressors.make(self.options.compress))

    def load(self, changed: State) -> None:
        """Write the state that the client's callbacks changed, and drop the blob if this server reads it last."""
        if changed.model.id or changed.optimizer.id:
            self.trainable.load(changed, self.blobs)
            self.applier.refresh()
            self.loads += bool(changed.model.id)

    @property
    def groups(self) -> list[list[Any]]:
        """All variables of this server by group: the model's, the captured optimizer's, the algorithm's optimizer's."""
        own = [] if self.applier.optimizer is None else list(self.applier.optimizer.variables)
        return [[*self.trainable.trainable, *self.trainable.non_trainable], self.trainable.optimizer, own]

    def put_snapshot(self, end: EpochEnd | StepEnd) -> None:
        """Set the state of a message: all variables, or with several shards those that this one owns (shards.merge)."""
        model, optimizer = self.trainable.model_arrays(), self.trainable.optimizer_arrays()
        if self.shards > 1:
            model = partial(self._model_positions(), model)
            optimizer = partial(self.ownership.optimizer, optimizer)
        end.state.model.CopyFrom(self.blobs.put_arrays(model))
        end.state.optimizer.CopyFrom(self.blobs.put_arrays(optimizer))

    def epoch_end(self, end: EpochEnd) -> Event:
        """Return the event `end` with a snapshot of the variables that this server owns."""
        self.put_snapshot(end)
        return Event(job=self.spec.id, epoch_end=end)

    def _model_positions(self) -> list[int]:
        """Return the positions of this shard's variables; shard 0 adds those that no shard owns: seeds and strings."""
        if self.shard:
            return self.ownership.model
        owned = {i for shard in range(1, self.shards) for i in own(self.trainable, shard, self.shards).model}
        count = len(self.trainable.trainable) + len(self.trainable.non_trainable)
        return [i for i in range(count) if i not in owned]


WRITTEN = -1, -1  # no worker: what a callback's states have beyond the workers' sum
METRICS_WRITTEN = (
    "a callback changed the states of metrics, as evaluate() does, and NFDT's workers add up their own; hfdt run "
    "supports such callbacks"
)


class StepMetrics:
    """Lock step: the metric states of each worker's last applied step. Pushes bring them as blobs."""

    def __init__(self, blobs: Blobs, trainable: Trainable) -> None:
        self._blobs, self._trainable = blobs, trainable
        self._unread: dict[str, BlobRef] = {}  # of pushes that are not applied, some of which never will be
        self.states: dict[tuple[int, int], list[Array]] = {}  # by rank and incarnation, or WRITTEN

    def arrive(self, ref: BlobRef) -> None:
        """Note the blob of a push."""
        self._unread[ref.id] = ref

    def read(self, worker: tuple[int, int], gradient: WorkerGradient) -> None:
        """Read the blob of an applied push, and drop it."""
        self.states[worker] = [a.copy() for a in self._blobs.get_arrays(gradient.metrics)]
        self._blobs.drop(self._unread.pop(gradient.metrics.id))

    def write(self, ref: BlobRef) -> None:
        """Go on from the states that a callback wrote: workers keep their own.

        Raises UserError where the logs are no results of sums: of metrics or a step of the script's own.
        """
        flavor, model = self._trainable.flavor, self._trainable.model
        written, states = self._blobs.get_arrays(ref), [s for worker, s in self.states.items() if worker != WRITTEN]
        total = add_up(states) if states else [np.zeros_like(a) for a in written]
        keras_step = is_of_keras(flavor, model, "train_step", "compute_metrics")
        sums = keras_step and all(map(of_library, with_inner(model.metrics)))
        if not sums or not np.isfinite(sum(map(np.sum, total))):
            raise UserError(METRICS_WRITTEN)
        self.states[WRITTEN] = [a - t for a, t in zip(written, total, strict=True)]

    def put_sum(self) -> BlobRef:
        """Store the sum over all workers."""
        return self._blobs.put_arrays(add_up(list(self.states.values())))

    def clear(self) -> None:
        """Forget an epoch, and drop the blobs of its pushes that were not applied."""
        for ref in self._unread.values():
            self._blobs.drop(ref)
        self._unread.clear()
        self.states.clear()


@dataclass(frozen=True)
class SchedulerState:
    """Shard 0's decisions. `missed`: by worker, the epoch end that the worker has not received yet."""

    epoch: Epoch | None
    missed: dict[int, int]
    ended: int
    incarnations: dict[int, int]
    number: int


class Leaf:
    """Placeholder for an array of the algorithm's state."""

    shape = ()


def save(
    job: ServedJob,
    core: AlgorithmState,
    send: Callable[[Event], None],
    epoch: int,
    number: int,
    end: EpochEnd | None = None,
    decided: SchedulerState | None = None,
) -> None:
    """Store a snapshot and report it to the engine. Does nothing if checkpoints are off or the store is full.

    `end` is given if the epoch has just ended.
    """
    if not job.options.checkpoint_s:
        return
    groups = [read(group) for group in job.groups]
    rule = core.shared, {worker: slot.mine for worker, slot in core.worker_states.items()}
    slots = {worker: (slot.version, slot.last_push) for worker, slot in core.worker_states.items()}
    end_bytes = None if end is None else end.SerializeToString()
    sizes, unused = [len(group) for group in groups], job.applier.unused
    known = (tree_map(lambda _: Leaf(), rule), slots, core.version, core.pulls, sizes, unused)
    head = np.frombuffer(pickle.dumps((*known, decided, end_bytes)), np.uint8)
    arrays = [head, *chain(*groups), *(array_over(leaf) for leaf in leaves(rule))]
    try:
        ref = job.blobs.put_arrays([np.uint32(_checksum(arrays)), *arrays])
    except UserError as error:
        print(f"the checkpoint was not saved: {error}", file=sys.stderr, flush=True)
        return
    part = Checkpoint(number=number, epoch=epoch, running=end is None, state=ref)
    send(Event(job=job.spec.id, checkpoint=part))


def restore(job: ServedJob, core: AlgorithmState, ref: BlobRef) -> tuple[Any, EpochEnd | None]:
    """Load a snapshot of `save`. Return the scheduler's decisions, and the epoch's end if it had ended.

    Raises:
        UserError: The snapshot is damaged.
    """
    head, *arrays = _whole(job, ref)
    rule, slots, version, pulls, sizes, unused, decided, end_bytes = pickle.loads(head.tobytes())
    rest = iter(arrays)
    for group, size in zip(job.groups, sizes, strict=True):
        write(group, list(islice(rest, size)))
    job.applier.restore(unused)
    shared, mine = lower(rule, [tf.constant(array) for array in rest])
    states = {worker: WorkerState(mine[worker], *counts) for worker, counts in slots.items()}
    core.restore(shared, states, version, pulls)
    return decided, None if end_bytes is None else EpochEnd.FromString(end_bytes)


def _whole(job: ServedJob, ref: BlobRef) -> list[Array]:
    try:
        checksum, *arrays = job.blobs.get_arrays(ref)
        if int(checksum) == _checksum(arrays):
            return arrays
    except (KeyError, ValueError):  # cut short, or no table of arrays
        pass
    raise UserError(
        f"the checkpoint of server {job.shard} in shared memory is damaged; --run-dir saves each epoch's end on disk, "
        "from where --resume continues"
    )


def _checksum(arrays: Sequence[Array]) -> int:
    """Return the CRC-32 of dtypes, shapes and bytes: about a second a gigabyte."""
    found = 0
    for array in map(np.asarray, arrays):
        found = zlib.crc32(f"{array.dtype.name}{array.shape}".encode(), found)
        found = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, found)
    return found


def served(kind: Callable[..., Any], job: ServedJob, workers: int, send: Callable[[Event], None]) -> Any:
    """Return a new shard service of class `kind`; it adds spans to the timeline if the job's options ask for them."""
    if not job.options.timeline:
        return kind(job, workers, send)
    recorder = SpanRecorder(f"server {job.shard}", send)
    return kind(job, workers, recorder.send, applier=TracedApplier(job.applier, recorder))


@dataclass(frozen=True)
class TracedApplier:
    """An applier that records the spans of each push: `queue`, from its arrival to its turn, and `apply`."""

    inner: Applier
    recorder: SpanRecorder

    def init(self, rule: AsyncAlgorithm, workers: int) -> tuple[Any, Any]:
        """Return what `inner` returns, as all methods do."""
        return self.inner.init(rule, workers)

    def pull(self, rule: AsyncAlgorithm, shared: Any, mine: Any, worker: int) -> tuple[Any | None, Any, Any]:
        return self.inner.pull(rule, shared, mine, worker)

    def push(
        self, rule: AsyncAlgorithm, shared: Any, mine: Any, worker: int, gradient: WorkerGradient, tau: int
    ) -> tuple[bool, Any, Any]:
        start, thread = trace_time(), f"pushes of lane {worker}"
        applied = self.inner.push(rule, shared, mine, worker, gradient, tau)
        self.recorder.add(thread, "queue", gradient.arrived, start)
        self.recorder.add(thread, "apply", start, trace_time())
        return applied

    def flush(self, rule: AsyncAlgorithm, shared: Any) -> tuple[bool, Any]:
        return self.inner.flush(rule, shared)
