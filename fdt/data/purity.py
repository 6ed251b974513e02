"""The proof that a map of rows is pure, or the reason why it is not; and the place of a map's function."""

import inspect
import re
from pathlib import Path

from fdt.compat.tensorflow import op_def_registry
from fdt.typing import Dataset

MAPS = {"_MapDataset", "_ParallelMapDataset"}
_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
_CALLS = {"StatefulPartitionedCall", "If", "While", "Case"}  # their functions are examined themselves
_GENERATORS = {"RngReadAndSkip", "RngSkip"}  # tf.random.Generator
_READS = {"LookupTableFindV2", "LookupTableSizeV2"}  # other operations change the table


def impurity(dataset: Dataset) -> str:
    """Return the reason why a row's value could depend on anything but the row, or "" for a pure map."""
    graph = dataset._map_func.function.graph.as_graph_def()
    for node in (*graph.node, *(node for function in graph.library.function for node in function.node_def)):
        if problem := _problem(node.op):
            return f"{node.op} at {where(dataset)} {problem}"
    return ""


def _problem(op: str) -> str:
    definition = op_def_registry.get(op)
    if op in _PYTHON:
        return "runs Python"
    if definition is None or not definition.is_stateful or op in _CALLS or op in _READS:
        return ""
    random = any(attribute.name == "seed" for attribute in definition.attr) or op in _GENERATORS
    return "is random" if random else "has a state or an effect"


def between(dataset: Dataset, relation: str) -> str:
    """Return that `dataset`, in its relation to a map before it, prevents a division; "" where no row is mapped."""
    kind = type(dataset).__name__
    if kind in MAPS:
        return f"the map at {where(dataset)} takes whole batches"
    if (before := _last_map(dataset)) is None:
        return ""
    name = re.sub("(?<!^)(?=[A-Z])", "_", kind.strip("_").removesuffix("Dataset")).lower()
    return f"`{name}` {relation} the map at {where(before)}"


def _last_map(dataset: Dataset) -> Dataset | None:
    if type(dataset).__name__ in MAPS:
        return dataset
    return next(filter(None, map(_last_map, dataset._inputs())), None)


def where(dataset: Dataset) -> str:
    """Return the file and line of a map's function."""
    function = dataset._map_func._func
    function = inspect.unwrap(getattr(function, "python_function", function))
    code = getattr(function, "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else f"a {type(function).__name__}"
