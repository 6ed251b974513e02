"""Capture of a tf.data pipeline as a graph and arrays, where it yields the same elements on every rank."""

from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle
import tensorflow as tf

from client_shim.capture import kept_orders, orders
from fdt import compat
from fdt.blobs import Blobs
from fdt.data import division, pipeline
from fdt.data.pipeline import Refused
from fdt.job import GraphData
from fdt.rpc.tensor_pb2 import BlobRef

_BatchMap = Callable[..., Any]


def weighing(flavor: str, class_weight: dict[int, float] | None) -> _BatchMap | None:
    """Return Keras's own map function that folds `class_weight` into a batch's sample weights; None without it."""
    return compat.of(flavor).make_class_weight_map_fn(class_weight) if class_weight else None


def weighted(dataset: Any, weigh: _BatchMap | None) -> Any:
    """Return `dataset` with class weights folded in."""
    return dataset if weigh is None else dataset.map(weigh)


class Slices(NamedTuple):
    """A divided pipeline, and the rows of its full batches before the division."""

    dataset: Any
    rows: int


def divided(dataset: Any, weigh: _BatchMap | None) -> tuple[Slices | None, str]:
    """Return the divided pipeline for any rank, or None; and which rows a rank maps, and why ("": no row is mapped).

    Args:
        dataset: A tf.data.Dataset of batches.
        weigh: Folds class weights into the batches.
    """
    found = division.find(dataset)
    if isinstance(found, str):
        return None, found and f"every rank maps all rows, because {found}"
    slices = division.local(found, division.RANK, division.SIZE, division.WIDTH)
    if weigh is not None:
        slices = slices.map(lambda batch, share: (weigh(*batch), share))
    return Slices(slices, found.batch_rows), f"each rank maps only its rows ({found.where})"


def mapped_by_client(dataset: Any) -> str:
    """Return why the maps of a pipeline that only the client can read are not divided; "" where no row is mapped."""
    found = division.find(dataset)
    return f"the script maps all rows, because {found}" if found and isinstance(found, str) else ""


def capture(
    dataset: Any, blobs: Blobs, seed: int = 0, slices: Slices | None = None, *, in_order: bool = True
) -> GraphData:
    """Put the pipeline's graph and arrays into `blobs`.

    Args:
        dataset: A tf.data.Dataset of batches.
        blobs: The shared memory of the client and the engine.
        seed: The pipeline's seed; 0: the job's own.
        slices: The division of `dataset`, which workers rebuild instead.
        in_order: Whether the order of the rows matters.

    Returns:
        The pipeline as data of a job.

    Raises:
        Refused: The pipeline must stay in the client (fdt.data.pipeline).
    """
    spec = dataset.element_spec
    _refuse_others(spec)
    kept_orders.refuse(dataset)
    iterators = orders.drawn(dataset) if in_order else 0
    parts = pipeline.take_apart(dataset if slices is None else slices.dataset)
    return GraphData(
        graph=blobs.put(parts.graph),
        constants=blobs.put_arrays(parts.constants) if parts.constants else BlobRef(),
        spec=blobs.put(cloudpickle.dumps(spec)),
        cardinality=int(dataset.cardinality()),
        seed=seed,
        divided_rows=0 if slices is None else slices.rows,
        iterators=iterators,
    )


def _refuse_others(spec: Any) -> None:
    for leaf in tf.nest.flatten(spec):
        known = isinstance(leaf, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec))
        if not known and type(leaf).__name__ != "NoneTensorSpec":
            raise Refused(f"its elements hold a {type(leaf).__name__}")
        if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank == 0:
            raise Refused("its elements are single values, not batches")
