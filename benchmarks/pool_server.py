"""The server of benchmarks/pool.py: `serve` with certificates, what it holds, its queue, and its workers to kill."""

import contextlib
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from aftermath import words_of
from harness import QUIET
from scripts.pool_client import identity_of
from soak import anonymous_mb

from fdt.rpc.training_pb2 import QueueRequest
from fdt.rpc.training_pb2_grpc import PoolServiceStub
from fdt.security.auth import credentials
from fdt.service.transport import open_channel

TOKEN, HOST = "load", "127.0.0.1"
USERS = ("alice", "bob", "root")  # the last one is an administrator
READY_S, SETTLED_S, STOP_S = 120.0, 60.0, 60.0


class Server:
    """`serve` of an engine, whose users have certificates in directory/certs."""

    def __init__(self, engine: str, slots: int, quota: int, directory: Path) -> None:
        certs, self._log = directory / "certs", directory / "serve.log"
        named = [word for user in USERS for word in ("--user", user)]
        subprocess.run(
            [sys.executable, "-m", engine, "certs", str(certs), HOST, *named], check=True, capture_output=True
        )
        argv = [sys.executable, "-m", engine, "serve", "-np", str(slots), "--host", HOST, "--port", "0"]
        argv += ["--quota", str(quota), "--admin", USERS[-1], "--log-dir", str(directory / "logs")]
        argv += ["--tls-cert", f"{certs}/{HOST}.pem", "--tls-key", f"{certs}/{HOST}.key", "--tls-ca", f"{certs}/ca.pem"]
        with open(self._log, "w") as log:
            environment = {**os.environ, **QUIET, "FDT_TOKEN": TOKEN}
            self.process = psutil.Popen(argv, env=environment, stdout=log, stderr=log)
        self._worker, self._directory = f"{engine}.worker.process", directory
        self.address = self.store = ""

    def await_ready(self) -> None:
        """Wait until it listens and its store is there."""
        deadline = time.monotonic() + READY_S
        while not (self.address and self.store):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: {self._log.read_text()}")
            found = re.search(r" workers? at (\S+)", self._log.read_text())
            self.address, self.store = found[1] if found else "", self._store()
            time.sleep(0.2)
        self._channel = open_channel(self.address, identity_of(self._directory, USERS[-1]))

    def stop(self) -> int:
        """End it; return its exit code."""
        self._channel.close()
        self.process.terminate()
        return int(self.process.wait(STOP_S))

    def queue(self) -> Any:
        """Return the jobs that run or wait, and the free slots."""
        return PoolServiceStub(self._channel).Queue(QueueRequest(), metadata=credentials(TOKEN), timeout=30)

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill one worker with SIGKILL; return whether there was one."""
        workers = [p for p in self.process.children(recursive=True) if words_of(p)[1:3] == ["-m", self._worker]]
        with contextlib.suppress(psutil.NoSuchProcess):
            if workers:
                chance.choice(workers).kill()
                return True
        return False

    def resources(self) -> dict[str, float]:
        """Return what the server holds: memory, files, threads, processes, the blobs of its store."""
        server = self.process
        held = {"memory, MB": anonymous_mb(server), "open files": server.num_fds(), "threads": server.num_threads()}
        files = [file for file in Path(self.store).rglob("*") if not file.name.startswith((".", "__autograph"))]
        return {**held, "processes": len(server.children(recursive=True)), "files of the store": len(files)}

    def settled(self) -> dict[str, Any]:
        """Wait until the pool is idle; return its free slots and what it holds then."""
        deadline = time.monotonic() + SETTLED_S
        while (queue := self.queue()).jobs and time.monotonic() < deadline:
            time.sleep(1)
        return {"free": queue.free, "jobs": len(queue.jobs), **self.resources()}

    def left(self) -> dict[str, int]:
        """Return what is left when it has ended: its store, and processes that were started with it."""
        processes = sum(self.store in named(p) for p in psutil.process_iter())
        return {"stores": int(Path(self.store).exists()), "processes": processes}

    def _store(self) -> str:
        """Return the directory of the server's store, which its shm reaper is given; "" before that has started."""
        for child in self.process.children():
            with contextlib.suppress(psutil.Error):  # it has just ended
                argv = child.cmdline()
                if len(argv) > 4 and argv[-3].endswith("shm_reaper.py"):
                    return str(argv[-2])
        return ""


def named(process: psutil.Process) -> str:
    """Return the variables and arguments of a process; "" where it is a zombie or another user's."""
    try:
        return str((process.environ(), process.cmdline()))
    except psutil.Error:
        return ""
