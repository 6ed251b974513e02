"""The processes and files that a command used, and those left after its end, found by a mark in its environment."""

import secrets
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from tests.ssh_hosts import SshHosts

MARK = "CHAOS_MARK"  # inherited by whatever the command starts
SHARED_MEMORY = "/dev/shm/"
LOOK_S = 0.3
LOGGED = ("records.jsonl", "interfaces.json")  # beside the logs of a run that failed


class Aftermath:
    """One command's traces. Give it `env`; enter while it runs, so that shared memory is noticed that goes again."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(8)
        self._folder = tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True)
        self.temporary = Path(self._folder.name)
        self.shared: set[Path] = set()
        self.hosts: SshHosts | None = None  # of the command, if it has hosts of its own
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    @property
    def env(self) -> Mapping[str, str]:
        """The environment that the command must have."""
        return {MARK: self._mark, "TMPDIR": str(self.temporary), "XDG_STATE_HOME": str(self.temporary / "state")}

    def __enter__(self) -> "Aftermath":
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the remaining processes, but only those with the mark."""
        self._over.set()
        self._watch.join()
        for process in self.processes():
            process.kill()
        if self.hosts is not None:
            self.hosts.close()
        self._folder.cleanup()

    def processes(self) -> list[psutil.Process]:
        """All living processes of the command, whatever their parents are now, without zombies."""
        return [p for p in psutil.process_iter() if self._is_ours(p)]

    def wait(self, within_s: float) -> None:
        """Wait until no process is left."""
        deadline = time.monotonic() + within_s
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)

    def left(self) -> list[str]:
        """Return remaining processes, their shared memory, sockets, and temporary files other than logs."""
        found = [f"process {' '.join(words_of(p)[:4])}" for p in self.processes()]
        found += [f"shared memory {path}" for path in sorted(self.shared) if path.exists()]
        found += self.hosts.left() if self.hosts is not None else []
        return found + [f"{_kind(path)} {path.relative_to(self.temporary)}" for path in self._files()]

    def _files(self) -> Iterator[Path]:
        """Logs may remain, with the code that their tracebacks show, and a detached run's directory."""
        for path in sorted(self.temporary.rglob("*")):
            kept = path.suffix in (".log", ".said") or path.name.startswith(("__autograph_generated_file", *LOGGED))
            if not path.is_dir() and not kept and "state" not in path.parts:
                yield path

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            for process in self.processes():
                self.shared.update(_shared_memory(process))


def _shared_memory(process: psutil.Process) -> Iterator[Path]:
    """What it has mapped of /dev/shm, and its engine's store: each the topmost file or folder."""
    try:
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        engine = process.environ().get("FDT_ENGINE", "").removeprefix("unix:")
    except (OSError, psutil.Error):
        return
    for word in [*(line.split(maxsplit=5)[-1] for line in maps.splitlines() if SHARED_MEMORY in line), engine]:
        if word.startswith(SHARED_MEMORY):
            yield Path(SHARED_MEMORY) / word.removeprefix(SHARED_MEMORY).split(" ")[0].split("/")[0]


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _kind(path: Path) -> str:
    try:
        return "socket" if stat.S_ISSOCK(path.lstat().st_mode) else "file"
    except OSError:
        return "file"
