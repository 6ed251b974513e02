"""Discovery of an elastic run's hosts: a script that prints `host:slots` lines is run about every second.

The convention is that of horovodrun. A script that fails, hangs or prints something else changes nothing: the hosts
stay as they are, and a note says why.
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO

from fdt.errors import UserError
from fdt.launch import describe
from fdt.launch.hosts import Host, is_here, last_line, parse
from fdt.launch.mpirun import find_mpirun
from fdt.launch.placement import HOROVOD, failure_of, probe_hosts
from hfdt.engine.host_pool import LOCALHOST, MOST_SLOTS, HostPool, total

POLL_S = 1.0
SCRIPT_S = 20.0  # how long the script may take
ROOM = 1 << 16  # bytes that it may print
OPTION = "--host-discovery-script"


class DiscoveryScript:
    """The script of --host-discovery-script.

    Args:
        path: The executable.
        timeout_s: How long it may take.
    """

    def __init__(self, path: Path, timeout_s: float = SCRIPT_S) -> None:
        self._path, self._timeout_s = path, timeout_s
        self._running: subprocess.Popen[bytes] | None = None
        self._closed = False

    def hosts(self) -> list[Host]:
        """Run the script; return the hosts that it printed, perhaps none.

        Raises:
            UserError: It failed, printed something else, or took too long.
        """
        with tempfile.TemporaryFile() as errors:
            printed, code, late = self._run(errors)
            errors.seek(0)
            error = last_line(errors.read(ROOM).decode(errors="replace"))
        if len(printed) > ROOM:
            raise UserError(f"{OPTION} must print lines host:slots. Received: more than {ROOM} bytes")
        if late:
            raise UserError(f"{OPTION} has not ended within {self._timeout_s:g} s: {self._path}")
        if code:
            raise UserError(f"{OPTION} failed with {describe(code)}{error and f': {error}'}")
        return _hosts(printed.decode(errors="replace"))

    def close(self) -> None:
        """Kill the script, with its children, if it runs or is being started by another thread."""
        self._closed = True
        self._kill()

    def _kill(self) -> None:
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._running.pid, signal.SIGKILL)

    def _run(self, errors: IO[bytes]) -> tuple[bytes, int, bool]:
        """Return what the script printed, its exit code, and whether it took too long."""
        argv, pipe = [str(self._path)], subprocess.PIPE
        try:
            running = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=errors, start_new_session=True
            )
        except OSError as error:  # without a #! line, of another architecture, deleted meanwhile
            raise UserError(f"{OPTION} cannot be run: {error}") from None
        self._running, late = running, threading.Event()

        def give_up() -> None:
            late.set()
            self._kill()

        patience = threading.Timer(self._timeout_s, give_up)
        patience.start()
        try:
            with running:
                if self._closed:  # before there was a process to kill
                    self._kill()
                assert running.stdout is not None
                printed = running.stdout.read(ROOM + 1)
                if len(printed) > ROOM:
                    self._kill()
                return printed, running.wait(), late.is_set()
        finally:
            patience.cancel()
            self._kill()  # its children
            self._running = None


def _hosts(text: str) -> list[Host]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    try:
        found = parse(",".join(lines), OPTION) if lines else []
    except UserError as error:
        raise UserError(f"{OPTION} must print lines host:slots: {error}") from None
    for host in found:
        if host.slots > MOST_SLOTS:
            raise UserError(
                f"{OPTION} may print {MOST_SLOTS} slots of a host at most. Received: {host.name}:{host.slots}"
            )
    return found


class HostDiscovery:
    """Keeps `pool` up to date until it is closed: runs the script and checks new hosts, in threads.

    Args:
        find: Returns the listed hosts; raises UserError.
        pool: The pool.
        unneeded: Components that other hosts may lack or have in another version.
    """

    def __init__(self, find: Callable[[], list[Host]], pool: HostPool, unneeded: Collection[str] = (HOROVOD,)) -> None:
        self._find, self._pool, self._unneeded = find, pool, unneeded
        self._closed = threading.Event()
        self._checking: set[str] = set()
        self._problem = ""

    def start(self) -> None:
        """Find the first hosts, then go on in a thread. Raises UserError where the script fails."""
        self._pool.update(self._find(), settled=True)
        self._check_new()
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """Run the script no more."""
        self._closed.set()

    def wait(self, slots: int, timeout_s: float, show_line: Callable[[str], None]) -> None:
        """Wait until there are `slots` slots, and all new hosts are checked.

        Args:
            slots: The number of slots.
            timeout_s: The longest time to wait.
            show_line: Called with lines for the user.

        Raises:
            UserError: There are fewer at the end.
        """
        began, reported = time.monotonic(), False
        while True:
            while not self._pool.notes.empty():
                show_line(self._pool.notes.get())
            room = total(self._pool.available())
            if room >= slots and not self._checking and not self._pool.unchecked():
                return
            waited = time.monotonic() - began
            if waited >= timeout_s:
                raise UserError(
                    f"{slots} slots are needed, and after {timeout_s:g} s (--elastic-timeout) there are {room} "
                    f"({self._pool.listed()})"
                )
            if room < slots and not self._checking and not reported and waited >= POLL_S:
                show_line(
                    f"waiting for {slots} slots, {timeout_s:g} s at most; there are {room} ({self._pool.listed()})"
                )
                reported = True
            self._closed.wait(0.1)

    def _run(self) -> None:
        while not self._closed.wait(POLL_S):
            try:
                self._pool.update(self._find())
                problem = ""
            except UserError as error:
                problem = " ".join(str(error).split())
            if problem and problem != self._problem:
                self._pool.notes.put(f"{problem}; the hosts stay as they are")
            self._problem = problem
            self._check_new()

    def _check_new(self) -> None:
        for name in self._pool.unchecked():
            if is_here(name):
                self._pool.ready(name, name)
            elif name not in self._checking:
                self._checking.add(name)
                threading.Thread(target=self._check, args=(name,), daemon=True).start()

    def _check(self, name: str) -> None:
        try:
            reason, route = self._reason(name)
            if reason:
                self._pool.put_aside(name, reason)
            else:
                self._pool.ready(name, route)
        finally:
            self._checking.discard(name)

    def _reason(self, name: str) -> tuple[str, str]:
        """Return why a host on the network cannot be used, or "" and this machine's address as it sees it."""
        if not find_mpirun():
            return "workers on other hosts need mpirun, which is neither on PATH nor beside this Python", ""
        if self._pool.own_name == LOCALHOST and self._pool.uses(LOCALHOST):
            return f"this machine must be listed by a name by which other hosts reach it. Received: {LOCALHOST}", ""
        try:
            (found,) = probe_hosts([Host(name, 1)], self._unneeded)
        except UserError as error:
            return str(error), ""
        return ("", found.route) if found.ok else (failure_of(found), "")
