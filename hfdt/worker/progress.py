"""The work of a rank between the steps of an epoch: the callback of Keras's fit, progress, commits and lock step."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fdt.blobs import Blobs
from fdt.job import BatchHooks, FeedData, JobSpec, number_of
from fdt.rpc.session_pb2 import Commit
from fdt.timeline import SpanRecorder
from fdt.typing import Array
from hfdt.algorithm import RoundAlgorithm, StepAlgorithm
from hfdt.worker.suspension import SuspensionVote

OnBatch = Callable[[int, Any], bool]  # (index of the last finished step, its logs) -> whether to continue


def listening(keras: Any, model: Any, on_batch: OnBatch, epochs: int, steps: int | None) -> Any:
    """Return a CallbackList for `model.fit` that calls `on_batch`. `keras` is the flavor's module."""

    class Listening(keras.callbacks.CallbackList):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            pass

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not on_batch(batch, logs):
                model.stop_training = True

    return Listening([], add_history=True, model=model, epochs=epochs, steps=steps, verbose=0)


PROGRESS_S = 0.2  # seconds between two Progress events


@dataclass
class Job:
    """A rank's state of the current job."""

    id: str
    spec: JobSpec
    session: Any  # hfdt.worker.session.RankProgram
    source: Any
    validation: Any
    feeds: dict[str, Any]
    commits_every: int = 0  # steps; 0: only at the end of an epoch
    suspension: SuspensionVote | None = None  # where the epoch can be suspended
    recorder: SpanRecorder | None = None  # with --timeline
    begun: bool = False  # whether this process has begun to train it

    def begin(self, epoch: int, *, within: bool) -> str:
        """Begin an epoch. Return a line for the user about state of the ranks that is in no commit; "" if none is lost.

        Args:
            epoch: The epoch. The first of this process, if after the job's first, follows a restart or `--resume`.
            within: Whether the epoch begins after a commit within it.
        """
        session, begun, self.begun = self.session, self.begun, True
        if begun or session.comm.size == 1 or not (within or epoch > self.spec.fit.initial_epoch):
            return ""
        own = [session.rule.own] if isinstance(session.rule, RoundAlgorithm) and session.rule.own else []
        compression = session.sharded.terms.compression
        if compression is not None and compression.compressor.feedback:
            own.append(f"the gradients that {compression.name} has not sent yet")
        if not own:
            return ""
        return (
            f"epoch {epoch + 1}: each rank has lost {', and '.join(own)}: no commit has that, and numbers differ from "
            "those of an undisturbed run"
        )


class Watch:
    """A step callback of an epoch, which counts steps, sends progress, commits, and waits for the client in lock step.

    Args:
        worker: A hfdt.worker.process.HfdtWorker.
        epoch: The epoch, from 0.
        before: Steps of the epoch that were done before it resumed.
    """

    def __init__(self, worker: Any, epoch: int, before: int = 0) -> None:
        self._worker, self._epoch, self._before = worker, epoch, before
        spec = worker.job.spec
        self._lock_step = spec.fit.batch_hooks != BatchHooks.NONE
        self._every = worker.job.commits_every
        self._suspension: SuspensionVote | None = worker.job.suspension
        self._next = time.monotonic()
        self.steps = before

    @contextlib.contextmanager
    def timed(self) -> Iterator[OnBatch]:
        """Yield `on_batch`, which with --timeline also adds the spans of the steps within the context."""
        job = self._worker.job
        if job.recorder is None:
            yield self.on_batch
            return
        from hfdt.worker.timeline import Watched

        pause = "callbacks" if self._lock_step else "report"
        done = self._epoch, self._before
        watched = Watched(job.session.sharded.terms.timeline, self.on_batch, job.recorder, done, pause)
        yield watched.on_batch
        watched.finish()

    def on_batch(self, step: int, logs: Any) -> bool:
        """Handle the steps up to index `step`; return False to stop the epoch.

        Keras counts the steps of an epoch's last execution as if it were complete, hence the bound by `total`.
        """
        total = self._worker.job.session.epoch_steps
        last, self.steps = self.steps, min(self._before + step + 1, total or self._before + step + 1)
        self._worker.job.session.check_finite(self._epoch)
        if self._lock_step:
            return bool(self._worker.lock_step(self.steps, logs))
        due = self._every and self.steps // self._every > last // self._every
        suspends = self._suspension is not None and self._suspension.agreed(self.steps - last)
        if (due or suspends) and self.steps != total:
            self._worker.commit(self._epoch, self.steps, logs)
            if suspends:
                return False
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_S
            self._worker.progress(self._epoch, self.steps, logs)
        return True


@dataclass(frozen=True)
class Begin:
    """The start of an epoch that resumes after `step` steps: its samples, this rank's metrics, skipped steps."""

    step: int
    samples: int
    metrics: Sequence[Array]
    skipped: int = 0


def plan(spec: JobSpec, rule: Any) -> tuple[int, list[str]]:
    """Return the steps between two commits (0: only at the end of an epoch) and lines for the user."""
    steps, reason = int(number_of(spec.options, "commit_every")), why_no_commits(spec, rule)
    if steps and reason:
        return 0, [f"--commit-every counts as 1epoch: {reason}"]
    return steps, []


def begin_of(commit: Commit, blobs: Blobs, rank: int, size: int) -> Begin:
    """Return the start of an epoch that resumes after `commit`.

    Each rank goes on with its own metrics. With another number of ranks, rank 0 has the sum of all.
    """
    stacked = blobs.get_arrays(commit.rank_metrics) if commit.rank_metrics.id else []
    if stacked and len(stacked[0]) == size:
        metrics = [values[rank] for values in stacked]
    else:
        metrics = list(blobs.get_arrays(commit.metrics)) if rank == 0 else []
    return Begin(commit.step, commit.samples, metrics, commit.skipped)


def take(session: Any, logs: Mapping[str, Any]) -> tuple[list[Array], int]:
    """Return (metric state, samples of the epoch) of a hfdt.worker.session.RankProgram over all ranks. A collective."""
    _, metrics = session.peek(logs)
    mine = session.sharded.counted[0]
    total = session.comm.sum([mine], "hfdt.samples")[0] if session.comm.size > 1 else mine
    return metrics, int(total)


def why_no_commits(spec: JobSpec, rule: Any) -> str:
    """Return why no commit can be taken within an epoch; "" where one can."""
    if not isinstance(rule, StepAlgorithm):
        return "the ranks differ within a round of this algorithm"
    if isinstance(spec.data, FeedData):
        return "the script's process reads the batches"
    if spec.fit.batch_hooks is not BatchHooks.NONE:
        return "callbacks receive every step"
    if spec.options.get("batch") == "per-worker":
        return "with --batch per-worker the batches of a step depend on the number of ranks"
    return ""
