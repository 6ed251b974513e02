"""The forward and backward pass of a training step with its metrics, without its update.

It is traced once: the probe compares that function with the whole batch's, and training runs it before the exchange.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from client_shim.replica.steps import where
from fdt.data.source import open_leaf
from fdt.errors import PassedThrough
from fdt.keras import attribute
from fdt.keras.variables import call_converted, is_loss_scaled, read_behind, tensor_variable
from fdt.ops import flat_logs, is_number
from fdt.typing import Tensor
from hfdt.algorithms import allreduce
from hfdt.exactness import adjoints
from hfdt.worker import step_context as steps
from hfdt.worker.exchange import Deferred, GradientExchange
from hfdt.worker.sparse_gradients import is_alike
from hfdt.worker.step_context import Reading, StepContext, StepTerms

Watched = Callable[[Any], contextlib.AbstractContextManager[list[Tensor]]]


@dataclass
class PassResult:
    """The results of a pass.

    Attributes:
        context: The step's context.
        deferred: The optimizer steps that the pass did not apply.
        logs: The logs of Keras's own step.
        watched: The tensors that the step was asked for.
        numbers: The logs of any step that are one number.
        added: The totals of the adjoints of the script's sums and means (adjoints.py); empty in an eager step.
        lines: The lines of these.
    """

    context: StepContext
    deferred: list[Deferred]
    logs: Any
    watched: list[Tensor]
    numbers: dict[str, Tensor]
    added: list[Tensor]
    lines: list[str]


class AppliedWithinError(PassedThrough):
    """The step applies gradients in a graph within its own, at the line that the error names."""


def check_applied(graph: Any) -> None:
    """Raise AppliedWithinError where the current graph, in which gradients are applied, is not the step's own."""
    if tf.compat.v1.get_default_graph() is not graph:
        raise AppliedWithinError(Path(where()).name)


class GradientPass:
    """The pass of `trainable`'s training step, as its model has it now.

    Args:
        trainable: The model with its variables.
        watched: Called with a batch; returns a context whose value is a list, which the step fills with tensors.

    Attributes:
        traced: The traced function, of any number of rows; None before `trace`.
        other_logs: Names of the step's results that are not one number.
    """

    def __init__(self, trainable: Any, watched: Watched | None = None) -> None:
        self._trainable, self._watched = trainable, watched or _nothing
        self._train_step = trainable.model.train_step
        self._spec: Any = None
        self._sent: dict[str, int] = {}
        self._of_trace: PassResult
        self.traced: Any = None
        self.other_logs: list[str] = []

    def run(self, terms: StepTerms, batch: Any, share: Tensor) -> PassResult:
        """Run the pass eagerly, or into the graph that is traced."""
        deferred: list[Deferred] = []
        context = StepContext(terms, share, deferred=deferred)
        with contextlib.ExitStack() as stack:
            if hasattr(self._trainable.model.optimizer, "scale_loss"):  # scales often overflow at the beginning
                stack.enter_context(attribute(self._trainable.model.optimizer, "scale_loss", lambda loss: loss))
            stack.enter_context(deferred_updates(self._trainable, context))
            watching = stack.enter_context(self._watched(batch))
            of_mean = 1.0 if terms.reading is not Reading.LOSS_SUM else share[1] / share[0]
            passes = stack.enter_context(adjoints.recorded(share[0], of_mean))
            logs = call_converted(self._trainable.flavor.name, self._train_step, batch)
        additions = adjoints.behind(passes, [g for each in deferred for g in each.gradient])
        if terms.reading is not Reading.MEAN:  # a sum of what ranks have summed is alike on all of them, as a mean is
            additions = [each for each in additions if each.within]
        added, lines = adjoints.totals(additions), [each.line for each in additions]
        logs, numbers = logs if terms.own_step else (), self._numbers(logs)
        return PassResult(context, deferred, logs, watching, numbers, added, lines)

    def _numbers(self, logs: Any) -> dict[str, Tensor]:
        found = flat_logs(logs)
        self.other_logs = [name for name, value in found.items() if not is_number(value)]
        return {name: tf.convert_to_tensor(value) for name, value in found.items() if is_number(value)}

    def trace(self, terms: StepTerms, batch: Any) -> None:
        """Trace the pass for batches that differ from `batch` in their number of rows only."""

        def traced(batch: Any, share: Tensor) -> Any:
            self._of_trace = found = self.run(terms, batch, share)
            return [each.gradient for each in found.deferred], found.logs, found.watched, found.numbers, found.added

        self._spec = tf.nest.map_structure(any_rows, batch)
        function = tf.function(traced, autograph=False)
        self.traced = function.get_concrete_function(self._spec, tf.TensorSpec([2], tf.int64))
        self._sent = dict(terms.sent_bytes)

    def alike(self) -> set[int]:
        """Return the ids of the variables whose gradients are IndexedSlices of the same indices for any rows."""
        if self.traced is None:
            return set()
        pairs = [pair for each in self.updates for pair in zip(each.gradient, each.variables, strict=True)]
        own = [(g, v) for g, v in pairs if isinstance(g, tf.IndexedSlices) and g.indices.graph is self.traced.graph]
        return {id(tensor_variable(v)) for g, v in own if is_alike(g.indices)}

    @property
    def written(self) -> dict[int, str]:
        """The lines that assign variables in the traced step, by the variable's id."""
        return self._of_trace.context.written

    @property
    def updates(self) -> list[Deferred]:
        """The optimizer steps that the traced pass did not apply."""
        return self._of_trace.deferred

    def call(self, step: StepContext, batch: Any, share: Tensor) -> PassResult:
        """Call the traced pass as the first part of `step`, whose graph is being traced."""
        traced = self._of_trace
        step.go_on_behind(traced.context, self._sent)
        gradients, logs, watched, numbers, added = self.traced(batch, share)
        pairs = zip(traced.deferred, gradients, strict=True)
        deferred = [replace(each, gradient=found) for each, found in pairs]
        return PassResult(step, deferred, logs, watched, numbers, added, traced.lines)

    def trains(self, batch: Any) -> bool:
        """Return whether training may run the traced function, and Keras's update behind it, on such a batch.

        Only metrics may follow the update in Keras's own step. They must not read what the update writes.
        """
        if self.traced is None or not self._of_trace.context.terms.own_step or len(self._of_trace.deferred) != 1:
            return False
        optimizer = self._trainable.model.optimizer
        known = type(optimizer).__module__.partition(".")[0] in ("keras", "tf_keras")
        if not known or is_loss_scaled(optimizer) or getattr(optimizer, "loss_scale_factor", None):
            return False
        return _fits(self._spec, batch) and not self._reads_the_update()

    def _reads_the_update(self) -> bool:
        """Return whether an operation behind the gradients has a variable as an input that the update may write."""
        graph, trainable = self.traced.graph, self._trainable
        gradients = [g for g in self._of_trace.deferred[0].gradient if g is not None]
        made_by = [t.op for g in gradients for t in tf.nest.flatten(g, expand_composites=True)]
        if any(op.graph is not graph for op in made_by):
            return True
        last = {op.name for op in made_by}
        behind = 1 + max((i for i, op in enumerate(graph.get_operations()) if op.name in last), default=-1)
        return bool(read_behind(graph, [*trainable.trainable, *trainable.optimizer], behind))


@contextlib.contextmanager
def deferred_updates(trainable: Any, step: StepContext) -> Iterator[None]:
    """Make `step` the current step, whose updates are added to `step.deferred` instead of being applied."""
    flavor, exchange = trainable.flavor, GradientExchange(allreduce.rule())
    graph = tf.compat.v1.get_default_graph()

    def apply(*args: Any) -> Any:
        check_applied(graph)
        return exchange.apply(*args)

    with contextlib.ExitStack() as stack:
        for optimizer in flavor.optimizers(trainable.model):
            stack.enter_context(flavor.replace_apply(optimizer, apply))
        stack.enter_context(steps.entered(step))
        yield


@contextlib.contextmanager
def _nothing(_: Any) -> Iterator[list[Tensor]]:
    yield []


def any_rows(leaf: Any) -> Any:
    """Return the TypeSpec of tensors like `leaf` with any number of rows; None for None."""
    return None if leaf is None else open_leaf(tf.type_spec_from_value(leaf))


def _fits(spec: Any, batch: Any) -> bool:
    """Return whether `batch` has the structure, dtypes and shapes of `spec`."""
    try:
        tf.nest.assert_same_structure(spec, batch)
    except (ValueError, TypeError):
        return False
    pairs = zip(tf.nest.flatten(spec), tf.nest.flatten(batch), strict=True)
    return all(s is t is None or (s is not None and t is not None and _takes(s, t)) for s, t in pairs)


def _takes(spec: Any, leaf: Any) -> bool:
    """Return whether a function of this TypeSpec takes `leaf`, of whose shape as much must be known."""
    known = not isinstance(spec, tf.TensorSpec) or tf.TensorShape(leaf.shape).is_subtype_of(spec.shape)
    return known and bool(spec.is_compatible_with(leaf))
