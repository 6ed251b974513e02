"""Serialization of a tf.data pipeline by the client, so that each rank rebuilds it with the same elements.

The pipeline is sent as the graph that TensorFlow serializes. Three things are changed:

- Arrays inside it (`from_tensor_slices`) are taken out, so that shared memory holds them once, not once for each rank.
- An unseeded shuffle has seeds 0 and 0 and a different order in every process. It gets a seed.
- `deterministic=False` allows elements to overtake each other. It is turned off, because ranks slice the same batch.

TensorFlow refuses to serialize operations that depend on state outside the graph (generators, py_function, variables,
tf.random in a map). Operations that write to disk (`cache(filename)`, `snapshot`) are refused here, because ranks would
overwrite each other's files.

`impurity` reads the graph of a map's function: the proof that the map is pure, or the operation that prevents it.
"""

import hashlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fdt import ops
from fdt.compat.tensorflow import context, graph_pb2, op_def_registry
from fdt.typing import Array, Dataset

LARGE_BYTES = 64 * 1024  # a larger constant is sent as an array
ALL = sys.maxsize  # elements of a pass
LIMIT_BYTES = 2**31 - 2**24  # protobuf's limit, less room for the graph itself
_FAIL = 2  # tf.data.experimental.ExternalStatePolicy.FAIL
_WRITERS = {"SnapshotDataset", "SnapshotDatasetV2", "SaveDataset", "SaveDatasetV2"}
_CACHES = {"CacheDataset", "CacheDatasetV2"}
_AGAIN = {"RepeatDataset", "ConcatenateDataset"}  # they make iterators of their inputs within a pass
_INT31 = 2**31 - 1
_CALLS = {"StatefulPartitionedCall", "If", "While", "Case"}  # their functions are examined themselves
_GENERATORS = {"RngReadAndSkip", "RngSkip"}  # tf.random.Generator
_RANDOM = "is random"
_READS = {"LookupTableFindV2", "LookupTableSizeV2"}  # other operations change the table
_MEMORY = {"seed_generator": "DummySeedGenerator", "cache": "DummyMemoryCache"}  # input name: op of a new one


class Refused(Exception):
    """The pipeline cannot be rebuilt in another process; the message states the reason."""


class Parts(NamedTuple):
    """A serialized pipeline. `graph`: a GraphDef whose placeholders stand, in order, for `constants`."""

    graph: bytes
    constants: list[Array]


def take_apart(dataset: Any) -> Parts:
    """Serialize a dataset. Raises Refused."""
    if (nbytes := _bytes_inside(dataset)) > LIMIT_BYTES:
        raise Refused(f"it holds arrays of {nbytes:,} bytes, and TensorFlow serializes at most 2 GB")
    graph = _serialized(dataset)
    _refuse_writers(graph)
    constants = [_take_out(node) for node in graph.node if _is_large(node)]
    return Parts(graph.SerializeToString(), constants)


def put_together(parts: Parts, element_spec: Any, seed: int, numbers: Mapping[int, int] = {}) -> Any:
    """Rebuild the dataset: the same elements in the same order in every process with the same `seed`.

    Args:
        parts: The serialized pipeline.
        element_spec: The element_spec of the result.
        seed: Determines the seeds of unseeded operations.
        numbers: Replacements of int64 constants.
    """
    graph = graph_pb2.GraphDef.FromString(parts.graph)
    if numbers:
        _replace_numbers(graph, numbers)
    for node in ops.all_nodes(graph):
        if "deterministic" in node.attr:
            node.attr["deterministic"].s = b"true"
    _forget_memory(graph)
    _put_seeds_in(graph, seed)
    _register(graph, hashlib.sha256(parts.graph).hexdigest()[:16])
    end = next(node for node in graph.node if node.op == "_Retval")
    result = end.input[0]
    graph.node.remove(end)
    holes = [f"{node.name}:0" for node in graph.node if node.op == "Placeholder"]

    def build(*constants: Any) -> Any:
        inputs = dict(zip(holes, constants, strict=True))
        (variant,) = tf.graph_util.import_graph_def(graph, inputs, [_output(result)], name="")
        return variant

    with tf.device("CPU:0"):
        constants = [ops.mapped_tensor(array) for array in parts.constants]
        variant = tf.function(build).get_concrete_function(*constants)(*constants)
        dataset = tf.data.experimental.from_variant(variant, element_spec)
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def read_to_draw(parts: Parts) -> int:
    """Return how many elements of a pass must be read until all its shuffles have drawn their orders.

    A shuffle draws when its iterator is made, and makes its input's iterator when it is read. ALL: the input of a
    repeat or of a concatenation has a shuffle, and its next iterator is made when the last one has ended.
    """
    nodes = {node.name: node for node in graph_pb2.GraphDef.FromString(parts.graph).node}

    def is_behind_a_shuffle(node: Any) -> bool:
        return any(_reshuffles(nodes[name]) for name in _inputs(nodes, node))

    if any(node.op in _AGAIN and is_behind_a_shuffle(node) for node in nodes.values()):
        return ALL
    return int(any(_reshuffles(node) and is_behind_a_shuffle(node) for node in nodes.values()))


def _reshuffles(node: Any) -> bool:
    return bool(node.op.startswith("ShuffleDataset") and node.attr["reshuffle_each_iteration"].b)


def _inputs(nodes: Mapping[str, Any], node: Any) -> set[str]:
    """Return the names of all nodes that a node depends on."""

    def names(of: Any) -> list[str]:
        return [name.split(":")[0].lstrip("^") for name in of.input]

    return ops.reached(names(node), lambda name: names(nodes[name]))


def _replace_numbers(graph: Any, numbers: Mapping[int, int]) -> None:
    for node in graph.node:
        if node.op == "Const" and node.attr["dtype"].type == tf.int64.as_datatype_enum:
            array = _array(node.attr["value"].tensor)
            if np.isin(array, list(numbers)).any():
                replaced = np.vectorize(lambda value: numbers.get(value, value))(array)
                node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(replaced, tf.int64))


def _bytes_inside(dataset: Any) -> int:
    """Return the bytes of the arrays at the start of the pipeline that its Python objects reveal."""
    tensors = [t for t in getattr(dataset, "_tensors", ()) if isinstance(t, tf.Tensor)]
    own = sum(map(ops.nbytes, tensors))
    return own + sum(_bytes_inside(source) for source in dataset._inputs())


def _serialized(dataset: Any) -> Any:
    try:
        text = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=_FAIL,
            strip_device_assignment=True,
        )
        graph = graph_pb2.GraphDef.FromString(text.numpy())
    except (tf.errors.OpError, ValueError, AttributeError) as error:
        raise Refused(str(error).split("}} ")[-1].split("\n")[0][:300]) from None
    if not graph.node:  # TensorFlow's result, without an error, for a graph over 2 GB
        raise Refused("TensorFlow cannot serialize a graph over 2 GB")
    return graph


def _refuse_writers(graph: Any) -> None:
    nodes = {node.name: node for node in graph.node}
    for node in graph.node:
        if node.op in _WRITERS or (node.op in _CACHES and _value(nodes, node.input[1]) != b""):
            raise Refused(f"{node.op} writes files, and ranks would overwrite each other's")


def _is_large(node: Any) -> bool:
    """Return whether the node is a large array; the rows of a sparse tensor are variants, which are none."""
    return bool(
        node.op == "Const" and node.ByteSize() > LARGE_BYTES and node.attr["dtype"].type != tf.variant.as_datatype_enum
    )


def _take_out(node: Any) -> Array:
    array = _array(node.attr["value"].tensor)
    del node.attr["value"]
    node.op = "Placeholder"
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(array.shape).as_proto())
    return array


def _put_seeds_in(graph: Any, seed: int) -> None:
    """Give each op whose two seeds are 0 seeds of its own, derived from its position in the graph."""
    nodes = {node.name: node for node in graph.node}
    seeded = [(node, at) for node in list(graph.node) if (at := _seed_inputs(node.op))]
    for number, (node, (first, second)) in enumerate(seeded):
        if _value(nodes, node.input[first]) or _value(nodes, node.input[second]):
            continue
        draw = np.random.Generator(np.random.PCG64([seed, number])).integers(1, _INT31, 2)
        for index, value in zip((first, second), draw, strict=True):
            name = f"fdt_seed_{number}_{index}"
            constant = graph.node.add(name=name, op="Const")
            constant.attr["dtype"].type = tf.int64.as_datatype_enum
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(int(value), tf.int64))
            node.input[index] = name


def _forget_memory(graph: Any) -> None:
    """Replace the client's state of shuffles and caches by new state for each op."""
    for number, node in enumerate(list(graph.node)):
        for index, name in enumerate(_input_names(node.op)):
            if name in _MEMORY:
                fresh = graph.node.add(name=f"fdt_{name}_{number}", op=_MEMORY[name])
                node.input[index] = fresh.name


def _input_names(op: str) -> list[str]:
    definition = op_def_registry.get(op)
    return [argument.name for argument in definition.input_arg] if definition is not None else []


def _seed_inputs(op: str) -> tuple[int, int] | None:
    """Return the positions of an op's inputs `seed` and `seed2`, which random ops have; None without them."""
    names = _input_names(op)
    return (names.index("seed"), names.index("seed2")) if "seed" in names and "seed2" in names else None


def _value(nodes: Any, name: str) -> Any:
    """Return the value of a scalar constant. Raises Refused when it is computed."""
    node = nodes[name.split(":")[0].lstrip("^")]
    if node.op != "Const":
        raise Refused(f"{node.op} computes a value that must be a constant")
    return _array(node.attr["value"].tensor).item()


def _array(proto: Any) -> Array:
    if proto.dtype == tf.string.as_datatype_enum:  # make_ndarray cannot read their packed form
        return np.asarray(tf.io.parse_tensor(proto.SerializeToString(), tf.string).numpy())
    return np.asarray(tf.make_ndarray(proto))


def _register(graph: Any, suffix: str) -> None:
    """Register the functions of maps and filters in this process, under names that are unique here."""
    names = {function.signature.name: f"{function.signature.name}_{suffix}" for function in graph.library.function}
    for node in ops.all_nodes(graph):
        node.op = names.get(node.op, node.op)
        for attribute in node.attr.values():
            for function in (attribute.func, *attribute.list.func):
                if function.name in names:
                    function.name = names[function.name]
    for function in graph.library.function:
        function.signature.name = names[function.signature.name]
        if not context.context().has_function(function.signature.name):
            context.context().add_function_def(function)


def _output(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def impurity(dataset: Dataset) -> str:
    """Return the reason why a row's value could depend on anything but the row, or "" for a pure map."""
    graph = dataset._map_func.function.graph.as_graph_def()
    for node in ops.all_nodes(graph):
        if problem := _problem(node.op):
            return f"{node.op} at {where(dataset)} {problem}"
    return ""


def is_random(dataset: Dataset) -> bool:
    """Return whether a function of the pipeline draws random numbers, or assigns a variable (Keras's generators do)."""
    graphs = [wrapper.function.graph.as_graph_def() for wrapper in dataset._functions()]
    found = {node.op for graph in graphs for node in ops.all_nodes(graph)}
    parallel = ops.PYTHON if type(dataset).__name__.startswith("_Parallel") else ()  # its threads draw in turn
    own = any(_problem(op) == _RANDOM or op.startswith("Assign") or op in parallel for op in found)
    return own or any(map(is_random, dataset._inputs()))


def _problem(op: str) -> str:
    definition = op_def_registry.get(op)
    if op in ops.PYTHON:
        return "runs Python"
    if definition is None or not definition.is_stateful or op in _CALLS or op in _READS:
        return ""
    random = any(attribute.name == "seed" for attribute in definition.attr) or op in _GENERATORS
    return _RANDOM if random else "has a state or an effect"


def where(dataset: Dataset) -> str:
    """Return the file and line of a map's function."""
    function = dataset._map_func._func
    function = inspect.unwrap(getattr(function, "python_function", function))
    code = getattr(function, "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else f"a {type(function).__name__}"
