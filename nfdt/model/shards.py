"""Whole variables shared out over K servers by bytes, and the servers' snapshots put together again.

Shard 0 alone decides the order of pulls and pushes; the others replay it (follower.py). Every server builds the whole
model, applies the optimizer to its own variables only, and its snapshot carries only those and their slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fdt.errors import UserError
from fdt.keras.variables import is_loss_scaled, tensor_variable
from fdt.tensors import Array
from nfdt.model.variables import OwnedVariables, is_scalar, is_summable


def owners(sizes: Sequence[int], shards: int) -> list[int]:
    """The shard of each variable: the largest first, each to the emptiest shard. Ties go to the lower number."""
    load = [0] * shards
    owner = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        owner[index] = load.index(min(load))
        load[owner[index]] += max(1, sizes[index])
    return owner


@dataclass(frozen=True)
class Ownership:
    """Positions that one server owns in State.model and State.optimizer, and its variables."""

    part: OwnedVariables
    trainable: list[int]  # positions among all trainable
    others: list[int]  # positions among `summable_others`
    model: list[int]  # positions in State.model
    optimizer: list[int]  # positions in State.optimizer


def own(trainable: Any, shard: int, shards: int) -> Ownership:
    """What server `shard` of `shards` owns of a Trainable. The same in every process.

    Raises UserError for an optimizer that looks at all gradients at once and cannot be split.
    """
    optimizer = trainable.model.optimizer
    if shards > 1:
        check_splittable(optimizer)
    others = summable_others(trainable)
    sizes = [_nbytes(v) for v in [*trainable.trainable, *others]]
    owner = owners(sizes, shards)
    count = len(trainable.trainable)
    mine = [i for i in range(count) if owner[i] == shard]
    my_others = [i for i in range(len(others)) if owner[count + i] == shard]
    scalars = [v for v in optimizer_variables(trainable) if is_scalar(v)] if shard == 0 else []
    part = OwnedVariables(optimizer, [trainable.trainable[i] for i in mine], [others[i] for i in my_others], scalars)
    by_id = {id(v): count + i for i, v in enumerate(trainable.non_trainable)}
    model = [*mine, *(by_id[id(others[i])] for i in my_others)]
    slots = slot_owners(optimizer, trainable.trainable, owner)
    optimizer_positions = [i for i, v in enumerate(trainable.optimizer) if slots.get(id(v), 0) == shard]
    return Ownership(part, mine, my_others, model, optimizer_positions)


def optimizer_variables(trainable: Any) -> list[Any]:
    return list(trainable.optimizer)


def summable_others(trainable: Any) -> list[Any]:
    """Non-trainable variables whose changes travel: numbers, and not states of random generators."""
    seeds = {id(v) for v in trainable.seeds}
    return [v for v in trainable.non_trainable if id(v) not in seeds and is_summable(v)]


def slot_owners(optimizer: Any, trainable: Sequence[Any], owner: Sequence[int]) -> dict[int, int]:
    """Shard by id of each optimizer variable that belongs to one trainable variable.

    Keras's optimizers keep their slots in lists with an entry per variable they were built for.
    """
    found: dict[int, int] = {}
    for holder in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        built_for = list(getattr(holder, "_trainable_variables", None) or trainable)
        shard_of = {id(v): owner[i] for i, v in enumerate(trainable)}
        for slots in vars(holder).values() if holder is not None else ():
            if isinstance(slots, list) and len(slots) == len(built_for):
                pairs = zip(slots, built_for, strict=True)
                found.update({id(s): shard_of.get(id(v), 0) for s, v in pairs if hasattr(s, "assign")})
    return found


def check_splittable(optimizer: Any) -> None:
    """Raises UserError when the optimizer's update of one variable depends on the gradients of others."""
    if is_loss_scaled(optimizer):
        raise UserError(
            "--ps must be 1 with a LossScaleOptimizer, which looks at all gradients at once. Received: more"
        )
    if getattr(optimizer, "global_clipnorm", None):
        raise UserError("--ps must be 1 with global_clipnorm, a norm over all gradients. Received: more")


def merge(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """Whole groups from partial ones, each [positions, array, array, ...]. Variables that nobody owns are missing:
    raises ValueError."""
    found: dict[int, Array] = {}
    for positions, *arrays in parts:
        found.update(zip(positions.tolist(), arrays, strict=True))
    if sorted(found) != list(range(len(found))):
        raise ValueError(f"every variable must be owned by a shard. Received: {sorted(found)}")
    return [found[i] for i in range(len(found))]


def partial(positions: Sequence[int], arrays: Sequence[Array]) -> list[Array]:
    """What `merge` takes: `arrays` of a whole group, cut down to `positions`."""
    return [np.asarray(positions, np.int64), *(arrays[i] for i in positions)]


def _nbytes(variable: Any) -> int:
    tensor = tensor_variable(variable)
    return int(np.prod(tensor.shape.as_list(), dtype=np.int64)) * int(tensor.dtype.size)
