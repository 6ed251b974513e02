"""Import hooks that patch Keras's `fit` and optimizers when the script imports them, undone at the end."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from fdt import compat
from fdt.errors import CaptureError, NeedsReplica
from fdt.patches import at_imports, replace

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
def intercepted(fit: Fit, seed: int | None = None) -> Iterator[None]:
    """Within, `model.fit(...)` of either Keras calls `fit(original, model, args, kwargs)`, even if imported late.

    The orders that the script draws of its shuffled datasets are counted, because the order of a `fit` depends on them.
    `seed` determines the seeds of unseeded shuffles that keep one order.
    """
    with contextlib.ExitStack() as stack, at_imports() as when:
        when("tensorflow", functools.partial(_watch_shuffles, stack, seed))
        for module, cls in compat.TRAINERS.items():
            when(module, functools.partial(_patch, stack, cls, fit))
        for module, (cls, backend) in compat.OTHER_BACKENDS.items():
            when(module, functools.partial(_patch, stack, cls, functools.partial(_refuse, backend)))
        yield


@contextlib.contextmanager
def own_loops_refused(check: Callable[[str], None]) -> Iterator[None]:
    """Call `check`, within the context, with the name of the method by which gradients are about to be applied.

    Without this the script would train in one process without notice.
    """
    with contextlib.ExitStack() as stack, at_imports() as when:
        for module, (cls, name) in compat.OPTIMIZERS.items():
            when(module, functools.partial(_check_first, stack, check, cls, name))
        yield


def _check_first(stack: contextlib.ExitStack, check: Callable[[str], None], cls: str, name: str, module: Any) -> None:
    owner = getattr(module, cls)
    original = getattr(owner, name)

    @functools.wraps(original)
    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        check(name)
        return original(self, *args, **kwargs)

    replace(stack, owner, name, patched)


def _watch_shuffles(stack: contextlib.ExitStack, seed: int | None, _: Any) -> None:
    from client_shim.capture import kept_orders, orders

    stack.enter_context(orders.counted())
    stack.enter_context(kept_orders.seeded(seed))


def _patch(stack: contextlib.ExitStack, name: str, fit: Fit, module: Any) -> None:
    cls = getattr(module, name)
    original = cls.fit

    @functools.wraps(original)
    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        return fit(original, self, args, kwargs)

    replace(stack, cls, "fit", patched)


def _refuse(backend: str, *_: Any) -> Any:
    raise CaptureError(f"Keras must use TensorFlow. Received: KERAS_BACKEND={backend}; set KERAS_BACKEND=tensorflow")
