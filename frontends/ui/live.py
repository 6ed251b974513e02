"""This user's runs as the live page shows them: the registries, the records as they grow, processes and logs."""

import os
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fdt.cli.detach import AttachedRun, attached_runs, stop
from fdt.environment import is_chatter
from fdt.launch import describe
from fdt.runs import DetachedRun, ProcessIdentity, runs
from fdt.service.member import ENGINE_VARIABLE, resident_bytes
from frontends.report.reader import RunReader

LOG_END_BYTES = 4096
LONGEST = 300  # characters of a log's line
LISTED = 200  # runs, the newest


class LiveWorkers:
    """The processes of one run's workers on this machine, and the ends of their logs.

    Args:
        directory: The run's log directory; files elsewhere are not read.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()
        self._known: dict[int, ProcessIdentity | None] = {}  # by number, as first seen; None: no worker of a run

    def measured(self, worker: dict[str, Any], running: bool) -> dict[str, Any]:
        """Return `worker` (RunData.as_json) with its process's state and memory, and its log's last line."""
        found = {**worker, "last": self._last_line(worker["log"])}
        process = self._process(int(worker["pid"])) if running else None
        if process is None:
            return found
        if not process.alive():
            return {**found, "state": "gone" if worker["state"] != "lost" else "lost"}
        return {**found, "memory_bytes": resident_bytes(process.pid) or worker["memory_bytes"]}

    def _process(self, pid: int) -> ProcessIdentity | None:
        if pid not in self._known:
            self._known[pid] = ProcessIdentity.of(pid) if is_worker(pid) else None
        return self._known[pid]

    def _last_line(self, log: str) -> str:
        file = Path(log)
        if not log or file.parent.resolve() != self._directory or file.is_symlink():
            return ""
        try:
            with open(file, "rb") as opened:
                opened.seek(max(0, os.fstat(opened.fileno()).st_size - LOG_END_BYTES))
                lines = opened.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        shown = (line.strip()[:LONGEST] for line in reversed(lines) if line.strip() and not is_chatter(line))
        return next(shown, "")


def is_worker(pid: int) -> bool:
    """Return whether the process is a member of an engine. A pid of another container names another process here."""
    try:
        return pid > 0 and f"{ENGINE_VARIABLE}=".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


class LiveRun:
    """One run. An attached run that has ended stays as it was last seen."""

    def __init__(self, run: DetachedRun) -> None:
        self.run, self.attached = run, isinstance(run, AttachedRun)
        self.name, self._about = run.name, run.read("run")
        self._row: dict[str, Any] = {}
        self._reader: RunReader | None = None
        self._workers: LiveWorkers
        self.stopping = False

    def row(self) -> dict[str, Any]:
        """Return the run's line in the list."""
        if self.attached and self._row and (self.run.over() or not self.run.directory.exists()):
            return {**self._row, "state": "ended", "running": False, "can_stop": False}
        over = self.run.over()
        progress = self.run.read("progress")
        self._row = {
            "name": self.name,
            "kind": "attached" if self.attached else "detached",
            "state": self._state(over),
            "running": not over,
            "can_stop": not over and self.run.is_local() and not self.stopping,
            "at": str(progress.get("at", "")),
            "line": str(progress.get("line", "")),
            "created": self._about.get("created", 0.0),
            "command": shlex.join(map(str, self._command())),
        }
        return self._row

    def page(self) -> dict[str, Any] | None:
        """Return what the page shows of the run; None while it has no records."""
        logs = self.run.read("logs").get("directory") or self.run.logs
        if self._reader is None:
            self._reader, self._workers = RunReader(Path(logs), self.name), LiveWorkers(Path(logs))
        try:
            self._reader.update()
        except OSError:  # not written yet; or an attached run has ended, and its temporary directory with it
            pass
        if not self._reader.data.started:
            return None
        page = self._reader.as_json()
        if self.attached and page["state"] == "lost":  # its last records may have gone with its directory
            page |= {"state": "ended", "error": ""}
        running = page["state"] == "running"
        return {**page, "workers": [self._workers.measured(worker, running) for worker in page["workers"]]}

    def stop(self) -> None:
        """End the run as Ctrl-C would; returns at once."""
        self.stopping = True
        threading.Thread(target=stop, args=(self.run,), daemon=True).start()

    def _state(self, over: bool) -> str:
        end = self.run.read("end")
        if over or not self.attached:
            return self.run.state() if not end else "finished" if not end["code"] else describe(end["code"])
        return "stopping" if self.stopping else "training" if self.run.begun() else "starting"

    def _command(self) -> Sequence[object]:
        command = list(self._about.get("command") or [])
        if self.attached or "run" not in command:
            return command
        return [self._about.get("engine", ""), *command[command.index("run") :]]


class LiveRuns:
    """All runs of this user. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, LiveRun] = {}

    def state(self, chosen: Sequence[str]) -> dict[str, Any]:
        """Return the list of runs, the newest first, and the pages of the `chosen` ones, by name."""
        with self._lock:
            self._refresh()
            rows = [run.row() for run in self._runs.values()]
            pages = [self._runs[name].page() for name in chosen if name in self._runs]
        rows.sort(key=lambda row: float(row["created"]), reverse=True)
        return {"rows": rows[:LISTED], "runs": [page for page in pages if page is not None]}

    def stop(self, name: str) -> bool:
        """End a run that can be ended; return whether there is one."""
        with self._lock:
            self._refresh()
            run = self._runs.get(name)
            found = run is not None and bool(run.row()["can_stop"])
            if run is not None and found:
                run.stop()
        return found

    def _refresh(self) -> None:
        """Take up new runs, and drop removed ones of which nothing is shown any more."""
        found = {run.name: run for run in [*runs(), *attached_runs()]}
        for name, run in found.items():
            if name not in self._runs:
                self._runs[name] = LiveRun(run)
        gone = [name for name, run in self._runs.items() if name not in found and not run.attached]
        for name in gone:
            del self._runs[name]
