"""Agreement on numbers that the script reads from tensors, for example in an `if`."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from client_shim.replica.steps import by_script
from fdt.compat.tensorflow import ops
from fdt.patches import replace


@contextlib.contextmanager
def agreed_reads(agreed: Callable[[Any], Any], methods: Sequence[str]) -> Iterator[None]:
    """Within the context, a number that the script reads from tensor `t` by one of `methods` is that of `agreed(t)`."""
    busy = [False]
    with contextlib.ExitStack() as stack:
        for name in methods:
            original = getattr(ops._EagerTensorBase, name)
            replace(stack, ops._EagerTensorBase, name, _reading(original, agreed, busy))
        yield


def _reading(original: Any, agreed: Callable[[Any], Any], busy: list[bool]) -> Any:
    @functools.wraps(original)
    def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if busy[0] or not by_script() or not _is_number(tensor):
            return original(tensor, *args, **kwargs)
        busy[0] = True
        try:
            tensor = agreed(tensor)
        finally:
            busy[0] = False
        return original(tensor, *args, **kwargs)

    return read


def _is_number(tensor: Any) -> bool:
    kinds = tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool
    return bool(kinds and tensor.shape.rank == 0)
