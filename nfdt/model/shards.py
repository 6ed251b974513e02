"""Distribution of whole variables over K servers by size, and the merge of the servers' snapshots.

Shard 0 alone decides the order of pulls and pushes; the other shards replay it (nfdt/server/follower.py). Every server
builds the whole model and updates its own variables only. Its snapshot holds only these variables and their slots.

`Changed` and `change_of`: the changes of variables besides the weights, which are parts of a push.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.blobs import Blobs
from fdt.errors import UserError
from fdt.keras.variables import is_loss_scaled, tensor_variable, variables_of_slots
from fdt.ops import finite_part
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.trainable import read
from fdt.typing import Array, Tensor
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


@dataclass(frozen=True)
class Changed:
    """Variables besides the weights that one step changes.

    Attributes:
        left: What is left of a variable's old value after the step, by the variable's position: d**k of a moving
            average with decay d that is assigned k times, else 1.
        added: Names of those of floating numbers that are no moving averages: servers add their changes.
    """

    left: dict[int, float]
    added: list[str]

    @classmethod
    def by(cls, assigned: Mapping[Any, int], variables: Sequence[Any], averages: Mapping[int, float]) -> "Changed":
        """Return those of `variables` that a step has `assigned`, a count by `ref()`, with the decays of averages."""
        tensors = {i: t for i, t in enumerate(map(tensor_variable, variables)) if t.ref() in assigned}
        left = {i: averages.get(id(t), 1.0) ** assigned[t.ref()] for i, t in tensors.items()}
        own = [variables[i] for i, t in tensors.items() if t.dtype.is_floating and id(t) not in averages]
        return cls(left, [str(getattr(v, "path", v.name)) for v in own])


def change_of(after: Tensor, before: Tensor, decay: float) -> Tensor:
    """Return what is to be added to `decay` times the server's value.

    So a moving average makes the same step there as here: from v to d v + (1 - d) b. Sums of plain differences grow
    beyond all bounds where n workers have pulled one value and n (1 - d) is large. NaN and infinity count as 0, with
    which a running maximum begins; the server does the same.
    """
    if after.dtype.is_bool:  # the last value is kept
        return after
    before = finite_part(before)
    return after - before if decay == 1.0 else after - tf.cast(tf.constant(decay), after.dtype) * before
