"""The division of a tf.data pipeline: a rank maps only the rows of each batch that it keeps.

The last maps before `batch(n)` are functions of one row each. A pure function gives a row the same value whichever
other rows are mapped, in whichever order. So a rank orders and batches the rows before these maps, takes its slice of
the batch and maps the slice. Every rank reads what comes before these maps whole, in the same order as undivided.

A map is divided only where that is proven. No operation of its function has a state or calls Python. The shapes of its
rows are static: other shapes could make `batch` fail for rows of another rank.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from fdt.data.pipeline import impurity, where
from fdt.data.source import as_is
from fdt.typing import Batch, Dataset

_MAPS = {"_MapDataset", "_ParallelMapDataset"}
_BATCHES = {"_BatchDataset", "_ParallelBatchDataset"}
_UNKNOWN = "have no static shape"

# Stand in a serialized pipeline for the numbers of the rank that reads it (fdt/data/pipeline.py).
RANK, SIZE, WIDTH = 0x6664745F72616E6B, 0x6664745F73697A65, 0x6664745F77696474

_Transformation = Callable[[Dataset], Dataset]


class Division(NamedTuple):
    """A pipeline that can be divided.

    Attributes:
        rows: The rows before the divided maps, shuffled, repeated and chosen as the rows after them are.
        where: File and line of the first divided map's function.
        maps: The divided maps, and prefetches between them. They take rows as flat tuples, a share at the end.
        batch_rows: Rows of a full batch.
        batch: The script's `batch`.
        after: What follows `batch`.
        spec: The element_spec of whole batches.
        state: The cache, or the shuffle behind a divided map, of which the divided pipeline has another one; "" for
            none.
    """

    rows: Dataset
    where: str
    maps: list[_Transformation]
    batch_rows: int
    batch: _Transformation
    after: list[_Transformation]
    spec: Any
    state: str = ""


def find(dataset: Dataset) -> Division | str:
    """Return the division of a pipeline of batches, or the reason why there is none: "" where no row is mapped."""
    after, state = [_with_options(dataset.options())], ""
    batched = dataset
    while (step := _same(batched) or _order(batched) or _cache(batched)) is not None:
        after.insert(0, step)
        state = state or state_of(batched)
        batched = batched._input_dataset
    if type(batched).__name__ not in _BATCHES:
        return _between(batched, "makes the batches of")
    found, reason = _divided_maps(batched._input_dataset)
    if found is None:
        return reason
    rows, at, maps, inner = found
    size, state = int(batched._batch_size), state or inner
    return Division(rows, at, maps, size, _batch(batched), after, dataset.element_spec, state)


def _divided_maps(rows: Dataset) -> tuple[tuple[Dataset, str, list[_Transformation], str] | None, str]:
    """Return (rows, where, maps, state) of a Division, or None; and the reason why no more maps are divided."""
    found, reason, unknown, state = None, "", "", ""
    maps: list[_Transformation] = []
    order: list[_Transformation] = []
    is_static = _is_static(rows.element_spec)
    while not reason:
        before: Any = getattr(rows, "_input_dataset", None)
        if type(rows).__name__ in _MAPS:
            reason = impurity(rows) if is_static else f"the rows that the map at {where(rows)} returns {_UNKNOWN}"
            unknown = f"the rows that the map at {where(rows)} takes {_UNKNOWN}"
            maps.insert(0, _row_map(rows))
            if not reason and _is_static(before.element_spec):
                found = functools.reduce(lambda stream, step: step(stream), order, before), where(rows), [*maps], state
        elif (step := _same(rows)) is not None:
            maps.insert(0, step)
        elif (step := _order(rows)) is not None:
            order.insert(0, step)
            state = state or state_of(rows)
        else:
            return found, unknown or _between(rows, "follows")
        rows = before
    return found, reason


def width(batch_rows: int, size: int) -> int:
    """Return the rows that each of `size` ranks maps of a batch; a rank that keeps fewer repeats one."""
    return -(-batch_rows // size)


def local(division: Division, rank: int, size: int, rows: int, *, source: bool = False) -> Dataset:
    """Return the divided pipeline of a rank: (batch, share) as Source.slices gives them.

    Args:
        division: The division.
        rank: The rank.
        size: The world size.
        rows: The `width`.
        source: Add a third part, from which `global_batch` computes the global batch.
    """
    whole = division.batch(division.rows)
    place = tf.data.Dataset.from_tensors(tf.constant([rank, size, rows], tf.int64)).repeat()
    stream = tf.data.Dataset.zip((whole, place)).map(as_is(lambda *pair: _slice(pair, source))).unbatch()
    for step in division.maps:
        stream = step(stream)
    parts = len(tf.nest.flatten(division.spec))

    @as_is
    def batch(*flat: Any) -> tuple[Any, ...]:
        leaves, (shares, *sources) = flat[:parts], flat[parts:]
        kept = tf.maximum(shares[0, 0], 1)
        packed = tf.nest.pack_sequence_as(division.spec, [leaf[:kept] for leaf in leaves])
        return packed, shares[0], *(each[0] for each in sources)

    stream = stream.batch(rows).map(batch)
    if (count := int(whole.cardinality())) != tf.data.UNKNOWN_CARDINALITY:
        # Keras makes one more iterator per epoch where the number of batches is known, which shuffles anew.
        stream = stream.apply(tf.data.experimental.assert_cardinality(count))
    for step in division.after:
        stream = step(stream)
    return stream


def global_batch(division: Division) -> Callable[[Any], Batch]:
    """Return a function that computes a global batch from the `source` of an element of `local`.

    Each row is mapped by the same functions as in the pipeline, so it has the same value.
    """
    specs = tf.nest.flatten(division.rows.element_spec)

    def compute(source: Any) -> Batch:
        rows = tf.raw_ops.OptionalGetValue(
            optional=source,
            output_types=[spec.dtype for spec in specs],
            output_shapes=[[None, *spec.shape] for spec in specs],
        )
        stream = tf.data.Dataset.from_tensor_slices(tuple(rows))
        for step in division.maps:
            stream = step(stream)
        flat = stream.batch(tf.shape(rows[0], tf.int64)[0]).get_single_element()
        return tf.nest.pack_sequence_as(division.spec, tf.nest.flatten(flat))

    signature = [tf.TensorSpec([], tf.variant)]
    computed: Callable[[Any], Batch] = tf.function(compute, autograph=False, input_signature=signature)
    return computed


def _slice(pair: tuple[Batch, Any], source: bool) -> tuple[Any, ...]:
    """Return a rank's rows by the rule of `cut` in fdt/data/epochs.py, and each row's share and source.

    The first or last row is repeated up to the width, so that every batch has equally many rows.
    """
    batch, place = pair
    leaves = tf.nest.flatten(batch)
    rank, size, count = tf.unstack(place)
    total = tf.shape(leaves[0], tf.int64)[0]
    low, high = total * rank // size, total * (rank + 1) // size
    begin = tf.where(tf.equal(low, high), tf.zeros_like(low), low)
    picks = tf.minimum(begin + tf.range(count), tf.maximum(begin, high - 1))
    share = tf.stack([high - low, total])
    each = [share] if not source else [share, tf.raw_ops.OptionalFromValue(components=leaves)]
    repeated = (tf.gather(value[None], tf.zeros_like(picks)) for value in each)
    return *(tf.gather(leaf, picks) for leaf in leaves), *repeated


def _between(dataset: Dataset, relation: str) -> str:
    """Return that `dataset`, in its relation to a map before it, prevents a division; "" where no row is mapped."""
    kind = type(dataset).__name__
    if kind in _MAPS:
        return f"the map at {where(dataset)} takes whole batches"
    if (before := _last_map(dataset)) is None:
        return ""
    name = re.sub("(?<!^)(?=[A-Z])", "_", kind.strip("_").removesuffix("Dataset")).lower()
    return f"`{name}` {relation} the map at {where(before)}"


def _last_map(dataset: Dataset) -> Dataset | None:
    if type(dataset).__name__ in _MAPS:
        return dataset
    return next(filter(None, map(_last_map, dataset._inputs())), None)


def _same(dataset: Dataset) -> _Transformation | None:
    """Return a transformation that keeps all elements and their order; None for another one."""
    if type(dataset).__name__ == "_OptionsDataset":
        return lambda stream: stream  # `find` sets all options at the end
    if type(dataset).__name__ == "_PrefetchDataset":
        return lambda stream: stream.prefetch(int(dataset._buffer_size))
    return None


def _order(dataset: Dataset) -> _Transformation | None:
    """Return a transformation that chooses and orders elements whatever their values; None for another one."""
    kind = type(dataset).__name__
    if kind == "_ShuffleDataset":
        again = dataset._reshuffle_each_iteration
        return lambda stream: shuffled(stream, dataset._buffer_size, dataset._seed, dataset._seed2, again)
    if kind in ("_TakeDataset", "_SkipDataset", "_RepeatDataset"):
        name = kind.strip("_").removesuffix("Dataset").lower()
        return lambda stream: getattr(stream, name)(int(dataset._count))
    return None


def state_of(dataset: Dataset) -> str:
    """Return the name of a transformation whose elements depend on its earlier iterators; "" for another one."""
    if type(dataset).__name__ == "CacheDataset":
        return "cache"
    reshuffles = type(dataset).__name__ == "_ShuffleDataset" and dataset._reshuffle_each_iteration
    return "" if reshuffles in (False, None) else "shuffle"


def shuffled(stream: Dataset, buffer_size: Any, seed: Any = 0, seed2: Any = 0, reshuffles: bool = True) -> Dataset:
    """Shuffle with the given seeds. `Dataset.shuffle` would draw others, from the script's generator."""
    spec = stream.element_spec
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=tf.data.experimental.to_variant(stream),
        buffer_size=buffer_size,
        seed=seed,
        seed2=seed2,
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        output_types=stream._flat_types,
        output_shapes=stream._flat_shapes,
        reshuffle_each_iteration=reshuffles,
    )
    return tf.data.experimental.from_variant(variant, spec)


def _cache(dataset: Dataset) -> _Transformation | None:
    """Return a cache in memory of the rank's own slices; None for another transformation."""
    if type(dataset).__name__ != "CacheDataset" or dataset._filename.numpy():
        return None
    return lambda stream: stream.cache()


def _row_map(dataset: Dataset) -> _Transformation:
    """Return a map of flat rows, followed by what `_slice` adds to them."""
    function = dataset._map_func.function
    count = len(function.graph.inputs) - len(function.captured_inputs)

    @as_is
    def flat_map(*flat: Any) -> tuple[Any, ...]:
        return *_inlined(function, flat[:count]), *flat[count:]

    return lambda stream: stream.map(flat_map, **_parallel(dataset))


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
