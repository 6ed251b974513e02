"""Rank 0 of a replicated script: it runs the script with its side effects and starts and ends the other ranks."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from client_shim.replica.agreement import agreed
from client_shim.replica.bootstrap import within
from client_shim.replica.file_order import ordered_files, own_folders
from client_shim.replica.rank import ASYNCHRONOUS, VARIABLE, InstalledRank, ReplicatedScript, reported_steps
from client_shim.replica.steps import where
from client_shim.script import run_script
from client_shim.verify.recording import recorded
from fdt.blobs import LocalBlobs
from fdt.environment import thread_variables
from fdt.errors import EXIT_INTERRUPTED, WorkerError
from fdt.launch import LocalProcesses, Processes, spawn
from fdt.process_group.root import RemotePeers, RootGroup
from fdt.report import Reporters, quantity
from fdt.rpc.session_pb2 import EpochEnd, Event, Ready, WorkerShare
from fdt.signals import held_back, undisturbed
from fdt.supervise import died_of, tail

HASH_SEED = "PYTHONHASHSEED"
END_S = 60.0  # longest time from rank 0's end of the script to that of the others
_FAILED = (1, EXIT_INTERRUPTED)  # exit codes of an exception and of Ctrl-C; the script may choose any other


class OtherRanks:
    """The processes of the other ranks. `log_of`: returns the log of a rank, or of all ranks for None."""

    def __init__(self, running: Processes, log_of: Callable[[int | None], Path]) -> None:
        self._running, self._log_of = running, log_of

    def check(self) -> None:
        """Raise WorkerError when one has ended."""
        for ended in self._running.exits():
            log = self._log_of(ended.rank)
            log_end = tail(log, ended.rank)
            print("".join(f"  | {line}\n" for line in log_end.splitlines()), file=sys.stderr, end="")
            lost = "a rank" if ended.rank is None else f"rank {ended.rank + 1}"
            cause = died_of(ended.cause, log, ended.rank)
            raise WorkerError(f"{lost} was lost: {cause}; its log is {log}")

    def stop(self) -> None:
        self._running.stop()


@contextlib.contextmanager
def host(script: ReplicatedScript, run_dir: Path, size: int) -> Iterator[RootGroup]:
    """Start the other of `size` ranks on this host, with logs in `run_dir`, and yield rank 0's process group.

    At the end the other ranks are ended and their scratch folders removed.
    """
    # counts all cores: rank 0 is bound to its own after the others are started
    os.environ.update(thread_variables(size))
    scratch = Path(tempfile.mkdtemp(prefix="fdt-scratch-"))

    def log_of(number: int | None) -> Path:
        return run_dir / f"worker-{(number or 0) + 1}.log"

    def start(directory: Path) -> OtherRanks:
        common = replace(script.config(size), directory=str(directory), parent=os.getpid(), folders=own_folders())

        def follow(number: int) -> "subprocess.Popen[bytes]":
            task = replace(common, scratch=str(scratch / str(number + 1)), rank=number + 1)
            env = {**os.environ, VARIABLE: json.dumps(asdict(task)), "MPLBACKEND": "Agg"}
            return spawn((sys.executable, "-m", "client_shim.replica.follow", script.package), env, log_of(number))

        return OtherRanks(LocalProcesses("worker", size - 1, follow), log_of)

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
        ordered_files(process_group, own_folders() if process_group.on_one_host else (), active=part.in_line),
        part.installed(script.package, process_group, script.options),
    ):
        with recorded(agrees=True):
            code = run_script(script.path, script.args, rewrite=part.rewrite)
        if not wait_for_end(code):
            return code
        if part.rank is not None:
            part.rank.end()
    late = WorkerError(f"rank 0 ended the script, and another rank did not end within {END_S:.0f} s")
    counts = [dict(part.counts()), *process_group.end(within(END_S, late))]
    _report(counts, time.monotonic() - started, reporters, asynchronous=asynchronous)
    return code


def wait_for_end(code: int) -> bool:
    """Return whether the script ended on purpose with this exit code; its ranks then end together."""
    return code not in _FAILED


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
