"""Detached runs: their registry, and the run supervisor, `python -m fdt.runs DIRECTORY`.

A run has a directory that only its user can enter ($XDG_STATE_HOME replaces ~/.local/state where it is set):
~/.local/state/hfdt/runs/train-1/
    run.json          the command, when and where it started     written by the command
    processes.json    the run supervisor and the client          written by the supervisor
    end.json          the client's exit code                     written by the supervisor
    progress.json     the progress of training                   written by the client (fdt/report/records.py)
    output            the output of the script and of the run
    logs/             records.jsonl, a log for each worker       unless --log-dir names another directory
The supervisor is the client's parent: a client that is killed cannot record its own end.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fdt.cli import file_of, module_of
from fdt.errors import UsageError, UserError
from fdt.launch import describe, stat_of
from fdt.security import is_private, replacing
from fdt.signals import PREEMPTED_BY

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SPACE = Path("/proc/self/ns/pid")
_STATE, _STARTED = 0, 19  # fields of /proc/PID/stat after the command's name (proc(5) counts from 3)


def space() -> str:
    """Return the scope of process numbers: a boot of a machine, and a container on it. "" where it is unknown."""
    try:
        return f"{_BOOT.read_text().strip()} {os.readlink(_SPACE)}"
    except OSError:
        return ""


@dataclass(frozen=True)
class ProcessIdentity:
    """A process. `started`: the boot of the machine, and the clock ticks between boot and start."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """Return the identity of a running process; None where there is none, or only a zombie."""
        try:
            fields, boot = stat_of(pid), _BOOT.read_text().strip()
        except OSError:
            return None
        return None if not fields or fields[_STATE] in "ZX" else cls(pid, f"{boot} {fields[_STARTED]}")

    def alive(self) -> bool:
        """Return whether the process still runs."""
        return ProcessIdentity.of(self.pid) == self

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process and to no other; do nothing when it has ended."""
        with contextlib.suppress(ProcessLookupError), contextlib.ExitStack() as closing:
            try:
                process = os.pidfd_open(self.pid)
                closing.callback(os.close, process)
            except (AttributeError, OSError):  # it has ended; or an old kernel, a sandbox, conda's Python without it
                if self.alive():
                    os.kill(self.pid, number)
                return
            if self.alive():  # then the descriptor is this process's
                signal.pidfd_send_signal(process, number)


VARIABLE = "FDT_DETACHED"  # holds the run's directory, for the client
STARTING_S = 60.0  # a supervisor that has not recorded itself by then has failed


class DetachedRun:
    """One run, by its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def output(self) -> Path:
        return self.directory / "output"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    def read(self, what: str) -> dict[str, Any]:
        """Return the content of `what`.json; empty where it does not exist."""
        try:
            noted: dict[str, Any] = json.loads((self.directory / f"{what}.json").read_text())
        except (OSError, ValueError):
            return {}
        return noted

    def write(self, what: str, noted: Mapping[str, Any]) -> None:
        """Replace `what`.json atomically: a reader finds the old content or the new one, complete."""
        with replacing(self.directory / f"{what}.json") as new:
            new.write_text(json.dumps(noted))

    # -- state --------------------------------------------------------------------------------------------------------
    def client(self) -> ProcessIdentity | None:
        return self._process("client")

    def begun(self) -> bool:
        """Return whether a step has been trained."""
        return bool(self.read("progress").get("begun"))

    def is_local(self) -> bool:
        """Return whether the run was started on this machine, under any name: machines may share a home directory."""
        noted = self.read("run")
        same_space = bool(noted.get("space")) and noted["space"] == space()
        return same_space or bool(noted.get("host") == socket.gethostname())

    def over(self) -> bool:
        """Return whether the run has ended, with or without a record of it."""
        if self.read("end"):
            return True
        processes = self.read("processes")
        if not self.is_local():
            return False
        if not processes:
            since_s = time.monotonic() - self.read("run").get("created_monotonic", -STARTING_S)
            return not 0 <= since_s <= STARTING_S  # below 0: the machine was started again
        alive = [self._process(name) for name in processes]
        return not any(each is not None and each.alive() for each in alive) and not self.read("end")

    def exit_code(self) -> int:
        """Return the exit code as a shell reports it; 1 where the end was not recorded."""
        code: int = self.read("end").get("code", 1)
        return code if code >= 0 else 128 - code

    def killed(self) -> bool:
        """Return whether a signal ended the client, or its end was not recorded."""
        return bool(self.read("end").get("code", -1) < 0)

    def state(self) -> str:
        """Return a short description of the state."""
        end = self.read("end")
        if end:
            return "done" if not end["code"] else f"ended: {describe(end['code'])}"
        if not self.is_local():
            return f"on {self.read('run').get('host')}"
        if self.over():
            return "lost"
        return "training" if self.begun() else "starting"

    def at(self) -> str:
        """Return the epoch, "3/10", or in a script's own loop the step."""
        return str(self.read("progress").get("at", ""))

    def remove(self) -> None:
        """Delete a run that has ended. Raises UserError for one that has not."""
        if not self.over():
            raise UserError(
                f"only a run that has ended can be removed; --stop ends it. Received: {self.name}, {self.state()}"
            )
        shutil.rmtree(self.directory, ignore_errors=True)

    def _process(self, name: str) -> ProcessIdentity | None:
        noted = self.read("processes").get(name)
        return None if noted is None else ProcessIdentity(noted["pid"], noted["started"])


def home() -> Path:
    """Return the directory of this user's runs, made with the first run. Raises UserError without a home directory."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "hfdt" / "runs"
    except RuntimeError:  # no HOME, and no entry in the password database
        raise UserError("this user has no home directory: set XDG_STATE_HOME to a directory") from None


def stem(script: str) -> str:
    """Return the name of a script or module, as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", module_of(script) or Path(script).stem).strip("-") or "script"


def described(
    engine: str, script: str, command: Sequence[str], cwd: Path | str, run_dir: Path | None
) -> dict[str, Any]:
    """Return the content of run.json for a run that starts now."""
    return {
        "engine": engine,
        "script": os.path.abspath(file_of(script)),
        "command": list(command),
        "cwd": str(cwd),
        "run_dir": str(run_dir or ""),
        "host": socket.gethostname(),
        "space": space(),
        "created": time.time(),
        "created_monotonic": time.monotonic(),
    }


def create(
    engine: str, script: str, command: Sequence[str], *, cwd: Path | None = None, run_dir: Path | None = None
) -> DetachedRun:
    """Create a new run's directory, named after the script.

    Args:
        engine: The engine's name.
        script: The script's path.
        command: The command that starts the run.
        cwd: The working directory of the user's command.
        run_dir: The directory of its --run-dir or --resume.

    Raises:
        UserError: The directory cannot be made.
    """
    try:
        home().mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(home()):
            raise UserError(f"the directory of detached runs must be this user's alone. Received: {home()}; chmod 700")
        run = _numbered(stem(script))
        run.write("run", described(engine, script, command, cwd or Path.cwd(), run_dir))
    except OSError as error:
        raise UserError(
            f"detached runs need the directory {home()}: {error}. XDG_STATE_HOME names another place"
        ) from None
    return run


def runs() -> list[DetachedRun]:
    """Return all of this user's runs, the oldest first. Directories of other users are ignored."""
    directories = list(home().iterdir()) if is_private(home()) else []
    found = [DetachedRun(directory) for directory in directories if is_private(directory)]
    noted = [(run.read("run").get("created"), run) for run in found]  # None: it is being created
    return [run for created, run in sorted(((c, r) for c, r in noted if c is not None), key=lambda pair: pair[0])]


def find(name: str) -> DetachedRun:
    """Return the run of this name. Raises UsageError where there is none."""
    for run in runs():
        if run.name == name:
            return run
    raise UsageError(f"no such run; `attach` without a name lists the runs. Received: {name}")


def _numbered(stem: str) -> DetachedRun:
    pattern = re.compile(rf"{re.escape(stem)}-(\d+)")
    taken = [int(match[1]) for match in map(pattern.fullmatch, os.listdir(home())) if match]
    number = max(taken, default=0) + 1
    while True:
        try:
            (home() / f"{stem}-{number}").mkdir(mode=0o700)
            return DetachedRun(home() / f"{stem}-{number}")
        except FileExistsError:  # another command has just made it
            number += 1


def main(directory: str) -> None:
    """Run the command of the detached run in `directory`, and pass signals on to it."""
    run = DetachedRun(Path(directory))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the client inherits it, as under nohup
    early: list[int] = []  # signals that arrived before the client was started
    for number in (signal.SIGINT, *PREEMPTED_BY):
        signal.signal(number, lambda number, frame: early.append(number))  # the client gets the default, not "ignored"
    env = {**os.environ, VARIABLE: directory, "PYTHONUNBUFFERED": "1"}  # so that output appears at once
    client = subprocess.Popen(run.read("run")["command"], stdin=subprocess.DEVNULL, env=env)
    _pass_on(client)
    for came in early:
        client.send_signal(came)
    processes = {"keeper": ProcessIdentity.of(os.getpid()), "client": ProcessIdentity.of(client.pid)}
    with contextlib.suppress(OSError):  # a full disk: the client continues; its end is recorded if there is room
        run.write("processes", {name: asdict(found) for name, found in processes.items() if found is not None})
    run.write("end", {"code": client.wait(), "at": time.time()})


def _pass_on(client: "subprocess.Popen[bytes]") -> None:
    """Forward signals to the client: a signal to the supervisor is meant for the run."""

    def pass_signal(number: int, _frame: FrameType | None) -> None:
        client.send_signal(number)

    for number in (signal.SIGINT, *PREEMPTED_BY):
        signal.signal(number, pass_signal)


if __name__ == "__main__":
    main(sys.argv[1])
