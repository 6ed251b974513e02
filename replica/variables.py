"""The variables of a replicated script: they start and stay equal on all ranks, and their assignments count steps."""

import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import where
from fdt.compat.tensorflow import func_graph, polymorphic_function, resource_variable_ops
from fdt.errors import WorkerError
from fdt.patches import Patch
from fdt.typing import Array
from replica.batches import is_compared
from replica.exchange import GroupedExchange
from replica.graph.flatten import function_graph, functions_of
from replica.placement import PARTIAL
from replica.step_count import SampleCount, StepCount
from replica.tensors import is_number, unrecorded

_ROUNDING = 1e-4  # relative: another order of additions makes a smaller difference, diverged ranks a larger one

PARTED = (
    "the variable {name!r} differs by {off:.2%} between ranks after step {step}; it was last assigned at {where}. "
    "The script computes different values on each rank there: please report it"
)


class ReplicatedVariables:
    """The registry of the variables that a script makes.

    A step begins when trainable variables are assigned after a gradient, and were assigned in the last step
    (StepCount). An assignment without a new gradient begins no step: a checkpoint's values, the rest of an update.

    Args:
        exchange: The collectives.
        stepped: Called when a step begins to assign variables.
        samples: The count of samples.
    """

    def __init__(self, exchange: GroupedExchange, stepped: Callable[[], None], samples: SampleCount) -> None:
        self._exchange, self._stepped, self._samples = exchange, stepped, samples
        self.count = StepCount(samples, self._begin_step)
        self._made: list[tuple[weakref.ref[Any], Array]] = []  # each with zeros of its shape, which take no memory
        # by the id of a trainable variable's handle: the handle, and the index in `_made`
        self._by_handle: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._where: dict[int, str] = {}
        self._checked = 0
        self.training = self._taken = False  # whether a gradient has been computed; since the last assignment
        self._with_gradients: weakref.WeakSet[Any] = weakref.WeakSet()  # graphs in which gradients are computed

    @property
    def steps(self) -> int:
        """The number of steps so far."""
        return self.count.steps

    def patches(self) -> list[Patch]:
        """Return the replacements in TensorFlow."""
        return [
            Patch(resource_variable_ops.ResourceVariable, "__init__", self._make),
            Patch(polymorphic_function.UnliftedInitializerVariable, "__init__", self._make),
            Patch(polymorphic_function.Function, "_initialize_uninitialized_variables", self._initialize),
        ]

    # -- made ------------------------------------------------------------------------------------------------------
    def _make(self, original: Any, variable: Any, *args: Any, **kwargs: Any) -> None:
        original(variable, *args, **kwargs)
        if tf.executing_eagerly() and is_number(variable.dtype):
            self.made(variable)

    def _initialize(self, original: Any, function: Any, initializers: Any) -> None:
        """Give the variables that the first trace of a tf.function made their values, and register them."""
        original(function, initializers)
        with tf.init_scope():
            for variable, _ in initializers if tf.executing_eagerly() else ():
                if is_number(variable.dtype):
                    self.made(variable)

    def made(self, variable: Any) -> None:
        """Assign rank 0's value to a new variable, and register it."""
        if self._made and self._made[-1][0]() is variable:  # the initializer of one class has called the other's
            return
        with unrecorded():
            value = variable.read_value().numpy()
            first = self._exchange.rank_0s("variable", [np.asarray(value)])[0]
            if not np.array_equal(first, value, equal_nan=value.dtype.kind in "fc"):
                variable.assign(tf.constant(first, variable.dtype))
        if variable.trainable:
            self._by_handle[id(variable.handle)] = weakref.ref(variable.handle), len(self._made)
        self._made.append((weakref.ref(variable), np.broadcast_to(np.zeros((), value.dtype), value.shape)))

    def begin_training(self) -> None:
        """Note that a gradient is computed, or traced: assignments of variables may be steps from now on."""
        self.training = True
        graph = tf.compat.v1.get_default_graph()
        if not isinstance(graph, func_graph.FuncGraph):
            self.take()
        while isinstance(graph, func_graph.FuncGraph):
            self._with_gradients.add(graph)
            graph = graph.outer_graph

    def takes(self, graph: Any) -> bool:
        """Return whether a gradient is computed in a graph, or in a function that it calls."""
        inner = (function_graph(graph, name) for op in graph.get_operations() for name in functions_of(op))
        return graph in self._with_gradients or any(self.takes(each) for each in inner)

    def take(self) -> None:
        """Note that a gradient is computed, or a traced function called which computes gradients."""
        self._taken = True
        self._samples.gradient()

    # -- assigned --------------------------------------------------------------------------------------------------
    def assigned(self, handles: Sequence[Any]) -> None:
        """Record that an operation or a function is about to assign these variables."""
        known = [(h, self._by_handle[id(h)]) for h in handles if id(h) in self._by_handle] if self.training else ()
        places = {place for handle, (of, place) in known if of() is handle}  # else the id is another tensor's now
        if places:
            self._where.update(dict.fromkeys(places, where()))
            taken, self._taken = self._taken, False
            self.count.updated(places, taken=taken)

    def _begin_step(self) -> None:
        self._stepped()
        if self.steps != self._checked and is_compared(self.steps):
            self.check()

    # -- compared --------------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Compare all variables with rank 0's; set those that differ by rounding to rank 0's.

        Raises:
            WorkerError: On every rank, where a variable differs by more than rounding.
        """
        self._checked = self.steps
        with unrecorded():
            sums = np.array([_checksum(v) for v in self._all()], np.int64)
            first = self._exchange.rank_0s("checksums", [sums])[0]
            differs = (sums != first) & (sums != 0) & (first != 0)
            found = self._exchange.replicated("differing", [differs.astype(np.int64)], [PARTIAL])[0]
            for place in np.flatnonzero(found):
                self._settle(int(place))

    def _settle(self, place: int) -> None:
        reference, zeros = self._made[place]
        variable = reference()  # None: this rank has collected it, and others differ
        value = zeros if variable is None else variable.read_value().numpy()
        first = self._exchange.rank_0s("variable", [np.asarray(value)])[0]
        scale = float(np.linalg.norm(np.ravel(first).astype(np.float64))) or 1.0
        off = float(np.linalg.norm(np.ravel(first).astype(np.float64) - np.ravel(value).astype(np.float64))) / scale
        off *= variable is not None
        worst = float(self._exchange.replicated("difference", [np.asarray(off)], [PARTIAL])[0])
        if not worst <= _ROUNDING:
            name = getattr(variable, "name", "?")
            at = self._where.get(place, "an unknown line")
            raise WorkerError(PARTED.format(name=name, off=worst, step=self.steps, where=at))
        # an integer that differs is no rounding: a thread that makes data may have counted a draw more
        if variable is not None and not variable.dtype.is_integer:
            variable.assign(tf.constant(first, variable.dtype))

    def _all(self) -> Iterator[Any]:
        """Yield every variable, None for a collected one: ranks collect garbage at different times."""
        return (reference() for reference, _ in self._made)


def _checksum(variable: Any) -> int:
    """Return a checksum of the variable's bytes; 0 for one that was collected, or has no value yet."""
    if variable is None:
        return 0
    try:
        return zlib.crc32(np.ascontiguousarray(variable.read_value().numpy()).tobytes())
    except tf.errors.FailedPreconditionError:
        return 0
