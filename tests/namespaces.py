"""Hosts of tests: sets of network, UTS, IPC, mount and PID namespaces of this machine, joined to one bridge.

The hosts share this machine's file system. /dev/shm and /run are each host's own.
"""

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from fdt.launch.emulated import EmulatedHost, EmulatedNetwork, address_of
from fdt.network.reading import read_cluster
from fdt.network.topology import topology_of

READY_S = 30.0
OWN_TMP = "TMPDIR=/dev/shm"  # Open MPI names its directories by process ids, which hosts that share /tmp may share too
PYTHON = ("env", f"PYTHONPATH={':'.join(filter(None, sys.path))}", sys.executable)
HFDT, NFDT = (*PYTHON, "-m", "hfdt"), (*PYTHON, "-m", "nfdt")
LISTEN = """
import socket, sys
heard = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
heard.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
heard.bind(("eth0", 0))
print("listening", flush=True)
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.write(heard.recv(1 << 16))
"""
HOST = """
set -e
hostname "$1"; mount --make-rprivate /; mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs /run
mount --bind "$2/hosts" /etc/hosts; mount -t proc proc /proc
"""


class NamespaceHosts:
    """Hosts with these names. Each runs `script`, a shell script after HOST: $1 is its name, $2 `directory`."""

    def __init__(self, directory: Path, names: list[str], script: str) -> None:
        self.directory = directory
        (directory / "cluster.yaml").write_text(f"nodes: [{{count: {len(names)}}}]")
        hosts = [EmulatedHost(number, name, address_of(number + 1)) for number, name in enumerate(names)]
        names_file = "".join(f"{host.address} {host.name}\n" for host in hosts)
        (directory / "hosts").write_text(f"127.0.0.1 localhost\n{names_file}")
        self._network = EmulatedNetwork(topology_of(read_cluster(directory / "cluster.yaml").with_workers(None)))
        self._unshares: list[subprocess.Popen[bytes]] = []
        self.pids: dict[str, int] = {}
        try:
            for host in hosts:
                self._start(host, HOST + script)
        except BaseException:
            self.close()
            raise

    def _start(self, host: EmulatedHost, script: str) -> None:
        spaces = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child"]
        argv = ["unshare", *spaces, "sh", "-c", script, "host", host.name, str(self.directory)]
        with open(self.directory / f"{host.name}.log", "wb") as log:
            started = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
        self._unshares.append(started)
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children")
        self.pids[host.name] = int(until(lambda: children.read_text().split())[0])
        self._network.attach(self.pids[host.name], host)
        assert started.stdin is not None
        started.stdin.write(b"go\n")  # it stays open: its end tells the host that these tests were killed
        started.stdin.flush()

    def on(self, name: str, *argv: object) -> list[str]:
        """`argv` on that host."""
        return ["nsenter", "--all", f"--target={self.pids[name]}", "env", OWN_TMP, *map(str, argv)]

    def output(self, name: str, *argv: object, timeout_s: float = 300) -> str:
        """What `argv` prints on that host; it must end well."""
        done = subprocess.run(self.on(name, *argv), capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def listening(self, name: str) -> Iterator[Path]:
        """A file of what crosses the host's interface meanwhile."""
        heard = self.directory / f"{name}.heard"
        argv = ["nsenter", f"--net=/proc/{self.pids[name]}/ns/net", sys.executable, "-c", LISTEN, str(heard)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as running:
            try:
                assert running.stdout is not None and running.stdout.readline()
                yield heard
            finally:  # or the end of `with` would wait for ever
                running.kill()

    def kill(self, name: str, module: str) -> None:
        """As a crash would end that member."""
        pattern = f" [f]dt.service.host_bootstrap .* {module}"
        look = ["nsenter", "--all", f"--target={self.pids[name]}", "pkill", "-9", "-f", pattern]
        subprocess.run(look, check=True)

    def members(self, name: str, module: str) -> list[psutil.Process]:
        """The members that run `module` on this host and were started from another one."""
        started = [p for p in psutil.Process(self.pids[name]).children(recursive=True) if is_alive(p)]
        return [p for p in started if re.search(f" fdt.service.host_bootstrap .* {module}", " ".join(p.cmdline()))]

    def left(self, *names: str) -> list[str]:
        """What is still on these hosts, or on all, of a run: its processes, its directories."""
        look = ["sh", "-c", "ls -d /dev/shm/fdt-* 2>/dev/null; pgrep -a -f 'fdt[.]service|[m]pirun|[p]rted'; true"]
        return [line for name in names or self.pids for line in self.output(name, *look).splitlines()]

    def close(self) -> None:
        for started in self._unshares:
            started.kill()  # and with it its namespace's first process, and so all of them
            started.communicate()
        self._network.close()


def until(found, seconds: float = READY_S, what: object = "a host did not come up"):
    """The first true value of `found()`; `what`, or what it returns, is the error after so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if there := found():
            return there
        time.sleep(0.02)
    raise AssertionError(what() if callable(what) else what)


def replace(path: Path, text: str) -> None:
    """Write a file that another process reads meanwhile: it finds the old text or the new one, never an empty file."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.replace(path)


def printing(path: Path) -> Path:
    """Return a script that prints a file."""
    script = path.with_suffix(".sh")
    script.write_text(f"#!/bin/sh\ncat {path}\n")
    script.chmod(0o755)
    return script


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs. A process whose parent does not wait for it is a zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
