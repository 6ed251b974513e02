"""The data of `--batch per-worker`, Horovod's convention: each rank takes whole batches, `size` of them a global batch.

A larger learning rate and a warm-up go with it (Goyal et al. 2017, arXiv:1706.02677).
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from fdt.data import source
from fdt.errors import UserError
from fdt.keras.variables import inner_optimizer
from fdt.patches import Patch, patched
from fdt.typing import Dataset
from hfdt.algorithm import RoundAlgorithm, SyncAlgorithm

SCALES: dict[str, Callable[[int], float]] = {"linear": float, "sqrt": math.sqrt, "none": lambda size: 1.0}


def cut(whole: Dataset, rank: int, size: int) -> Dataset:
    """Select a rank's batches: of each group of `size` consecutive batches, the one at `rank`.

    Args:
        whole: A data set of (batch, [n, n]); n is the number of samples.
        rank: This rank.
        size: The number of ranks.

    Returns:
        A data set of (batch, [samples of this rank, samples of the group]). Where the data end within a group, a rank
            without a batch gets the first row of the group's first batch and [0, samples of the group].
    """

    def of_group(batch: Any, share: Any) -> Dataset:
        batches = tf.data.Dataset.zip((batch, share))  # a window is a structure of datasets
        total = batches.reduce(tf.constant(0, tf.int64), _quiet(lambda count, element: count + element[1][0]))
        idle = batches.take(1).map(_quiet(lambda batch, _: (_first_row(batch), tf.zeros([2], tf.int64))))
        own = batches.skip(rank).concatenate(idle).take(1)
        return own.map(_quiet(lambda batch, share: (batch, tf.stack([share[0], total]))))

    return whole.map(_quiet(_open)).window(size).flat_map(_quiet(of_group)).prefetch(2)


def steps(batches: int | None, size: int) -> int | None:
    """Return the number of global batches among `batches` batches."""
    return None if batches is None else -(-batches // size)


@contextlib.contextmanager
def scaled_rate(optimizer: Any, scale: str, size: int, warmup_steps: int) -> Iterator[None]:
    """Multiply the optimizer's learning rate: "linear" by size, "sqrt" by its square root, "none" by 1.

    The factor rises from 1 during `warmup_steps` steps. The rate is scaled where the optimizer reads it: callbacks and
    the client see the script's own. Keras 3 only.
    """
    if scale not in SCALES:
        raise UserError(f"--lr-scale must be one of {', '.join(SCALES)}. Received: {scale!r}")
    factor = SCALES[scale](size)
    inner = inner_optimizer(optimizer)
    if factor == 1.0:
        yield
        return
    if not hasattr(inner, "_get_current_learning_rate"):
        raise UserError(
            "--lr-scale linear and sqrt need a Keras 3 optimizer. Received: a tf_keras optimizer; use --lr-scale none"
        )

    def rate(original: Any) -> Any:
        done = tf.cast(tf.convert_to_tensor(inner._iterations), tf.float32) / max(warmup_steps, 1)  # of batches
        ramp = tf.minimum(done, 1.0) if warmup_steps else tf.constant(1.0)
        return tf.cast(original(), tf.float32) * (1.0 + (factor - 1.0) * ramp)

    with patched([Patch(inner, "_get_current_learning_rate", rate)]):
        yield


def scale(
    stack: contextlib.ExitStack, trainable: Any, rule: SyncAlgorithm, options: Mapping[str, str], data: Any, size: int
) -> list[str]:
    """Scale the optimizer's rate by a job's options until `stack` closes. Returns lines for the user."""
    warmup = float(options.get("warmup_epochs", "0"))
    count = steps(data.steps, size) or 0
    # in a round each worker minimises alone, at a rate that does not depend on the number of workers
    alone = isinstance(rule, RoundAlgorithm) and not rule.batches
    how = options.get("lr_scale", "none" if alone else "linear")
    inner = {id(inner_optimizer(o)): inner_optimizer(o) for o in trainable.flavor.optimizers(trainable.model)}
    for optimizer in inner.values():
        stack.enter_context(scaled_rate(optimizer, how, size, round(warmup * count)))
    ignored = warmup > 0 and not count
    return ["--warmup-epochs is not used: the number of steps of an epoch is not known"] if ignored else []


_quiet = tf.autograph.experimental.do_not_convert


def _open(batch: Any, share: Any) -> Any:
    """Make the batch's length unknown to the graph, since a single row may stand in for a batch."""

    def opened(leaf: Any) -> Any:
        dense = isinstance(leaf, tf.Tensor) and leaf.shape.rank
        return tf.compat.v1.placeholder_with_default(leaf, [None, *leaf.shape[1:]]) if dense else leaf

    return tf.nest.map_structure(opened, batch), share


def _first_row(batch: Any) -> Any:
    return source.cut_between(batch, 0, 0, 2)[0]
