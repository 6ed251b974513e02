"""A tf.data pipeline taken apart (client) and put together again (each rank), meaning the same everywhere.

The pipeline travels as the graph that TensorFlow itself serializes it to. Three things are mended on the way:

- Arrays inside it (`from_tensor_slices`) are taken out, to lie once in shared memory instead of once in every rank.
- An unseeded shuffle says "seeds 0 and 0: anything goes", which is another order in every process. A seed is put in.
- `deterministic=False` lets elements overtake each other. It is turned off: ranks cut parts of one and the same batch.

What depends on anything outside the graph (generators, py_function, variables, tf.random in a map) TensorFlow refuses
to serialize; what writes to disk (`cache(filename)`, `snapshot`) is refused here, as ranks would write over each other.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry

from fdt.data import zerocopy
from fdt.tensors import Array

LARGE_BYTES = 64 * 1024  # a constant larger than this goes as an array
LIMIT_BYTES = 2**31 - 2**24  # protobuf's, with room for the graph itself
_FAIL = 2  # tf.data.experimental.ExternalStatePolicy.FAIL, as the op takes it
_WRITERS = {"SnapshotDataset", "SnapshotDatasetV2", "SaveDataset", "SaveDatasetV2"}
_CACHES = {"CacheDataset", "CacheDatasetV2"}
_INT31 = 2**31 - 1
_MEMORY = {"seed_generator": "DummySeedGenerator", "cache": "DummyMemoryCache"}  # input name: op that makes a new one


class Refused(Exception):
    """The pipeline cannot be rebuilt elsewhere; the message says why."""


class Parts(NamedTuple):
    """`graph`: GraphDef whose placeholders stand, in order, for `constants`."""

    graph: bytes
    constants: list[Array]


def take_apart(dataset: Any) -> Parts:
    """Raises Refused."""
    if (nbytes := _bytes_inside(dataset)) > LIMIT_BYTES:
        raise Refused(f"it holds arrays of {nbytes:,} bytes, and TensorFlow can serialize 2 GB")
    graph = _serialized(dataset)
    _refuse_writers(graph)
    constants = [_take_out(node) for node in graph.node if node.op == "Const" and node.ByteSize() > LARGE_BYTES]
    return Parts(graph.SerializeToString(), constants)


def put_together(parts: Parts, element_spec: Any, seed: int) -> Any:
    """The dataset again: the same elements in the same order in every process that has the same `seed`."""
    graph = graph_pb2.GraphDef.FromString(parts.graph)
    for node in _all_nodes(graph):
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
        constants = [zerocopy.tensor(array) for array in parts.constants]
        variant = tf.function(build).get_concrete_function(*constants)(*constants)
        dataset = tf.data.experimental.from_variant(variant, element_spec)
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def _bytes_inside(dataset: Any) -> int:
    """Bytes of the arrays that the pipeline begins with, as far as its Python objects tell."""
    tensors = [t for t in getattr(dataset, "_tensors", ()) if isinstance(t, tf.Tensor)]
    own = sum(int(tensor.dtype.size * tensor.shape.num_elements()) for tensor in tensors)
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
    if not graph.node:  # what comes back, without an error, of a graph over 2 GB
        raise Refused("TensorFlow cannot serialize a graph over 2 GB")
    return graph


def _refuse_writers(graph: Any) -> None:
    nodes = {node.name: node for node in graph.node}
    for node in graph.node:
        if node.op in _WRITERS or (node.op in _CACHES and _value(nodes, node.input[1]) != b""):
            raise Refused(f"{node.op} writes files, which several ranks cannot do at once")


def _take_out(node: Any) -> Array:
    array = _array(node.attr["value"].tensor)
    del node.attr["value"]
    node.op = "Placeholder"
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(array.shape).as_proto())
    return array


def _put_seeds_in(graph: Any, seed: int) -> None:
    """Give each op whose two seeds are 0 seeds of its own, by its place in the graph."""
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
    """Shuffles and caches point at the client's own state: give each one of its own."""
    for number, node in enumerate(list(graph.node)):
        for index, name in enumerate(_input_names(node.op)):
            if name in _MEMORY:
                fresh = graph.node.add(name=f"fdt_{name}_{number}", op=_MEMORY[name])
                node.input[index] = fresh.name


def _input_names(op: str) -> list[str]:
    definition = op_def_registry.get(op)
    return [argument.name for argument in definition.input_arg] if definition is not None else []


def _seed_inputs(op: str) -> tuple[int, int] | None:
    """Positions of an op's inputs `seed` and `seed2`: shuffle, random, and their kin."""
    names = _input_names(op)
    return (names.index("seed"), names.index("seed2")) if "seed" in names and "seed2" in names else None


def _value(nodes: Any, name: str) -> Any:
    """The value of a scalar constant. Raises Refused when it is computed."""
    node = nodes[name.split(":")[0].lstrip("^")]
    if node.op != "Const":
        raise Refused(f"{node.op} computes what must be a constant")
    return _array(node.attr["value"].tensor).item()


def _array(proto: Any) -> Array:
    if proto.dtype == tf.string.as_datatype_enum:  # whose packed form make_ndarray cannot read
        return np.asarray(tf.io.parse_tensor(proto.SerializeToString(), tf.string).numpy())
    return np.asarray(tf.make_ndarray(proto))


def _register(graph: Any, suffix: str) -> None:
    """Make the functions of maps and filters known to this process, by names that nothing else here has."""
    names = {function.signature.name: f"{function.signature.name}_{suffix}" for function in graph.library.function}
    for node in _all_nodes(graph):
        node.op = names.get(node.op, node.op)
        for attribute in node.attr.values():
            for function in (attribute.func, *attribute.list.func):
                if function.name in names:
                    function.name = names[function.name]
    for function in graph.library.function:
        function.signature.name = names[function.signature.name]
        if not context.context().has_function(function.signature.name):
            context.context().add_function_def(function)


def _all_nodes(graph: Any) -> Sequence[Any]:
    return [*graph.node, *(node for function in graph.library.function for node in function.node_def)]


def _output(name: str) -> str:
    return name if ":" in name else f"{name}:0"
