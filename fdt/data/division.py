"""The division of a tf.data pipeline: a rank maps only the rows of each batch that it keeps.

The maps directly before `batch(n)` are functions of one row each. A pure function gives a row the same value whichever
other rows are mapped. So a rank batches the rows before these maps, takes its slice of the batch and maps the slice.
Every rank reads all that comes before these maps whole, in the same order as without a division.

A map is divided only where that is proven. No operation of its function has a state or calls Python. The shapes of its
rows are static: other shapes could make `batch` fail for rows of another rank.
"""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from fdt.compat.graphs import op_def_registry
from fdt.data.source import as_is
from fdt.typing import Batch, Dataset

_MAPS = {"_MapDataset", "_ParallelMapDataset"}
_BATCHES = {"_BatchDataset", "_ParallelBatchDataset"}
_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
_CALLS = {"StatefulPartitionedCall", "If", "While", "Case"}  # their functions are examined themselves
_GENERATORS = {"RngReadAndSkip", "RngSkip"}  # tf.random.Generator
_READS = {"LookupTableFindV2", "LookupTableSizeV2"}  # other operations change the table

# Stand in a serialized pipeline for the numbers of the rank that reads it (fdt/data/pipeline.py).
RANK, SIZE, WIDTH = 0x6664745F72616E6B, 0x6664745F73697A65, 0x6664745F77696474

_Transformation = Callable[[Dataset], Dataset]


class Division(NamedTuple):
    """A pipeline that can be divided.

    Attributes:
        rows: The rows before the divided maps.
        batch_rows: Rows of a full batch.
        where: File and line of the first divided map's function.
        batch: The script's `batch`.
        maps: The divided maps, and prefetches between them. They take rows as flat tuples, a share at the end.
        after: What follows `batch`.
        spec: The element_spec of whole batches.
    """

    rows: Dataset
    batch_rows: int
    where: str
    batch: _Transformation
    maps: list[_Transformation]
    after: list[_Transformation]
    spec: Any


def find(dataset: Dataset) -> Division | str:
    """Return the division of a pipeline of batches, or the reason why there is none: "" where no row is mapped."""
    after = [_with_options(dataset.options())]
    batched = dataset
    while (step := _after_batch(batched)) is not None:
        after.insert(0, step)
        batched = batched._input_dataset
    if type(batched).__name__ not in _BATCHES:
        return _between(batched, "makes the batches of")
    found: Division | None = None
    maps: list[_Transformation] = []
    rows, reason = batched._input_dataset, ""
    while (step := _before_batch(rows)) is not None:
        if type(rows).__name__ in _MAPS and (reason := _reason(rows, last=not maps)):
            break
        maps.insert(0, step)
        mapped, rows = rows, rows._input_dataset
        if type(mapped).__name__ in _MAPS:
            reason = f"the rows that the map at {_where(mapped)} takes have no static shape"
            if _is_static(rows.element_spec):
                size = int(batched._batch_size)
                found = Division(rows, size, _where(mapped), _batch(batched), [*maps], after, dataset.element_spec)
    return found or reason or _between(rows, "follows")


def width(batch_rows: int, size: int) -> int:
    """Return the rows that each of `size` ranks maps of a batch; a rank that keeps fewer repeats one."""
    return -(-batch_rows // size)


def local(division: Division, rank: int, size: int, rows: int) -> Dataset:
    """Return the divided pipeline of a rank: (batch, share) as Source.slices gives them.

    Args:
        division: The division.
        rank: The rank.
        size: The world size.
        rows: The `width`.
    """
    whole = division.batch(division.rows)
    place = tf.data.Dataset.from_tensors(tf.constant([rank, size, rows], tf.int64)).repeat()
    stream = tf.data.Dataset.zip((whole, place)).map(_slice).unbatch()
    for step in division.maps:
        stream = step(stream)

    @as_is
    def batch(*flat: Any) -> tuple[Batch, Any]:
        *leaves, shares = flat
        kept = tf.maximum(shares[0, 0], 1)
        return tf.nest.pack_sequence_as(division.spec, [leaf[:kept] for leaf in leaves]), shares[0]

    stream = stream.batch(rows).map(batch)
    for step in division.after:
        stream = step(stream)
    return stream


@as_is
def _slice(batch: Any, place: Any) -> tuple[Any, ...]:
    """Return a rank's rows by the rule of `cut` in fdt/data/epochs.py, and each row's share.

    The first or last row is repeated up to the width, so that every batch has equally many rows.
    """
    leaves = tf.nest.flatten(batch)
    rank, size, count = tf.unstack(place)
    total = tf.shape(leaves[0], tf.int64)[0]
    low, high = total * rank // size, total * (rank + 1) // size
    begin = tf.where(tf.equal(low, high), tf.zeros_like(low), low)
    picks = tf.minimum(begin + tf.range(count), tf.maximum(begin, high - 1))
    share = tf.stack([high - low, total])
    return *(tf.gather(leaf, picks) for leaf in leaves), tf.tile(share[None], [count, 1])


def _after_batch(dataset: Dataset) -> _Transformation | None:
    """Return a transformation that treats each batch alike; None for another one."""
    kind = type(dataset).__name__
    if kind == "_OptionsDataset":
        return lambda stream: stream  # `find` sets all options at the end
    if kind == "_PrefetchDataset":
        return lambda stream: stream.prefetch(int(dataset._buffer_size))
    if kind in ("_TakeDataset", "_SkipDataset", "_RepeatDataset"):
        name = kind.strip("_").removesuffix("Dataset").lower()
        return lambda stream: getattr(stream, name)(int(dataset._count))
    return None


def _before_batch(dataset: Dataset) -> _Transformation | None:
    """Return a transformation of rows one by one, for flat rows with a share; None for another one."""
    kind = type(dataset).__name__
    if kind not in _MAPS:
        return _after_batch(dataset) if kind in ("_OptionsDataset", "_PrefetchDataset") else None
    function = dataset._map_func.function

    @as_is
    def with_share(*flat: Any) -> tuple[Any, ...]:
        return *_inlined(function, flat[:-1]), flat[-1]

    return lambda stream: stream.map(with_share, **_parallel(dataset))


def _inlined(function: Any, arguments: Any) -> list[Any]:
    """Return the outputs of a traced function, whose operations are added to the current graph.

    TensorFlow does not serialize a pipeline in which a map calls a function that reads a table.
    """
    graph, current = function.graph, tf.compat.v1.get_default_graph()
    values = [*arguments, *map(current.capture, function.captured_inputs)]
    inputs = {tensor.name: value for tensor, value in zip(graph.inputs, values, strict=True)}
    names = [tensor.name for tensor in graph.outputs]
    outputs: list[Any] = tf.graph_util.import_graph_def(graph.as_graph_def(), inputs, names, name="row")
    for output, tensor in zip(outputs, graph.outputs, strict=True):
        output.set_shape(tensor.shape)  # a GraphDef has no shapes that Python has set
    return outputs


def _batch(dataset: Dataset) -> _Transformation:
    arguments = {"drop_remainder": bool(dataset._drop_remainder), **_parallel(dataset)}
    return lambda rows: rows.batch(int(dataset._batch_size), **arguments)


def _parallel(dataset: Dataset) -> dict[str, Any]:
    """Return the arguments of a parallel transformation; ranks need a deterministic order."""
    calls = getattr(dataset, "_num_parallel_calls", None)
    return {} if calls is None else {"num_parallel_calls": int(calls), "deterministic": True}


def _with_options(options: tf.data.Options) -> _Transformation:
    return lambda stream: stream.with_options(options)


def _is_static(spec: Any) -> bool:
    return all(isinstance(leaf, tf.TensorSpec) and leaf.shape.is_fully_defined() for leaf in tf.nest.flatten(spec))


def _reason(dataset: Dataset, *, last: bool) -> str:
    """Return the reason why a map cannot be divided, or "". `last`: `batch` follows it."""
    where = _where(dataset)
    if last and not _is_static(dataset.element_spec):
        return f"the rows that the map at {where} returns have no static shape"
    graph = dataset._map_func.function.graph.as_graph_def()
    for node in (*graph.node, *(node for function in graph.library.function for node in function.node_def)):
        if problem := _problem(node.op):
            return f"{node.op} at {where} {problem}"
    return ""


def _problem(op: str) -> str:
    definition = op_def_registry.get(op)
    if op in _PYTHON:
        return "runs Python"
    if definition is None or not definition.is_stateful or op in _CALLS or op in _READS:
        return ""
    random = any(attribute.name == "seed" for attribute in definition.attr) or op in _GENERATORS
    return "is random" if random else "has a state or an effect"


def _between(dataset: Dataset, relation: str) -> str:
    """Return that `dataset`, in its relation to a map before it, prevents a division; "" where no row is mapped."""
    kind = type(dataset).__name__
    if kind in _MAPS:
        return f"the map at {_where(dataset)} takes whole batches"
    if (before := _last_map(dataset)) is None:
        return ""
    name = re.sub("(?<!^)(?=[A-Z])", "_", kind.strip("_").removesuffix("Dataset")).lower()
    return f"`{name}` {relation} the map at {_where(before)}"


def _last_map(dataset: Dataset) -> Dataset | None:
    if type(dataset).__name__ in _MAPS:
        return dataset
    return next(filter(None, map(_last_map, dataset._inputs())), None)


def _where(dataset: Dataset) -> str:
    """Return the file and line of a map's function."""
    function = dataset._map_func._func
    function = inspect.unwrap(getattr(function, "python_function", function))
    code = getattr(function, "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else f"a {type(function).__name__}"
