"""The run supervisor, `python -m fdt.runs.supervisor DIRECTORY`: starts a detached run and records its end.

It is the client's parent, in a session without a terminal. It is a separate process because a client that is killed, or
ends by os._exit, cannot record its own end.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from fdt.runs.registry import VARIABLE, DetachedRun, ProcessIdentity


def main(directory: str) -> None:
    """Run the command of the detached run in `directory`, and pass signals on to it."""
    run = DetachedRun(Path(directory))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the client inherits it, as under nohup
    early: list[int] = []  # signals that arrived before the client was started
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: early.append(number))  # the client gets the default, not "ignored"
    client = subprocess.Popen(run.read("run")["command"], stdin=subprocess.DEVNULL, env=_environment(directory))
    _pass_on(client)
    for came in early:
        client.send_signal(came)
    processes = {"keeper": ProcessIdentity.of(os.getpid()), "client": ProcessIdentity.of(client.pid)}
    with contextlib.suppress(OSError):  # a full disk: the client continues; its end is recorded if there is room
        run.write("processes", {name: asdict(found) for name, found in processes.items() if found is not None})
    run.write("end", {"code": client.wait(), "at": time.time()})


def _environment(directory: str) -> dict[str, str]:
    return {**os.environ, VARIABLE: directory, "PYTHONUNBUFFERED": "1"}  # so that output appears at once


def _pass_on(client: "subprocess.Popen[bytes]") -> None:
    """Forward signals to the client: a signal to the supervisor is meant for the run."""

    def tell(number: int, _frame: FrameType | None) -> None:
        client.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, tell)


if __name__ == "__main__":
    main(sys.argv[1])
