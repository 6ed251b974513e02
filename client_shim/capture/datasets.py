"""Capture of a tf.data pipeline as a graph and arrays, where it yields the same elements on every rank."""

from typing import Any

import cloudpickle
import tensorflow as tf

from fdt import compat
from fdt.blobs import Blobs
from fdt.data import pipeline
from fdt.data.pipeline import Refused
from fdt.job import GraphData
from fdt.rpc.tensor_pb2 import BlobRef


def weighted(flavor: str, dataset: Any, class_weight: dict[int, float] | None) -> Any:
    """Return `dataset` with `class_weight` folded into its sample weights by Keras's own map function."""
    if not class_weight:
        return dataset
    return dataset.map(compat.of(flavor).make_class_weight_map_fn(class_weight))


def capture(dataset: Any, blobs: Blobs, seed: int = 0) -> GraphData:
    """Put the pipeline's graph and arrays into `blobs`.

    Args:
        dataset: A tf.data.Dataset of batches.
        blobs: The shared memory of the client and the engine.
        seed: The pipeline's seed; 0: the job's own.

    Returns:
        The pipeline as data of a job.

    Raises:
        Refused: The pipeline must stay in the client (fdt.data.pipeline).
    """
    spec = dataset.element_spec
    _refuse_others(spec)
    parts = pipeline.take_apart(dataset)
    return GraphData(
        graph=blobs.put(parts.graph),
        constants=blobs.put_arrays(parts.constants) if parts.constants else BlobRef(),
        spec=blobs.put(cloudpickle.dumps(spec)),
        cardinality=int(dataset.cardinality()),
        seed=seed,
    )


def static_batch(dataset: Any) -> int | None:
    """Return the rows of a batch where the pipeline's element_spec fixes them; otherwise None."""
    leaves = [spec for spec in tf.nest.flatten(dataset.element_spec) if isinstance(spec, tf.TensorSpec)]
    return leaves[0].shape[0] if leaves and leaves[0].shape.rank else None


def _refuse_others(spec: Any) -> None:
    for leaf in tf.nest.flatten(spec):
        known = isinstance(leaf, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec))
        if not known and type(leaf).__name__ != "NoneTensorSpec":
            raise Refused(f"its elements hold a {type(leaf).__name__}")
        if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank == 0:
            raise Refused("its elements are single values, not batches")
