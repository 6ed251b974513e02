"""A replica script's run: this process is rank 0 and has the script's side effects; the other ranks follow it."""

import contextlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import wrapt

from client_shim.replica.agreement import agreed
from client_shim.replica.rewriting import rewritten
from client_shim.replica.skippable_regions import RegionHooks
from client_shim.replica.step_counter import reported_steps
from client_shim.replica.steps import where
from client_shim.script import Rewrite, run_script
from client_shim.verify.recording import recorded
from fdt.blobs import LocalBlobs
from fdt.cli.signals import undisturbed
from fdt.environment import bound_to_share, thread_variables
from fdt.errors import EXIT_INTERRUPTED, WorkerError
from fdt.launch.local import describe, spawn, stop_all
from fdt.process_group.group import ReplicaGroup
from fdt.process_group.root import RemotePeers, RootGroup
from fdt.report import Reporters
from fdt.rpc.session_pb2 import EpochEnd, Event, WorkerShare
from fdt.supervise.lost_processes import died_of, tail

VARIABLE = "FDT_REPLICA"  # a follower's Task, as JSON
HASH_SEED = "PYTHONHASHSEED"
END_S = 60.0  # how long the others may take to come to the script's end after rank 0
_FAILED = (1, EXIT_INTERRUPTED)  # an exception, Ctrl-C; other exit codes are the script's own to choose


class ReplicaRank(Protocol):
    """What an engine replaces while the script runs; made once TensorFlow is there.

    `by_hand`: does what rewritten code asks (rewriting.py, skippable_regions.py); None: its code is not rewritten.
    """

    @property
    def by_hand(self) -> Any: ...
    def in_tensorflow(self) -> contextlib.AbstractContextManager[None]: ...

    def in_keras(self, flavor: str) -> contextlib.AbstractContextManager[None]: ...

    def counts(self) -> Mapping[str, Any]:
        """steps, samples, replicated, sent_bytes: of this rank so far. `notes`: lines for the run's end."""
        ...

    def steps(self) -> int:
        """Of this rank so far. Cheap, and from any thread."""
        ...

    def end(self) -> None:
        """The script has ended."""
        ...


Say = Callable[[str], None]  # shows the user one line
MakeRank = Callable[[ReplicaGroup, Mapping[str, str], Say], ReplicaRank]

ASYNCHRONOUS = "asynchronous"  # ranks are at different steps: what they read of the clock, too, is their own


@dataclass(frozen=True)
class RankConfig:
    """What a follower has to know."""

    directory: str  # of the meeting
    scratch: str
    rank: int
    size: int
    seed: int
    options: Mapping[str, str]
    script: str  # absolute
    name: str  # as the user named it
    words: Sequence[str]
    parent: int = 0  # the command's process, on its own host

    @classmethod
    def take(cls) -> "RankConfig":
        return cls(**json.loads(os.environ.pop(VARIABLE)))


class InstalledRank:
    """The rank that this process is, once the script has imported TensorFlow."""

    def __init__(self, options: Mapping[str, str], say: Say = lambda line: None) -> None:
        self._say = say
        self.rank: ReplicaRank | None = None
        self._turns = RegionHooks() if ASYNCHRONOUS in options else None  # the code of other scripts stays as it is

    @property
    def rewrite(self) -> Rewrite | None:
        """What the script's code is made into before it runs."""
        return None if self._turns is None else self._turns.rewrite

    @contextlib.contextmanager
    def installed(self, make: MakeRank, group: ReplicaGroup, options: Mapping[str, str]) -> Iterator[None]:
        """Replace what is to be replaced as soon as the script imports it."""
        with contextlib.ExitStack() as stack:
            active = [True]
            stack.callback(active.clear)
            if self._turns is not None:
                stack.enter_context(rewritten(self._turns))

            def tensorflow(_: Any) -> None:
                if active and self.rank is None:
                    self.rank = make(group, options, self._say)
                    if self._turns is not None:
                        self._turns.rank = self.rank.by_hand
                    stack.enter_context(self.rank.in_tensorflow())

            def keras(flavor: str) -> Callable[[Any], None]:
                def imported(_: Any) -> None:
                    tensorflow(None)
                    if active and self.rank is not None:
                        stack.enter_context(self.rank.in_keras(flavor))

                return imported

            wrapt.register_post_import_hook(tensorflow, "tensorflow")
            wrapt.register_post_import_hook(keras("keras"), "keras")
            wrapt.register_post_import_hook(keras("tf_keras"), "tf_keras")
            yield

    def counts(self) -> Mapping[str, Any]:
        return self.rank.counts() if self.rank is not None else {}

    def steps(self) -> int:
        return self.rank.steps() if self.rank is not None else 0


class LocalRanks:
    """The other ranks' processes. Logs are worker-N.log of `run_dir`."""

    def __init__(self, module: str, tasks: Sequence[RankConfig], run_dir: Path) -> None:
        self._logs = [run_dir / f"worker-{task.rank}.log" for task in tasks]
        self._popens = [
            spawn((sys.executable, "-m", module), self._env(task), log)
            for task, log in zip(tasks, self._logs, strict=True)
        ]

    def check(self) -> None:
        """Raises WorkerError when one has ended."""
        for number, popen in enumerate(self._popens):
            code = popen.poll()
            if code is not None:
                log = self._logs[number]
                print("".join(f"  | {line}\n" for line in tail(log).splitlines()), file=sys.stderr, end="")
                raise WorkerError(
                    f"rank {number + 1} was lost. Received: {died_of(describe(code), log)}; its log is {log}"
                )

    def stop(self) -> None:
        stop_all(self._popens, 2.0)

    @staticmethod
    def _env(task: RankConfig) -> dict[str, str]:
        return {**os.environ, VARIABLE: json.dumps(asdict(task)), "MPLBACKEND": "Agg"}


class OtherRanks(Protocol):
    """The processes of the other ranks."""

    def check(self) -> None:
        """Raises WorkerError when one has ended."""
        ...

    def stop(self) -> None: ...


@contextlib.contextmanager
def host(
    module: str,
    script: str,
    words: Sequence[str],
    size: int,
    run_dir: Path,
    seed: int | None,
    options: Mapping[str, str],
) -> Iterator[tuple[RootGroup, int]]:
    """Rank 0's meeting, and the run's seed; the others run `module` and are gone, with what they wrote, at the end."""
    os.environ.update(thread_variables(size))  # of all cores: rank 0 keeps to its own once the others are started
    seed = chosen(seed)
    scratch = Path(tempfile.mkdtemp(prefix="fdt-scratch-"))

    def start(directory: Path) -> LocalRanks:
        common = size, seed, options, os.path.abspath(script), script, list(words), os.getpid()
        tasks = [RankConfig(str(directory), str(scratch / str(rank)), rank, *common) for rank in range(1, size)]
        return LocalRanks(module, tasks, run_dir)

    try:
        with (
            process_group_of(size, start) as process_group,
            bound_to_share(0, size if options.get("bind_to") == "cores" else 1),
        ):
            yield process_group, seed
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def process_group_of(
    size: int, start: Callable[[Path], OtherRanks], listener: RemotePeers | None = None
) -> Iterator[RootGroup]:
    """A meeting of this rank 0 and the others, whom `start` is given its directory to start; all gone at the end."""
    store = LocalBlobs.create()
    others: list[OtherRanks] = []
    process_group = RootGroup(store.directory, size, lambda: others[0].check(), listener, where)
    try:
        others.append(start(store.directory))
        yield process_group
    finally:
        with undisturbed():
            process_group.close()
            for each in others:
                each.stop()
            store.close()


def chosen(seed: int | None) -> int:
    """The run's seed; not to be guessed, as what the script draws of `secrets` comes of it."""
    return secrets.randbits(127) if seed is None else seed


def run(
    script: str,
    words: Sequence[str],
    process_group: RootGroup,
    seed: int,
    make: MakeRank,
    options: Mapping[str, str],
    tell: Reporters,
) -> int:
    """Run the script as rank 0; its exit code. Raises WorkerError when ranks part."""
    part, started = InstalledRank(options, tell.note), time.monotonic()
    with (
        reported_steps(part.steps, tell),
        agreed(process_group, seed, clocks=ASYNCHRONOUS not in options),
        part.installed(make, process_group, options),
    ):
        with recorded(agrees=True):
            code = run_script(script, words, rewrite=part.rewrite)
        if not wait_for_end(code):
            return code
        if part.rank is not None:
            part.rank.end()
    said = [dict(part.counts()), *process_group.end(_patience())]
    _report(said, time.monotonic() - started, tell, asynchronous=ASYNCHRONOUS in options)
    return code


def wait_for_end(code: int) -> bool:
    """Did a script that ended with this exit code mean to end? Then its ranks did so together."""
    return code not in _FAILED


def _patience() -> Callable[[], None]:
    deadline = time.monotonic() + END_S

    def check() -> None:
        if time.monotonic() > deadline:
            raise WorkerError(
                f"all ranks must come to the script's end. Received: one that has not {END_S:.0f} s later"
            )

    return check


def _report(said: Sequence[Mapping[str, Any]], seconds: float, tell: Reporters, *, asynchronous: bool) -> None:
    """What each rank trained on, as one epoch of all of them."""
    counts = [{"steps": 0, "samples": 0, "replicated": 0, "sent_bytes": 0, **each} for each in said]
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
        tell.event(Event(epoch_end=end))
    for line in counts[0].get("notes", ()):
        tell.note(line)
    if counts[0]["replicated"]:
        tell.note(f"{counts[0]['replicated']} steps were not divided: every rank did the same work")


def settle_hashing() -> None:
    """Start this command anew with one hash seed for all ranks: a set of strings must list alike everywhere."""
    if os.environ.get(HASH_SEED, "random") == "random":
        os.environ[HASH_SEED] = "0"
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
