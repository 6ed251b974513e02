"""Snapshot of a parameter server, as one blob from which a new server continues.

It holds the variables, the optimizers, the algorithm's state with every worker's, and push ids. Shard 0 adds the
scheduler's decisions, such as the assignment of batches. All shards save at the same position of shard 0's log. A
snapshot counts only when all parts exist (nfdt/engine/recovery.py), so a half-written one is never read.
"""

import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.errors import UserError
from fdt.rpc.session_pb2 import Checkpoint, EpochEnd, Event
from fdt.rpc.tensor_pb2 import BlobRef
from nfdt.server.algorithm_state import AlgorithmState, WorkerState
from nfdt.server.batch_dispatcher import Epoch
from nfdt.server.job import ServedJob
from nfdt.transport.buffers import array_over
from nfdt.tree import leaves, lower, tree_map


@dataclass(frozen=True)
class SchedulerState:
    """Shard 0's decisions. `missed` is by worker the epoch end that it must still receive."""

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
    groups = [job.trainable.flavor.read(group) for group in job.groups]
    rule = core.shared, {worker: slot.mine for worker, slot in core.worker_states.items()}
    slots = {worker: (slot.version, slot.last_push) for worker, slot in core.worker_states.items()}
    said = None if end is None else end.SerializeToString()
    known = (tree_map(lambda _: Leaf(), rule), slots, core.version, core.pulls, [len(group) for group in groups])
    head = np.frombuffer(pickle.dumps((*known, decided, said)), np.uint8)
    try:
        ref = job.blobs.put_arrays([head, *chain(*groups), *(array_over(leaf) for leaf in leaves(rule))])
    except UserError as error:
        print(f"the checkpoint was not saved: {error}", file=sys.stderr, flush=True)
        return
    part = Checkpoint(number=number, epoch=epoch, running=end is None, state=ref)
    send(Event(job=job.spec.id, checkpoint=part))


def restore(job: ServedJob, core: AlgorithmState, ref: BlobRef) -> tuple[Any, EpochEnd | None]:
    """Load a snapshot of `save`. Return the scheduler's decisions, and the epoch's end if it had ended."""
    head, *arrays = job.blobs.get_arrays(ref)
    rule, slots, version, pulls, sizes, decided, said = pickle.loads(head.tobytes())
    rest = iter(arrays)
    for group, size in zip(job.groups, sizes, strict=True):
        job.trainable.flavor.write(group, list(islice(rest, size)))
    job.applier.refresh()
    shared, mine = lower(rule, [tf.constant(array) for array in rest])
    states = {worker: WorkerState(mine[worker], *counts) for worker, counts in slots.items()}
    core.restore(shared, states, version, pulls)
    return decided, None if said is None else EpochEnd.FromString(said)
