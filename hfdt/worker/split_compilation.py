"""`jit_compile` with an exchange inside a step, compiled in two halves since XLA cannot compile Horovod's operations.

    [forward, gradient, metrics]  ->  exchange  ->  [optimizer's apply]

The first half is Keras's own train_step, whose apply is deferred (exchange.py, Deferred).
"""

from typing import Any

import tensorflow as tf

from hfdt.algorithm import Tree
from hfdt.worker import step_context as steps
from hfdt.worker.exchange import Deferred, GradientExchange
from hfdt.worker.step_context import StepContext, StepTerms, Tensor


def why_not(flavor: Any, model: Any, terms: StepTerms) -> str:
    """Return why a step cannot be split, or "". Called after the probe has run a step."""
    if not terms.own_step:
        return "the model has a train_step of its own"
    asked = {name.split(".")[1] for name in terms.sent_bytes}
    if "batchnorm" in asked:
        return "BatchNorm's statistics are taken over ranks (--batch-norm local keeps it)"
    if asked & {"mask", "loss"}:
        return "a mask or weighted mean is counted over ranks"
    return ""


def run_split(train_step: Any, batch: Any, share: Tensor, step: StepContext, exchange: GradientExchange) -> Any:
    """Run one train_step in compiled halves. Raises ExchangeInCompiled where the first half needs other ranks."""
    put_off: list[Deferred] = []
    touched: dict[int, Any] = {}

    @tf.function(jit_compile=True, autograph=False)
    def first(batch: Any, share: Tensor) -> Any:
        inner = StepContext(step.terms, share, compiled=True)
        inner.deferred = put_off
        with steps.entered(inner):
            logs = train_step(batch)
        touched.update(inner.touched)
        return [g for g in put_off[-1].gradient if g is not None], logs

    gradient, logs = first(batch, share)
    step.touched.update(touched)
    deferred = put_off[-1]

    def second(gradient: Tree, variables: list[Any]) -> None:
        places = [g is not None for g in gradient]
        compiled = tf.function(
            lambda dense: deferred.apply(_spread(dense, places), variables), jit_compile=True, autograph=False
        )
        compiled([g for g in gradient if g is not None])

    present = [g is not None for g in deferred.gradient]
    exchange.run(step, Deferred(_spread(gradient, present), deferred.variables, second))
    return logs


def _spread(dense: Tree, present: list[bool]) -> Tree:
    """Insert None where `present` is False."""
    left = iter(dense)
    return [next(left) if there else None for there in present]
