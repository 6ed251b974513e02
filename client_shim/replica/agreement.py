"""Agreement of ranks on the values that a replicated script reads: random numbers, clocks, user input, downloads.

All ranks run the same lines. They stay in step only while they take the same branches.
"""

import builtins
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import wrapt

from client_shim.replica.clocks import agreed_clocks
from client_shim.replica.entropy import shared
from client_shim.replica.steps import is_main
from client_shim.resume.randomness import seed_all
from fdt import compat
from fdt.patches import replace
from fdt.process_group import ReplicaGroup


@contextlib.contextmanager
def agreed(group: ReplicaGroup, seed: int, *, clocks: bool = True) -> Iterator[None]:
    """Within the context, all ranks read the same values.

    Args:
        group: The process group of the ranks.
        seed: The run's seed, for a script that sets none.
        clocks: Whether all ranks read rank 0's clocks.
    """
    seed_all(seed)
    with contextlib.ExitStack() as stack:
        shared(stack, seed)
        if clocks:
            agreed_clocks(stack, group)
        if sys.stdin is not None:
            replace(stack, sys, "stdin", _StandardInput(sys.stdin, group))
        replace(stack, builtins, "input", functools.partial(_input, group, builtins.input, sys.stdin))
        for module, name in compat.DOWNLOADS.items():
            wrapt.register_post_import_hook(functools.partial(_one_by_one, stack, group, name), module)
        yield


class _StandardInput(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """sys.stdin, or its buffer, which rank 0's main thread reads for all ranks."""

    def __init__(self, original: Any, group: ReplicaGroup) -> None:
        super().__init__(original)
        self._self_group = group

    @property
    def buffer(self) -> Any:
        """The bytes."""
        return _StandardInput(self.__wrapped__.buffer, self._self_group)

    def read(self, size: int = -1) -> Any:
        """Return up to `size` characters; -1: all."""
        return self._self_read("read", size)

    def readline(self, size: int = -1) -> Any:
        """Return a line, of up to `size` characters."""
        return self._self_read("readline", size)

    def readlines(self, hint: int = -1) -> list[Any]:
        """Return all lines."""
        return list(self)

    def __iter__(self) -> Iterator[Any]:
        while line := self.readline():
            yield line

    def __next__(self) -> Any:
        return next(iter(self))

    def _self_read(self, name: str, size: int) -> Any:
        group, original = self._self_group, getattr(self.__wrapped__, name)
        if not is_main():
            return original(size)  # ranks are not at the same line
        read = original(size) if group.rank == 0 else None
        text = group.broadcast(read.decode("latin-1") if isinstance(read, bytes) else read, "standard input")
        return text if hasattr(self.__wrapped__, "encoding") else text.encode("latin-1")


def _input(group: ReplicaGroup, original: Callable[..., str], stdin: Any, prompt: object = "") -> str:
    """Read a line on rank 0 and broadcast it; the end of rank 0's input raises EOFError on every rank."""
    answer: str | None = None
    if group.rank == 0:
        with contextlib.suppress(EOFError), contextlib.ExitStack() as stack:
            replace(stack, sys, "stdin", getattr(stdin, "__wrapped__", stdin))  # a terminal's lines are edited
            answer = original(prompt)
    answer = group.broadcast(answer, "input")
    if answer is None:
        raise EOFError("EOF when reading a line")
    return answer


def _one_by_one(stack: contextlib.ExitStack, group: ReplicaGroup, name: str, module: Any) -> None:
    """Patch a download function: rank 0 downloads, then the other ranks find the file in the cache."""
    original = getattr(module, name)

    @functools.wraps(original)
    def after_rank_0(*args: Any, **kwargs: Any) -> Any:
        if group.rank == 0:
            found = original(*args, **kwargs)
            group.barrier("download")
            return found
        group.barrier("download")
        return original(*args, **kwargs)

    replace(stack, module, name, after_rank_0)
