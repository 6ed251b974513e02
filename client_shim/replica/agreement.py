"""What every rank of a replica script reads alike: random numbers, the clock, what the user types, what is downloaded.

Replicas run the same lines; they stay together only while they branch alike.
"""

import builtins
import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import wrapt

from client_shim.replica.clocks import agreed_clocks
from client_shim.replica.entropy import shared
from client_shim.replica.replacing import replace
from client_shim.seeding import seed_all
from fdt.process_group.group import ReplicaGroup

_DOWNLOADS = {"keras.src.utils.file_utils": "get_file", "tf_keras.src.utils.data_utils": "get_file"}


@contextlib.contextmanager
def agreed(group: ReplicaGroup, seed: int, *, clocks: bool = True) -> Iterator[None]:
    """Within, all ranks read the same. `seed`: the run's, for a script that sets none. `clocks`: rank 0's for all."""
    seed_all(seed)
    with contextlib.ExitStack() as stack:
        shared(stack, seed)
        if clocks:
            agreed_clocks(stack, group)
        replace(stack, builtins, "input", functools.partial(_input, group, builtins.input))
        for module, name in _DOWNLOADS.items():
            wrapt.register_post_import_hook(functools.partial(_one_by_one, stack, group, name), module)
        yield


def _input(group: ReplicaGroup, original: Callable[..., str], prompt: object = "") -> str:
    """Asked once, by rank 0. The end of its input is everybody's."""
    answer: str | None = None
    if group.rank == 0:
        with contextlib.suppress(EOFError):
            answer = original(prompt)
    answer = group.broadcast(answer, "input")
    if answer is None:
        raise EOFError("EOF when reading a line")
    return answer


def _one_by_one(stack: contextlib.ExitStack, group: ReplicaGroup, name: str, module: Any) -> None:
    """Rank 0 downloads; the others then find the file where it is kept."""
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
