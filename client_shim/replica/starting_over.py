"""Restart of a run as a replicated script, when it reaches a training loop that capture detection did not find."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from client_shim.imports import OwnLoop

SAID = "{command}: {where} trains outside fit: the run starts over, and every rank runs the script"


@contextlib.contextmanager
def starting_over(command: str, given: Mapping[str, Any]) -> Iterator[None]:
    """Within, an OwnLoop replaces this process by the same command with `--capture replica`.

    No variable has been updated by then. The error is raised instead if the user chose a capture, if the run was
    detached,
    if its engine runs elsewhere, or if a `fit` has trained.

    Args:
        command: The command's name, for the message.
        given: The command line's options.
    """
    try:
        yield
    except OwnLoop as found:
        argv = sys.orig_argv
        settled = given["capture"] not in (None, "auto") or given.get("detach") or given.get("server")
        if settled or found.trained or "run" not in argv:
            raise
        print(SAID.format(command=command, where=found.where), file=sys.stderr, flush=True)
        sys.stdout.flush()
        behind = argv.index("run") + 1
        os.execv(sys.executable, [sys.executable, *argv[1:behind], "--capture", "replica", *argv[behind:]])
