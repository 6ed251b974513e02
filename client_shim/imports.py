"""Patches that wait for Keras: put in when the script imports it, undone at the end."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import wrapt

from fdt.errors import CaptureError

Fit = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]  # (original, model, args, kwargs)

# Where `fit` is defined: module and class. tf.keras is one of the two.
_TRAINERS = {
    "keras.src.backend.tensorflow.trainer": "TensorFlowTrainer",
    "tf_keras.src.engine.training": "Model",
}
_REFUSED = {
    "keras.src.backend.jax.trainer": ("JAXTrainer", "jax"),
    "keras.src.backend.torch.trainer": ("TorchTrainer", "torch"),
}


@contextlib.contextmanager
def intercepted(fit: Fit) -> Iterator[None]:
    """Within, `model.fit(...)` of either Keras is `fit(original, model, args, kwargs)`, however late it is imported."""
    with contextlib.ExitStack() as stack:
        active = [True]
        stack.callback(active.clear)  # a hook that fires later does nothing
        for module, cls in _TRAINERS.items():
            _when_imported(module, functools.partial(_patch, stack, active, cls, fit))
        for module, (cls, backend) in _REFUSED.items():
            _when_imported(module, functools.partial(_patch, stack, active, cls, functools.partial(_refuse, backend)))
        yield


def _when_imported(module: str, then: Callable[[Any], None]) -> None:
    wrapt.register_post_import_hook(then, module)


def _patch(stack: contextlib.ExitStack, active: list[bool], name: str, fit: Fit, module: Any) -> None:
    if not active:
        return
    cls = getattr(module, name)
    original = cls.fit

    @functools.wraps(original)
    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        return fit(original, self, args, kwargs)

    cls.fit = patched
    stack.callback(setattr, cls, "fit", original)


def _refuse(backend: str, *_: Any) -> Any:
    raise CaptureError(f"Keras must run on TensorFlow. Received: KERAS_BACKEND={backend}; set KERAS_BACKEND=tensorflow")
