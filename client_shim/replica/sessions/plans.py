"""Analysis of the operations that a session's run reaches in its graph, cached for the same fetches and feeds."""

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from client_shim.replica.sessions.gradients import NAME, GradientNode, Gradients
from fdt.compat.tensorflow import FetchMapper, nest
from fdt.ops import reached

_ITERATORS = ("IteratorGetNext", "IteratorGetNextSync")
_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
_RANDOM = ("Random", "Multinomial", "Stateful", "Truncated", "ParameterizedTruncated", "StatelessMultinomial")
_SAMPLERS = ("CandidateSampler",)
_MOVING = ("Assign", "Scatter", "ResourceScatter", "Apply", "ResourceApply", "ResourceSparseApply", "SparseApply")
_PURE = ("ScatterNd", "ScatterNdNonAliasingAdd")


@dataclass(frozen=True, eq=False)
class FetchPlan:
    """What a run of the same fetches and feeds reaches.

    Attributes:
        fetches: The fetched tensors and operations, each once.
        taken: The gradients that the run computes.
        elements: The tensors that iterators return.
        operations: All operations that the run reaches.
        noisy: Whether the run draws random numbers.
        moves: Whether the run changes variables.
        copies: Names of gradients that a saved graph had.
    """

    fetches: Sequence[Any]
    taken: Sequence[GradientNode]
    elements: Sequence[Any]
    operations: frozenset[Any]
    noisy: bool
    moves: bool
    copies: Sequence[str]
    _moved: dict[Any, str] = field(default_factory=dict)

    def variables(self, graph: Any) -> list[Any]:
        """Return the variables of the graph's collections that the run reads or changes."""
        known = collected(graph)
        reached = {o.name for o in self.operations if o.type in _VARIABLES}
        numbers = [known[name] for name in sorted(reached & set(known))]
        return [v for v in numbers if v.dtype.base_dtype not in (tf.string, tf.resource, tf.variant)]

    def moving(self) -> list[Any]:
        """Return the operations that change variables, sorted by name."""
        return sorted(filter(is_moving, self.operations), key=lambda o: str(o.name))

    def moved(self) -> set[str]:
        """Return the names of the operations that hold the changed variables."""
        return {str(t.op.name) for o in self.moving() for t in o.inputs if t.op.type in _VARIABLES}

    def moved_by(self, entries: Sequence[Any], gradients: Gradients) -> str:
        """Return the name of an operation that changes a variable by values of `entries`, divided tensors; "" for none.

        Paths through gradients do not count, because the gradients are those of the global batch.
        """
        key = frozenset(tensor.name for tensor in entries)
        if key not in self._moved:
            moving = filter(is_moving, self.reached_from(entries, gradients))
            self._moved[key] = min((str(o.name) for o in moving), default="")
        return self._moved[key]

    def reached_from(self, entries: Sequence[Any], gradients: Gradients) -> set[Any]:
        """Return the operations that values of `entries` reach other than through gradients."""

        def consumers(tensors: Iterable[Any]) -> list[Any]:
            found = {o for tensor in tensors for o in tensor.consumers()}
            return [o for o in found if o in self.operations and gradients.of(o) is None]

        return reached(consumers(entries), lambda operation: consumers(operation.outputs))


class FetchPlans:
    """The plans of session runs, made once for each graph, set of fetches and set of feeds."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._known: weakref.WeakKeyDictionary[Any, dict[Any, FetchPlan]] = weakref.WeakKeyDictionary()

    def of(self, graph: Any, fetches: Sequence[Any], fed: Iterable[Any]) -> FetchPlan:
        """Return the plan of a run. `fed`: the tensors that the script feeds."""
        names = frozenset(part.name for key in fed for part in tf.nest.flatten(key, expand_composites=True))
        key = tuple(f.name for f in fetches), names
        known = self._known.setdefault(graph, {})
        if key not in known:
            known[key] = self._made(fetches, names)
        return known[key]

    def asked(self, session: Any, fetches: Any, feed_dict: Any) -> tuple[FetchPlan, dict[Any, Any], Any] | None:
        """Return (plan, feeds by tensor, builder of the script's structure of values) of a run.

        Return None where the arguments are wrong; TensorFlow then raises its own error.
        """
        try:
            wanted, build = flat_fetches(session.graph, fetches)
            feeds = flat_feeds(session.graph, feed_dict)
        except (TypeError, ValueError, KeyError, AttributeError):
            return None
        return self.of(session.graph, wanted, feeds), feeds, build

    def _made(self, fetches: Sequence[Any], fed: frozenset[str]) -> FetchPlan:
        reached = ancestors(fetches, fed)
        taken = {t.number: t for t in map(self._gradients.of, reached) if t is not None}
        elements = [o for o in reached if o.type in _ITERATORS]
        return FetchPlan(
            fetches,
            [taken[number] for number in sorted(taken)],
            [tensor for o in sorted(elements, key=lambda o: str(o.name)) for tensor in o.outputs],
            frozenset(reached),
            any(map(is_random, reached)),
            any(is_moving(o) or o.type.startswith("Restore") for o in reached),
            sorted(o.name for o in reached if o.type == "IdentityN" and NAME in o.name),
        )


def collected(graph: Any) -> dict[str, Any]:
    """Return the variables of the graph's collections, by the names of the operations that hold them."""
    keys = tf.compat.v1.GraphKeys
    both = [*graph.get_collection(keys.GLOBAL_VARIABLES), *graph.get_collection(keys.LOCAL_VARIABLES)]
    return {variable.op.name: variable for variable in both}


def flat_fetches(graph: Any, fetches: Any) -> tuple[list[Any], Any]:
    """Return the tensors and operations, each once, and the builder of the script's structure of their values."""
    with graph.as_default():
        mapper = FetchMapper.for_fetch(fetches)
    return list(mapper.unique_fetches()), mapper.build_results


def flat_feeds(graph: Any, feeds: Any) -> dict[Any, Any]:
    """Return the feeds by tensor; a key that stands for several tensors (a sparse placeholder) stays as it is."""
    flat = nest.flatten_dict_items(dict(feeds or {}))
    return {_element(graph, key): value for key, value in flat.items()}


def _element(graph: Any, key: Any) -> Any:
    try:
        return graph.as_graph_element(key, allow_operation=False)
    except (TypeError, ValueError):
        return key


def held_by(tensor: Any) -> str | None:
    """Return the name of the variable that holds the memory of `tensor`, a handle, a reference or its identity."""
    operation = tensor.op
    while operation.type == "Identity":
        operation = operation.inputs[0].op
    return str(operation.name) if operation.type in _VARIABLES else None


def is_random(operation: Any) -> bool:
    """Return whether the operation draws random numbers."""
    return bool(operation.type.startswith(_RANDOM) or operation.type.endswith(_SAMPLERS))


def is_moving(operation: Any) -> bool:
    """Return whether the operation changes a variable."""
    return operation.type.startswith(_MOVING) and operation.type not in _PURE


def ancestors(fetches: Sequence[Any], fed: frozenset[str] = frozenset()) -> set[Any]:
    """Return the operations that a run of `fetches` reaches. `fed`: names of tensors that are not computed."""
    start = [f if isinstance(f, tf.Operation) else f.op for f in fetches if f.name not in fed]
    return reached(start, lambda o: [*(t.op for t in o.inputs if t.name not in fed), *o.control_inputs])
