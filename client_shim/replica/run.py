"""Rank 0 of a replicated script: it runs the script with its side effects and starts and ends the other ranks."""

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from client_shim.replica.agreement import agreed
from client_shim.replica.rank import ASYNCHRONOUS, VARIABLE, InstalledRank, RankConfig, ReplicatedScript, reported_steps
from client_shim.replica.steps import where
from client_shim.script import run_script
from client_shim.verify.recording import recorded
from fdt.blobs import LocalBlobs
from fdt.environment import thread_variables
from fdt.errors import EXIT_INTERRUPTED, WorkerError
from fdt.launch import GRACE_S, describe, spawn, stop_all
from fdt.process_group.root import RemotePeers, RootGroup
from fdt.report import Reporters, quantity
from fdt.rpc.session_pb2 import EpochEnd, Event, Ready, WorkerShare
from fdt.signals import held_back, undisturbed
from fdt.supervise import died_of, tail

HASH_SEED = "PYTHONHASHSEED"
END_S = 60.0  # longest time from rank 0's end of the script to that of the others
_FAILED = (1, EXIT_INTERRUPTED)  # exit codes of an exception and of Ctrl-C; the script may choose any other


class LocalRanks:
    """The processes of the other ranks on this host. Their logs are `run_dir`/worker-N.log."""

    def __init__(self, package: str, tasks: Sequence[RankConfig], run_dir: Path) -> None:
        self._logs = [run_dir / f"worker-{task.rank}.log" for task in tasks]
        self._popens = [
            spawn((sys.executable, "-m", "client_shim.replica.follow", package), self._env(task), log)
            for task, log in zip(tasks, self._logs, strict=True)
        ]

    def check(self) -> None:
        """Raise WorkerError when one has ended."""
        for number, popen in enumerate(self._popens):
            code = popen.poll()
            if code is not None:
                log = self._logs[number]
                print("".join(f"  | {line}\n" for line in tail(log).splitlines()), file=sys.stderr, end="")
                raise WorkerError(f"rank {number + 1} was lost: {died_of(describe(code), log)}; its log is {log}")

    def stop(self) -> None:
        """End the processes."""
        stop_all(self._popens, GRACE_S)

    @staticmethod
    def _env(task: RankConfig) -> dict[str, str]:
        return {**os.environ, VARIABLE: json.dumps(asdict(task)), "MPLBACKEND": "Agg"}


class OtherRanks(Protocol):
    """The processes of the other ranks."""

    def check(self) -> None:
        """Raise WorkerError when one has ended."""

    def stop(self) -> None:
        """End the processes."""


@contextlib.contextmanager
def host(script: ReplicatedScript, run_dir: Path, size: int) -> Iterator[RootGroup]:
    """Start the other of `size` ranks on this host, with logs in `run_dir`, and yield rank 0's process group.

    At the end the other ranks are ended and their scratch folders removed.
    """
    # counts all cores: rank 0 is bound to its own after the others are started
    os.environ.update(thread_variables(size))
    scratch = Path(tempfile.mkdtemp(prefix="fdt-scratch-"))

    def start(directory: Path) -> LocalRanks:
        common = replace(script.config(size), directory=str(directory), parent=os.getpid())
        tasks = [replace(common, scratch=str(scratch / str(rank)), rank=rank) for rank in range(1, size)]
        return LocalRanks(script.package, tasks, run_dir)

    try:
        with process_group_of(size, start) as process_group, script.bound(size):
            yield process_group
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def process_group_of(
    size: int, start: Callable[[Path], OtherRanks], listener: RemotePeers | None = None
) -> Iterator[RootGroup]:
    """Yield rank 0's process group; at the end the group is closed and the other ranks are ended.

    Args:
        size: The number of ranks.
        start: Starts the other ranks; receives the directory of the process group.
        listener: Accepts ranks of other hosts; None: all ranks run on this host.
    """
    store = LocalBlobs.create()
    others: list[OtherRanks] = []
    process_group = RootGroup(store.directory, size, lambda: others[0].check(), listener, where)
    try:
        with held_back():  # until they can be ended
            others.append(start(store.directory))
        yield process_group
    finally:
        with undisturbed():
            process_group.close()
            for each in others:
                each.stop()
            store.close()


def run(script: ReplicatedScript, process_group: RootGroup, reporters: Reporters) -> int:
    """Run the script as rank 0, the root of `process_group`.

    Returns:
        The script's exit code.

    Raises:
        WorkerError: A rank was lost, or ranks did not call the same collectives.
    """
    part, started = InstalledRank(script.options, reporters.note), time.monotonic()
    asynchronous = ASYNCHRONOUS in script.options
    with (
        reported_steps(part.steps, reporters),
        agreed(process_group, script.seed, clocks=not asynchronous),
        part.installed(script.package, process_group, script.options),
    ):
        with recorded(agrees=True):
            code = run_script(script.path, script.args, rewrite=part.rewrite)
        if not wait_for_end(code):
            return code
        if part.rank is not None:
            part.rank.end()
    counts = [dict(part.counts()), *process_group.end(_patience())]
    _report(counts, time.monotonic() - started, reporters, asynchronous=asynchronous)
    return code


def wait_for_end(code: int) -> bool:
    """Return whether the script ended on purpose with this exit code; its ranks then end together."""
    return code not in _FAILED


def _patience() -> Callable[[], None]:
    deadline = time.monotonic() + END_S

    def check() -> None:
        if time.monotonic() > deadline:
            raise WorkerError(f"rank 0 ended the script, and another rank did not end within {END_S:.0f} s")

    return check


def _report(
    counts_of_ranks: Sequence[Mapping[str, Any]], seconds: float, reporters: Reporters, *, asynchronous: bool
) -> None:
    """Report the training of all ranks as one epoch."""
    counts = [{"steps": 0, "samples": 0, "replicated": 0, "sent_bytes": 0, **each} for each in counts_of_ranks]
    steps = [c["steps"] for c in counts]
    end = EpochEnd(
        steps=sum(steps) if asynchronous else max(steps), samples=sum(c["samples"] for c in counts), seconds=seconds
    )
    for rank, count in enumerate(counts):
        share = WorkerShare(rank=rank, steps=count["steps"], samples=count["samples"], seconds=seconds)
        share.bytes_sent = share.bytes_received = count["sent_bytes"]
        end.workers.append(share)
        end.bytes_sent += count["sent_bytes"]
        end.bytes_received += count["sent_bytes"]
    end.extra.update(counts[0].get("extra", {}))
    if end.steps:
        reporters.event(Event(ready=Ready(algorithm=counts[0].get("algorithm", ""))))
        reporters.event(Event(epoch_end=end))
    for line in counts[0].get("notes", ()):
        reporters.note(line)
    if counts[0]["replicated"]:
        reporters.note(f"not divided: {quantity(counts[0]['replicated'], 'step')}; every rank did the same work")


def settle_hashing() -> None:
    """Restart this command with one hash seed for all ranks, so that sets of strings iterate in the same order."""
    if os.environ.get(HASH_SEED, "random") == "random":
        os.environ[HASH_SEED] = "0"
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
