"""The patches of Keras's optimizers, metrics and trainers that the ranks of both engines install."""

from collections.abc import Sequence
from typing import Any, Protocol

from fdt.patches import Patch


class Exchanging(Protocol):
    """A rank's side of the patches, common to both engines. Each patched method receives the original first."""

    metrics: Any  # client_shim.replica.metric_state.Metrics

    def applying(self) -> bool:
        """Return whether the optimizer's own update is running, or no gradients are to be exchanged."""
        ...

    def exchanged(self, optimizer: Any, apply: Any, gradients: list[Any], variables: list[Any]) -> Any:
        """Exchange gradients and update the variables, in place of the outermost optimizer's update.

        Args:
            optimizer: The optimizer.
            apply: Its own update, called as `apply(gradients, variables)`.
            gradients: The rank's gradients.
            variables: The variables, in the same order.
        """
        ...

    def train_on_batch(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Run in place of the model's `train_on_batch`."""
        ...

    def fit(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Run in place of the model's `fit`."""
        ...


def patches(rank: Exchanging, flavor: str) -> list[Patch]:
    """Return the patches that make `rank` exchange the gradients of `flavor`: "keras" or "tf_keras"."""
    trainer, metric, optimizers = _keras3() if flavor == "keras" else _tf_keras()
    name, adapter = ("apply", _apply) if flavor == "keras" else ("apply_gradients", apply_gradients)
    return [
        *(Patch(kind, name, adapter(rank)) for kind in optimizers),
        Patch(metric, "__init__", rank.metrics.made),
        Patch(trainer, "train_on_batch", rank.train_on_batch),
        Patch(trainer, "fit", rank.fit),
    ]


def optimizers(flavor: str) -> Sequence[type]:
    """Return the base classes of the optimizers of `flavor`."""
    return (_keras3() if flavor == "keras" else _tf_keras())[2]


def _keras3() -> tuple[type, type, Sequence[type]]:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.metrics.metric import Metric
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    return TensorFlowTrainer, Metric, (BaseOptimizer, LossScaleOptimizer)


def _tf_keras() -> tuple[type, type, Sequence[type]]:
    from tf_keras.src.engine.training import Model
    from tf_keras.src.metrics.base_metric import Metric
    from tf_keras.src.mixed_precision.loss_scale_optimizer import LossScaleOptimizer, LossScaleOptimizerV3
    from tf_keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2
    from tf_keras.src.optimizers.optimizer import Optimizer

    return Model, Metric, (Optimizer, OptimizerV2, LossScaleOptimizer, LossScaleOptimizerV3)


def _apply(rank: Exchanging) -> Any:
    """Return the function that replaces Keras 3's Optimizer.apply."""

    def apply(original: Any, optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if rank.applying():
            return original(optimizer, grads, trainable_variables)
        known = optimizer._trainable_variables if trainable_variables is None else trainable_variables
        return rank.exchanged(optimizer, lambda g, v: original(optimizer, g, v), list(grads), list(known))

    return apply


def apply_gradients(rank: Exchanging) -> Any:
    """Return the function that replaces Optimizer.apply_gradients of tf_keras and TensorFlow 1."""

    def apply(original: Any, optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        if rank.applying():
            return original(optimizer, grads_and_vars, *args, **kwargs)
        pairs = list(grads_and_vars)

        def now(gradients: list[Any], variables: list[Any]) -> Any:
            return original(optimizer, list(zip(gradients, variables, strict=True)), *args, **kwargs)

        return rank.exchanged(optimizer, now, [g for g, _ in pairs], [v for _, v in pairs])

    return apply
