"""The patches of Keras's optimizers, metrics and trainers that the ranks of both engines install."""

from typing import Any, Protocol

from fdt import compat
from fdt.patches import Patch


class Exchanging(Protocol):
    """A rank's side of the patches, common to both engines. Each patched method receives the original first."""

    metrics: Any  # client_shim.replica.metric_state.Metrics

    def applying(self) -> bool:
        """Return whether the optimizer's own update is running, or no gradients are to be exchanged."""

    def exchanged(self, optimizer: Any, apply: Any, gradients: list[Any], variables: list[Any]) -> Any:
        """Exchange gradients and update the variables, in place of the outermost optimizer's update.

        Args:
            optimizer: The optimizer.
            apply: Its own update, called as `apply(gradients, variables)`.
            gradients: The rank's gradients.
            variables: The variables, in the same order.
        """

    def train_on_batch(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Run in place of the model's `train_on_batch`."""

    def fit(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Run in place of the model's `fit`."""


def patches(rank: Exchanging, flavor: str) -> list[Patch]:
    """Return the patches that make `rank` exchange the gradients of `flavor`: "keras" or "tf_keras"."""
    private = compat.of(flavor)
    adapter = _apply if flavor == "keras" else apply_gradients
    return [
        *(Patch(kind, private.APPLY, adapter(rank)) for kind in private.OPTIMIZERS),
        Patch(private.Metric, "__init__", rank.metrics.made),
        Patch(private.Trainer, "train_on_batch", rank.train_on_batch),
        Patch(private.Trainer, "fit", rank.fit),
    ]


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
