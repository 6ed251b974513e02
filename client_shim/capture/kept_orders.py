"""Unseeded shuffles that keep one order, whose `take` and `skip` divide rows into training and test data.

Workers must have the order of the script's process. So such a shuffle gets a seed as the script makes it. One that was
made before (in a notebook, or before `hfdt.fit`) is drawn by the client.
"""

import contextlib
import functools
import random
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from client_shim.capture.orders import is_seeded, stages_of
from fdt.compat.tensorflow import context, dataset_ops
from fdt.data.pipeline import Refused
from fdt.patches import Patch, patched
from fdt.typing import Dataset


@contextlib.contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed each such shuffle that is made within the context.

    Args:
        seed: Determines the seeds; None: they are random.
    """
    draw = random.SystemRandom() if seed is None else random.Random(seed)
    with patched([Patch(dataset_ops.DatasetV2, "shuffle", functools.partial(_shuffle, draw))]):
        yield


def _shuffle(
    draw: random.Random,
    original: Any,
    dataset: Dataset,
    buffer_size: Any,
    seed: Any = None,
    reshuffle_each_iteration: Any = True,
    name: Any = None,
) -> Dataset:
    """Shuffle, by a seed if each pass has one order, but in a traced function, whose datasets would share a seed."""
    unseeded = seed is None and context.global_seed() is None
    if unseeded and reshuffle_each_iteration is False and tf.executing_eagerly():
        seed = draw.randrange(1, 1 << 31)
    return original(dataset, buffer_size, seed, reshuffle_each_iteration, name)


def refuse(dataset: Dataset) -> None:
    """Raise Refused if an unseeded shuffle of the pipeline keeps one order."""
    for stage in stages_of(dataset):
        if getattr(stage, "_reshuffle_each_iteration", None) is False and not is_seeded(stage):
            raise Refused("an unseeded shuffle keeps one order of rows, which only the script's process knows")
