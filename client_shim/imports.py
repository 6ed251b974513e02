"""Import hooks that patch Keras's `fit` and optimizers when the script imports them, undone at the end."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import wrapt

from fdt import compat
from fdt.errors import CaptureError, NeedsReplica
from fdt.patches import replace

# (original, model, args, kwargs) -> fit's result
Fit = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


class OwnLoop(NeedsReplica):
    """Error of a training loop that capture detection did not find: gradients are about to be applied outside `fit`."""

    def __init__(self, name: str, where: str, *, trained: bool) -> None:
        super().__init__(
            f"the script trains outside fit ({name} at {where}), so every rank must run the script. "
            "Use --capture replica; with --capture extract this loop trains in the script's process only",
            f"{where} trains outside fit",
            trained=trained,
        )


@contextlib.contextmanager
def intercepted(fit: Fit) -> Iterator[None]:
    """Within, `model.fit(...)` of either Keras calls `fit(original, model, args, kwargs)`, even if imported late.

    The orders that the script draws of its shuffled datasets are counted, because the order of a `fit` depends on them.
    """
    with contextlib.ExitStack() as stack:
        active = [True]
        stack.callback(active.clear)  # a hook that runs after the end does nothing
        _when_imported("tensorflow", functools.partial(_count_orders, stack, active))
        for module, cls in compat.TRAINERS.items():
            _when_imported(module, functools.partial(_patch, stack, active, cls, fit))
        for module, (cls, backend) in compat.OTHER_BACKENDS.items():
            _when_imported(module, functools.partial(_patch, stack, active, cls, functools.partial(_refuse, backend)))
        yield


@contextlib.contextmanager
def own_loops_refused(check: Callable[[str], None]) -> Iterator[None]:
    """Call `check`, within the context, with the name of the method by which gradients are about to be applied.

    Without this the script would train in one process without notice.
    """
    with contextlib.ExitStack() as stack:
        active = [True]
        stack.callback(active.clear)
        for module, (cls, name) in compat.OPTIMIZERS.items():
            _when_imported(module, functools.partial(_check_first, stack, active, check, cls, name))
        yield


def _check_first(
    stack: contextlib.ExitStack, active: list[bool], check: Callable[[str], None], cls: str, name: str, module: Any
) -> None:
    if not active:
        return
    owner = getattr(module, cls)
    original = getattr(owner, name)

    @functools.wraps(original)
    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        check(name)
        return original(self, *args, **kwargs)

    replace(stack, owner, name, patched)


def _when_imported(module: str, then: Callable[[Any], None]) -> None:
    wrapt.register_post_import_hook(then, module)


def _count_orders(stack: contextlib.ExitStack, active: list[bool], _: Any) -> None:
    from client_shim.capture.orders import counted

    if active:
        stack.enter_context(counted())


def _patch(stack: contextlib.ExitStack, active: list[bool], name: str, fit: Fit, module: Any) -> None:
    if not active:
        return
    cls = getattr(module, name)
    original = cls.fit

    @functools.wraps(original)
    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        return fit(original, self, args, kwargs)

    replace(stack, cls, "fit", patched)


def _refuse(backend: str, *_: Any) -> Any:
    raise CaptureError(f"Keras must use TensorFlow. Received: KERAS_BACKEND={backend}; set KERAS_BACKEND=tensorflow")
