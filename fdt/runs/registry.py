"""Detached runs, each a directory that only its user can enter.

~/.local/state/hfdt/runs/train-1/       ($XDG_STATE_HOME instead of ~/.local/state where it is set)
    run.json          what was started, where and when           written by the command
    processes.json    keeper and client                          by the keeper (supervisor.py)
    end.json          the client's exit code                     by the keeper
    progress.json     how training stands                        by the client (fdt/report/detached.py)
    output            what the script and the run print
    logs/             records.jsonl, a log per worker            unless --log-dir says elsewhere
"""

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fdt.errors import UsageError, UserError
from fdt.launch.local import describe
from fdt.private import is_private
from fdt.runs.identity import ProcessIdentity, space

VARIABLE = "FDT_DETACHED"  # the client's own directory
STARTING_S = 60.0  # a keeper that has not noted itself by then will not


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
        """`what`.json; empty where it is not there."""
        try:
            noted: dict[str, Any] = json.loads((self.directory / f"{what}.json").read_text())
        except (OSError, ValueError):
            return {}
        return noted

    def write(self, what: str, noted: Mapping[str, Any]) -> None:
        """A reader finds what was there before, or this, whole."""
        new = self.directory / f".{what}.{os.getpid()}"
        new.write_text(json.dumps(noted))
        os.replace(new, self.directory / f"{what}.json")

    # -- how it stands ------------------------------------------------------------------------------------------------
    def client(self) -> ProcessIdentity | None:
        return self._process("client")

    def begun(self) -> bool:
        """Has a step been trained?"""
        return bool(self.read("progress").get("begun"))

    def here(self) -> bool:
        """Whether it was started on this machine, whose name may be another now: a home may be on many."""
        noted = self.read("run")
        same_space = bool(noted.get("space")) and noted["space"] == space()
        return same_space or bool(noted.get("host") == socket.gethostname())

    def over(self) -> bool:
        """Has it ended, whoever noted it?"""
        if self.read("end"):
            return True
        processes = self.read("processes")
        if not self.here():
            return False
        if not processes:
            return bool(time.time() - self.read("run").get("created", 0.0) > STARTING_S)
        alive = [self._process(name) for name in processes]
        return not any(each is not None and each.alive() for each in alive) and not self.read("end")

    def exit_code(self) -> int:
        """As a shell has it. 1 where nobody noted the end."""
        code: int = self.read("end").get("code", 1)
        return code if code >= 0 else 128 - code

    def killed(self) -> bool:
        """Whether it could not end by itself."""
        return bool(self.read("end").get("code", -1) < 0)

    def state(self) -> str:
        """In a few words."""
        end = self.read("end")
        if end:
            return "done" if not end["code"] else f"ended: {describe(end['code'])}"
        if not self.here():
            return f"on {self.read('run').get('host')}"
        if self.over():
            return "lost"
        return "training" if self.begun() else "starting"

    def at(self) -> str:
        """The epoch, "3/10", or in a loop of the script's own the step."""
        return str(self.read("progress").get("at", ""))

    def remove(self) -> None:
        """Forget a run that is over. Raises UserError for one that is not."""
        if not self.over():
            raise UserError(f"a run must be over to be removed; --stop ends it. Received: {self.name}, {self.state()}")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _process(self, name: str) -> ProcessIdentity | None:
        noted = self.read("processes").get(name)
        return None if noted is None else ProcessIdentity(noted["pid"], noted["started"])


def home() -> Path:
    """Where this user's runs are; made when the first is."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "hfdt" / "runs"


def create(
    engine: str, script: str, command: Sequence[str], *, cwd: Path | None = None, run_dir: Path | None = None
) -> DetachedRun:
    """A new run's directory, named after the script. Raises UserError where it cannot be made.

    `cwd`: where `command` was typed. `run_dir`: that of its --run-dir or --resume.
    """
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", Path(script).stem).strip("-") or "script"
    try:
        home().mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(home()):
            raise UserError(f"detached runs need a directory that is this user's alone. Received: {home()}; chmod 700")
        run = _numbered(stem)
        run.write(
            "run",
            {
                "engine": engine,
                "script": os.path.abspath(script),
                "command": list(command),
                "cwd": str(cwd or Path.cwd()),
                "run_dir": str(run_dir or ""),
                "host": socket.gethostname(),
                "space": space(),
                "created": time.time(),
            },
        )
    except OSError as error:
        raise UserError(f"detached runs need {home()}; XDG_STATE_HOME says elsewhere. Received: {error}") from None
    return run


def runs() -> list[DetachedRun]:
    """All of this user's, the oldest first. What somebody else has put there is none."""
    directories = list(home().iterdir()) if is_private(home()) else []
    found = [DetachedRun(directory) for directory in directories if is_private(directory)]
    noted = [(run.read("run").get("created"), run) for run in found]  # none: it is just being made
    return [run for created, run in sorted(((c, r) for c, r in noted if c is not None), key=lambda pair: pair[0])]


def find(name: str) -> DetachedRun:
    """Raises UsageError where there is no run of that name."""
    for run in runs():
        if run.name == name:
            return run
    raise UsageError(f"there must be a run of that name; `attach` without one lists them. Received: {name}")


def _numbered(stem: str) -> DetachedRun:
    pattern = re.compile(rf"{re.escape(stem)}-(\d+)")
    taken = [int(match[1]) for match in map(pattern.fullmatch, os.listdir(home())) if match]
    number = max(taken, default=0) + 1
    while True:
        try:
            (home() / f"{stem}-{number}").mkdir(mode=0o700)
            return DetachedRun(home() / f"{stem}-{number}")
        except FileExistsError:  # another command's, just now
            number += 1
