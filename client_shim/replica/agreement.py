"""What every rank of a replica script reads alike: random numbers, the clock, what the user types, what is downloaded.

Replicas run the same lines; they stay together only while they branch alike.
"""

import builtins
import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import wrapt

from client_shim.replica.replacing import replace
from client_shim.replica.steps import by_script, where
from client_shim.seeding import seed_all
from fdt.service.meeting import Meeting

_CLOCKS = ("time", "perf_counter", "monotonic")
_DOWNLOADS = {"keras.src.utils.file_utils": "get_file", "tf_keras.src.utils.data_utils": "get_file"}


@contextlib.contextmanager
def agreed(meeting: Meeting, seed: int, *, clocks: bool = True) -> Iterator[None]:
    """Within, all ranks read the same. `seed`: the run's, for a script that sets none. `clocks`: rank 0's for all."""
    seed_all(seed)
    with contextlib.ExitStack() as stack:
        seeds = _Streams(seed), _Streams(~seed)
        for name in _CLOCKS if clocks else ():
            replace(stack, time, name, functools.partial(_clock, meeting, getattr(time, name), name))
        replace(stack, builtins, "input", functools.partial(_input, meeting, builtins.input))
        replace(stack, np.random, "default_rng", functools.partial(_generator, np.random.default_rng, seeds))
        for module, name in _DOWNLOADS.items():
            wrapt.register_post_import_hook(functools.partial(_one_by_one, stack, meeting, name), module)
        yield


def _clock(meeting: Meeting, original: Callable[[], float], name: str) -> float:
    """Rank 0's clock, where the script itself reads it; libraries have their own."""
    now = original()
    if by_script():
        return float(meeting.same(name, now, where))
    return now


def _input(meeting: Meeting, original: Callable[..., str], prompt: object = "") -> str:
    """Asked once, by rank 0. The end of its input is everybody's."""
    answer: str | None = None
    if meeting.rank == 0:
        with contextlib.suppress(EOFError):
            answer = original(prompt)
    answer = meeting.same("input", answer, where)
    if answer is None:
        raise EOFError("EOF when reading a line")
    return answer


class _Streams:
    """Seeds for generators that are made without one, in order."""

    def __init__(self, seed: int) -> None:
        self._seed, self._count = seed, 0

    def next(self) -> Any:
        self._count += 1
        return np.random.SeedSequence([self._seed % 2**32, self._count])


def _generator(original: Callable[..., Any], seeds: tuple[_Streams, _Streams], seed: Any = None) -> Any:
    """Libraries, of which some processes have imported more than others, do not move the script's own."""
    streams = seeds[0 if by_script() else 1]
    return original(streams.next() if seed is None else seed)


def _one_by_one(stack: contextlib.ExitStack, meeting: Meeting, name: str, module: Any) -> None:
    """Rank 0 downloads; the others then find the file where it is kept."""
    original = getattr(module, name)

    @functools.wraps(original)
    def after_rank_0(*args: Any, **kwargs: Any) -> Any:
        if meeting.rank == 0:
            found = original(*args, **kwargs)
            meeting.same("download", None, where)
            return found
        meeting.same("download", None, where)
        return original(*args, **kwargs)

    replace(stack, module, name, after_rank_0)
