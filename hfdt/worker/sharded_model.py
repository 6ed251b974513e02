"""A model whose own `fit` and `evaluate` take (local batch, weight) elements and give the results of the global batch.

Keras's loop, train_step and metrics are unchanged. Added are a step context (hfdt/worker/step_context.py), the exchange
in place of the optimizer's apply, and sums of metric states over ranks where Keras reads results.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from fdt.keras.variables import call_converted, inner_optimizer
from fdt.ops import flat_logs, is_number
from fdt.patches import Patch, patched, replace
from fdt.typing import Tensor
from hfdt.exactness import assigned_state
from hfdt.exactness.gradient_pass import GradientPass
from hfdt.exactness.metrics import HeldMetrics, MetricTotals, metric_objects, result_of
from hfdt.worker import step_context as steps
from hfdt.worker.blocks import Blocks
from hfdt.worker.exchange import GradientExchange, run_split
from hfdt.worker.nonfinite_guard import Guard
from hfdt.worker.rounds import Rounds
from hfdt.worker.step_context import ExchangeInCompiled, StepContext, StepTerms

RESULTS = {"keras": "_get_metrics_result_or_logs", "tf_keras": "_validate_and_get_metrics_result"}


class ShardedModel:
    """A Trainable (fdt/trainable.py) on one rank.

    Args:
        trainable: The model with its variables.
        terms: The terms of the job's steps.
        exchange: The runner of the algorithm.
        split: Compile the two halves of a step by XLA (hfdt/worker/exchange.py).
        may_idle: Some global batch may have fewer samples than there are ranks.
        on_nan: "stop" at or "skip" steps with non-finite gradients; "" takes them as Keras does.
        traced_pass: Returns the pass that the probe has traced, if training may run it on such a batch.
    """

    def __init__(
        self,
        trainable: Any,
        terms: StepTerms,
        exchange: GradientExchange | Rounds | Blocks,
        *,
        split: bool,
        may_idle: bool,
        on_nan: str = "",
        traced_pass: Callable[[Any], GradientPass | None] = lambda _: None,
    ) -> None:
        self.trainable, self.terms, self.exchange = trainable, terms, exchange
        self.model, self.flavor = trainable.model, trainable.flavor
        self.totals = MetricTotals(terms.comm, trainable.metrics)
        self.counted = tf.Variable(
            [0, 0, 1], dtype=tf.int64, trainable=False
        )  # samples of the epoch; those of the last step on this rank and on all
        self.waited = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self._split, self._traced_pass = split, traced_pass
        self.own_step = self.model.train_step
        self.guard = Guard(trainable, self.counted, terms, skips=on_nan == "skip") if on_nan else None
        terms.begin_training(self.waited, self.guard, may_idle=may_idle)
        self._blocks = exchange if isinstance(exchange, Blocks) else None
        self._rounds = exchange if isinstance(exchange, Rounds) else None
        if self._rounds is not None:
            self._rounds.kept.append(self.counted)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Replace the model's methods while the context lasts; its train functions are traced again."""
        model, optimizer, timeline = self.model, self.model.optimizer, self.terms.timeline
        patches = [
            Patch(model, "train_step", timeline.step(self._train_step) if timeline is not None else self._train_step),
            Patch(model, "test_step", self._test_step),
            Patch(model, "reset_metrics", self._reset_metrics),
            Patch(model, RESULTS[self.flavor.name], self._results),
        ]
        if hasattr(optimizer, "finalize_variable_values"):
            patches.append(Patch(optimizer, "finalize_variable_values", _nothing))  # the client's Keras does it once
        with contextlib.ExitStack() as stack:
            stack.enter_context(patched(patches))
            for each in self.flavor.optimizers(model):  # a custom train_step may have several
                if self._rounds is not None:
                    stack.enter_context(self.flavor.replace_apply(inner_optimizer(each), self.exchange.apply))
                elif self.terms.comm.size > 1:
                    stack.enter_context(self.flavor.replace_apply(each, self.exchange.apply))
                elif self.guard is not None:
                    stack.enter_context(self.flavor.replace_apply(each, self.guard.apply))
            if self.terms.comm.size > 1 and self._rounds is None:
                model.jit_compile = False
            model.train_function = model.test_function = None
            yield
        model.train_function = model.test_function = None

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Let test functions exchange with other ranks, which XLA cannot compile; training in rounds stays compiled."""
        with contextlib.ExitStack() as stack:
            if self.terms.comm.size > 1:
                replace(stack, self.model, "jit_compile", False)
            yield

    def allow_idle(self, may_idle: bool) -> None:
        """Trace again where a later job's data may leave ranks without samples and the first job's did not."""
        if may_idle and not self.terms.may_idle:
            self.terms.allow_idle()
            self.model.train_function = self.model.test_function = None

    def peek(self, logs: Mapping[str, Any]) -> tuple[dict[str, Any], list[Tensor]]:
        """Return (logs, metric state) over all ranks; each rank's own state is unchanged. A collective."""
        values = self.totals.total()
        with self.totals.loaded(values):
            return self._whole(dict(logs)), values

    def _train_step(self, original: Any, element: Any) -> Any:
        with self.guard.step() if self.guard is not None else contextlib.nullcontext():
            return self._trained(original, *element)

    def _trained(self, original: Any, batch: Any, share: Tensor) -> Any:
        if self._blocks is not None:
            logs, samples = self._blocks.train(original, batch)
            self.counted.assign(tf.stack([self.counted[0] + samples, samples, share[1]]))
            return logs
        self.counted.assign(tf.stack([self.counted[0] + share[0], share[0], share[1]]))
        if self._rounds is not None:
            self._rounds.tally.assign_add(share)
            return self._in_step(share, lambda _: call_converted(self.flavor.name, original, batch), alone=True)
        if self.terms.comm.size == 1:
            return call_converted(self.flavor.name, original, batch)
        return self._in_step(share, lambda step: self._differentiate(original, batch, share, step))

    def _test_step(self, original: Any, element: Any) -> Any:
        batch, share = element
        if self.terms.comm.size == 1:
            return call_converted(self.flavor.name, original, batch)
        return self._in_step(share, lambda step: call_converted(self.flavor.name, original, batch))

    def _in_step(self, share: Tensor, run: Any, *, alone: bool = False) -> Any:
        step = StepContext(self.terms, share, alone=alone)
        held = HeldMetrics(step, self.trainable.metrics) if self.terms.may_idle else None
        with steps.entered(step):
            logs = run(step)
            if not alone:
                assigned_state.flush(step)
        if held is not None:
            held.restore()
        return logs

    def _differentiate(self, original: Any, batch: Any, share: Tensor, step: StepContext) -> Any:
        if self._split:
            assert isinstance(self.exchange, GradientExchange)
            with contextlib.suppress(ExchangeInCompiled):
                return run_split(original, batch, share, step, self.exchange)
            self._split = False
        probed = None if tf.executing_eagerly() else self._traced_pass(batch)
        if probed is None:
            return call_converted(self.flavor.name, original, batch)
        assert isinstance(self.exchange, GradientExchange)
        found = probed.call(step, batch, share)
        self.exchange.run(step, found.deferred[0])
        return found.logs

    def _reset_metrics(self, original: Any) -> Any:
        original()
        self.totals.started()

    def _results(self, original: Any, logs: Any) -> Any:
        """Replace Keras's own method: return the metrics over all ranks, and assign them to the variables."""
        if self.terms.comm.size == 1:
            return original(logs)
        self.totals.load(self.totals.total())
        return original(self._whole(logs)) if isinstance(logs, dict) else original(logs)

    def _whole(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Return `logs` over all ranks: metrics from their (loaded) state, plain numbers added or averaged."""
        if self.terms.comm.size == 1:
            return logs
        sources, objects = self.terms.log_sources, metric_objects(self.model)
        known = {k: v for k, v in self.model.get_metrics_result().items() if k not in sources.plain}
        flat = flat_logs(logs)
        known.update((name, result_of(objects[i], name)) for name, i in sources.metrics.items() if name in flat)
        plain = sorted(name for name, value in flat.items() if name not in known and is_number(value))
        whole = {name: known.get(name, value) for name, value in flat.items()}
        if plain:
            weighed = [self._weighed(flat[name], name in sources.summed) for name in plain]
            whole.update(zip(plain, self.terms.comm.sum(weighed, "hfdt.logs"), strict=True))
        return _nested(logs, whole)

    def _weighed(self, number: Any, summed: bool) -> Tensor:
        """Return a number of the last step as this rank's addend to the global one, a sum or a mean over samples."""
        # tf.cast makes a float32 of a Python number first; tf_keras's logs are such numbers.
        value = tf.constant(number, tf.float64) if isinstance(number, float) else tf.cast(number, tf.float64)
        _, mine, total = tf.unstack(self.counted)
        if summed:
            return tf.where(mine > 0, value, tf.zeros_like(value))
        return tf.math.multiply_no_nan(value, tf.cast(mine, value.dtype) / tf.cast(total, value.dtype))


def _nested(logs: Mapping[str, Any], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `flat` in the dicts in which `logs` has them: Keras sorts the names of each dict."""
    return {name: flat[name] if name in flat else _nested(value, flat) for name, value in logs.items()}


def _nothing(original: Any, *args: Any, **kwargs: Any) -> None:
    return None
