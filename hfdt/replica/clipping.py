"""Gradients that a script clips itself, before `apply` adds them over ranks: by the norm of a part. It is said once."""

import sys
from typing import Any

import tensorflow as tf

from client_shim.replica.steps import where
from fdt.patches import Patch

GRADIENT = "_fdt_gradient"
NOTE = (
    "gradients are clipped, or their norm is taken, before ranks add them: each takes that of its own part of the "
    "batch, and the numbers are not those of one machine. Received: {name} at {where}; an optimizer's own "
    "global_clipnorm, clipnorm or clipvalue clips what was added"
)


class Clipping:
    def __init__(self) -> None:
        self._said = False

    def patches(self) -> list[Patch]:
        names = ((tf, "clip_by_global_norm"), (tf, "clip_by_norm"), (tf, "clip_by_value"), (tf.linalg, "global_norm"))
        return [Patch(owner, name, self._call) for owner, name in names]

    def _call(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        given = tf.nest.flatten([args, kwargs])
        if not self._said and any(hasattr(each, GRADIENT) for each in given):
            self._said = True
            name = getattr(original, "__name__", "a norm")
            print(f"hfdt: {NOTE.format(name=name, where=where())}", file=sys.stderr, flush=True)
        return original(*args, **kwargs)


def note(gradients: Any) -> None:
    """These are of a rank's part of a batch."""
    for gradient in tf.nest.flatten(gradients):
        if isinstance(gradient, (tf.Tensor, tf.IndexedSlices)):
            setattr(gradient, GRADIENT, True)
