"""Distribution of whole variables over K servers by size, and the merge of the servers' snapshots.

Shard 0 alone decides the order of pulls and pushes; the other shards replay it (nfdt/server/follower.py). Every server
builds the whole model and updates its own variables only. Its snapshot holds only these variables and their slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.blobs import Blobs
from fdt.errors import UserError
from fdt.keras.variables import is_loss_scaled, tensor_variable, variables_of_slots
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.trainable import read
from fdt.typing import Array
from nfdt.model.variables import OwnedVariables


def owners(sizes: Sequence[int], shards: int, trainable: int) -> list[int]:
    """Return the shard of each variable.

    The variables are taken by falling size, the trainable ones first, and each goes to the shard with the fewest bytes.
    Ties go to the lower number. So shard 0, which has the optimizer's count of steps, has a trainable one.

    Args:
        sizes: Size of each variable in bytes.
        shards: Number of shards.
        trainable: How many of them, from the first on, are trainable.
    """
    load = [0] * shards
    owner = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: (i >= trainable, -sizes[i], i)):
        owner[index] = load.index(min(load))
        load[owner[index]] += max(1, sizes[index])
    return owner


@dataclass(frozen=True)
class Ownership:
    """The variables of one server, and their positions in State.model and State.optimizer."""

    part: OwnedVariables
    trainable: list[int]  # positions among all trainable
    others: list[int]  # positions among `pushed_others`
    model: list[int]  # positions in State.model
    optimizer: list[int]  # positions in State.optimizer


def own(trainable: Any, shard: int, shards: int) -> Ownership:
    """Return the variables of a Trainable that server `shard` of `shards` owns, the same in every process.

    Raises:
        UserError: If a variable of the optimizer has elements of no known weight.
    """
    optimizer, others = trainable.model.optimizer, pushed_others(trainable)
    sizes = [_nbytes(v) for v in [*trainable.trainable, *others]]
    count = len(trainable.trainable)
    owner = owners(sizes, shards, count)
    mine = [i for i in range(count) if owner[i] == shard]
    my_others = [i for i in range(len(others)) if owner[count + i] == shard]
    scalars = [v for v in trainable.optimizer if tensor_variable(v).shape.rank == 0] if shard == 0 else []
    part = OwnedVariables(optimizer, [trainable.trainable[i] for i in mine], [others[i] for i in my_others], scalars)
    by_id = {id(v): count + i for i, v in enumerate(trainable.non_trainable)}
    model = [*mine, *(by_id[id(others[i])] for i in my_others)]
    slots = slot_owners(optimizer, trainable.trainable, owner)
    lost = [v.name for v in trainable.optimizer if id(v) not in slots and tensor_variable(v).shape.rank]
    if lost and shards > 1:
        raise UserError(
            f"--ps must be 1 with {type(optimizer).__name__}, which does not tell the weight that its variable "
            f"{lost[0]!r} belongs to. Received: {shards}"
        )
    optimizer_positions = [i for i, v in enumerate(trainable.optimizer) if slots.get(id(v), 0) == shard]
    return Ownership(part, mine, my_others, model, optimizer_positions)


def pushed_others(trainable: Any) -> list[Any]:
    """Return the non-trainable variables whose changes are pushed: without states of random generators, and strings."""
    seeds = {id(v) for v in trainable.seeds}
    others = [(v, tf.as_dtype(tensor_variable(v).dtype)) for v in trainable.non_trainable if id(v) not in seeds]
    return [v for v, dtype in others if dtype.is_floating or dtype.is_integer or dtype.is_bool]


def put_seeds(trainable: Any, blobs: Blobs) -> BlobRef | None:
    """Store the states of a worker's random generators, which a later job continues; None: there are none.

    Returns:
        The blob of their positions in State.model and their arrays, as `partial` returns them.
    """
    position = {id(v): len(trainable.trainable) + i for i, v in enumerate(trainable.non_trainable)}
    positions = np.asarray([position[id(v)] for v in trainable.seeds], np.int64)
    return blobs.put_arrays([positions, *read(trainable.seeds)]) if trainable.seeds else None


def slot_owners(optimizer: Any, trainable: Sequence[Any], owner: Sequence[int]) -> dict[int, int]:
    """Return the shard of each optimizer variable that belongs to one trainable variable, keyed by id."""
    shard_of = {id(v): owner[i] for i, v in enumerate(trainable)}
    return {slot: shard_of.get(id(v), 0) for slot, v in variables_of_slots(optimizer, trainable).items()}


def check_splittable(optimizer: Any) -> None:
    """Check that the update of one variable does not depend on the gradients of others.

    Raises:
        UserError: If it does.
    """
    if is_loss_scaled(optimizer):
        raise UserError("--ps must be 1 with a LossScaleOptimizer, which needs all gradients at once. Received: more")
    if getattr(optimizer, "global_clipnorm", None):
        raise UserError("--ps must be 1 with global_clipnorm, which needs all gradients at once. Received: more")
    if hasattr(optimizer, "_u_product_counter"):
        raise UserError("--ps must be 1 with tf_keras's Nadam, whose step depends on all variables. Received: more")


def merge(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """Merge partial groups, each [positions, array, array, ...], into one whole group.

    Raises:
        ValueError: If no group holds some variable.
    """
    found: dict[int, Array] = {}
    for positions, *arrays in parts:
        found.update(zip(positions.tolist(), arrays, strict=True))
    if sorted(found) != list(range(len(found))):
        raise ValueError(f"every variable must be owned by a shard. Received: {sorted(found)}")
    return [found[i] for i in range(len(found))]


def partial(positions: Sequence[int], arrays: Sequence[Array]) -> list[Array]:
    """Return `arrays` of a whole group, restricted to `positions`, in the form that `merge` takes."""
    return [np.asarray(positions, np.int64), *(arrays[i] for i in positions)]


def _nbytes(variable: Any) -> int:
    tensor = tensor_variable(variable)
    return int(np.prod(tensor.shape.as_list(), dtype=np.int64)) * int(tensor.dtype.size)
