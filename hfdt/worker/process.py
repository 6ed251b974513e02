"""The worker process of HFDT, one rank: `python -m hfdt.worker.process`. The engine starts it and reuses it."""

import contextlib
import os
import time
import traceback
from collections.abc import Iterator
from typing import Any

from client_shim.surroundings import take_over
from fdt.environment import bind_to_share, local_rank, local_size, warm_up
from fdt.errors import UserError
from fdt.job import BatchHooks, GraphData, JobSpec, State, is_on
from fdt.rpc import job_pb2, tensor_pb2
from fdt.rpc.session_pb2 import (
    Command,
    Commit,
    EpochEnd,
    Evaluated,
    Event,
    Finished,
    Note,
    Progress,
    Ready,
    StepEnd,
)
from fdt.rpc.session_pb2 import Epoch as EpochCommand
from fdt.service.blame import failure
from fdt.service.member import Member, fed_data, open_data, open_feeds
from fdt.tensors import numbers, put_logs
from fdt.timeline import SpanRecorder
from fdt.typing import Array
from hfdt.worker import progress
from hfdt.worker.progress import Job, Watch
from hfdt.worker.suspension import SuspensionVote


def main() -> None:
    """Attach to the engine first, then import TensorFlow before a job needs it, then serve commands."""
    member = Member.attach("worker")
    with contextlib.ExitStack() as stack:
        try:
            comm, notes = _warm_up(member, stack)
        except Exception as error:
            member.send(Event(rank=member.rank, failed=failure(error)))
            for _ in member.commands():  # wait until the engine, which now has the reason, ends this process
                pass
            return
        HfdtWorker(member, comm, notes).run()


def _warm_up(member: Member, stack: contextlib.ExitStack) -> tuple[Any, list[str]]:
    if os.environ.get("FDT_BIND_TO", "cores") == "cores":
        bind_to_share(local_rank(), local_size())
    warm_up(member.blobs, computes=True)
    from hfdt.collectives import choose, initialized_mpi
    from hfdt.collectives.adapters import CountedComm

    name = os.environ.get("FDT_COMM", "auto")
    stack.enter_context(initialized_mpi(name, member.size))
    comm, notes = choose(name, member.rank, member.size)
    comm.pause()
    if comm.size == 1:
        return comm, notes
    counted = CountedComm(comm)
    member.report_counts(counted.counts)
    return counted, notes


class HfdtWorker:
    """The command loop of a rank: it handles the engine's commands one by one and answers each."""

    def __init__(self, member: Member, comm: Any, notes: list[str]) -> None:
        self._member, self._comm, self._notes, self._sent_notes = member, comm, notes, set[str]()
        self._commands: Iterator[Command] = member.commands()
        self._flavors = contextlib.ExitStack()
        self._patched: set[str] = set()
        self._warm: tuple[Any, Any] | None = None  # ((JobSpec.made_for, options), session)
        self.job: Job
        self._bytes = 0

    def run(self) -> None:
        for command in self._commands:
            try:
                self._handle(command)
            except Exception as error:
                self._report(command, error)

    def _report(self, command: Command, error: Exception) -> None:
        """Send the failure. Ranks that refuse a job, or cannot trace the script's step, can train the next job.

        That does not hold where their connections are lost.
        """
        from hfdt.collectives import explained

        shown = explained(error, self._comm.rank)
        failed = failure(shown)
        if command.HasField("setup") and (failed.users_code or not failed.detail) and shown is error:
            failed.refused = self._forget(command.setup.job)
        self._send(command.job, failed=failed)
        if failed.refused:
            self._comm.pause()  # all ranks do, or the engine ends them

    def _forget(self, message: job_pb2.JobSpec) -> bool:
        """Close the session of a job that was refused. Return whether nothing of it can reach the next one."""
        try:
            self._close_session()
            return not fed_data(JobSpec.from_proto(message))
        except Exception:
            traceback.print_exc()
            return False

    def _handle(self, command: Command) -> None:
        kind = command.WhichOneof("kind")
        if kind == "setup":
            self._setup(command.job, command.setup.job)
        elif kind == "epoch":
            self._epoch(command.epoch)
        elif kind == "evaluate":
            self._evaluate(command.evaluate.epoch)
        elif kind == "finish":
            for feed in self.job.feeds.values():
                feed.close()
            self._comm.pause()
            self._send(command.job, finished=Finished())

    # -- setup -----------------------------------------------------------------------------------------------------
    def _setup(self, job: str, message: job_pb2.JobSpec) -> None:
        import tensorflow as tf

        self._comm.resume()
        spec = JobSpec.from_proto(message)
        self._notes += take_over(spec.surroundings)
        tf.random.set_seed(spec.seed % 2**31 + self._comm.rank)
        feeds = open_feeds(spec, self._member, lambda wanted: self._send(job, feed_wanted=wanted))
        source: Any = open_data(spec, spec.data, self._member.blobs, feeds)
        validation: Any = spec.validation and open_data(spec, spec.validation, self._member.blobs, feeds)
        session = self._session(spec, source)
        session.load(spec.state, self._member.blobs)
        commits_every, more = progress.plan(spec, session.rule)
        suspension = None
        if is_on(spec.options, "suspendable") and not progress.why_no_commits(spec, session.rule):
            suspension = SuspensionVote(self._comm, lambda: self._member.suspended)
        recorder = None
        if is_on(spec.options, "timeline"):
            recorder = SpanRecorder(f"worker {self._member.rank}", lambda event: self._send(job, spans=event.spans))
        self.job = Job(job, spec, session, source, validation, feeds, commits_every, suspension, recorder)
        rebuilt = [s for s, data in ((source, spec.data), (validation, spec.validation)) if isinstance(data, GraphData)]
        lock_step = spec.fit.batch_hooks != BatchHooks.NONE
        notes = [*self._notes, *session.prepare(source, validation, rebuilt, lock_step=lock_step)]
        self._notes = []  # sent once a run
        steps = session.steps(source, spec.fit.initial_epoch) or 0
        lines = [line for line in notes + more if line not in self._sent_notes]  # a new session says the same again
        self._sent_notes.update(lines)
        text = "\n".join(lines)
        ready = Ready(steps_per_epoch=steps, notes=text, chosen=session.tuning.chosen, why_chosen=session.tuning.reason)
        ready.suspendable, ready.algorithm = suspension is not None, session.algorithm
        self._send(job, ready=ready)

    def _session(self, spec: JobSpec, source: Any) -> Any:
        """Return the last job's session if program, settings and structure of the data are the same. A collective."""
        from fdt.trainable import build
        from hfdt.worker.session import RankProgram, patches

        made_for = spec.made_for, spec.options
        if self._warm is not None and self._warm[0] == made_for and self._warm[1].probing.suits(source):
            return self._warm[1]
        self._close_session()
        flavor = spec.program.flavor
        if flavor not in self._patched:
            self._flavors.enter_context(patches(flavor))
            self._patched.add(flavor)
        session = RankProgram(build(spec.program, self._member.blobs), self._comm, spec.options)
        self._warm = made_for, session
        return session

    def _close_session(self) -> None:
        warm, self._warm = self._warm, None
        if warm is not None:
            warm[1].close()

    # -- training --------------------------------------------------------------------------------------------------
    def _epoch(self, command: EpochCommand) -> None:
        job, epoch, begin = self.job, command.epoch, None
        metrics = self._load(command.changed)
        if metrics:
            begin = progress.Begin(0, 0, metrics if self._comm.rank == 0 else ())
        if command.HasField("begin"):
            self._load(command.begin.state)
            begin = progress.begin_of(command.begin, self._member.blobs, self._comm.rank, self._comm.size)
        lost = job.begin(epoch, within=command.HasField("begin"))
        if lost:
            self._send(job.id, note=Note(text=lost))
        self._probe_again(each=True)
        watch = Watch(self, epoch, begin.step if begin else 0)
        start = time.monotonic()
        with watch.timed() as on_batch:
            logs = job.session.train(job.source, epoch, on_batch, begin)
        seconds = time.monotonic() - start
        self._probe_again(each=True)  # of what callbacks assigned since the last probe of this epoch
        sent = job.session.sent_bytes(watch.steps)
        self._bytes += sent
        end = EpochEnd(
            epoch=epoch,
            steps=watch.steps - job.session.skipped(),
            skipped=job.session.skipped(),
            samples=job.session.samples(),
            seconds=seconds,
            busy_seconds=max(0.0, seconds - job.session.waited()),
            bytes_sent=sent,
            bytes_received=sent,
        )
        state = self._state()
        if state is not None:
            put_logs(end, logs)
            end.state.CopyFrom(state)
            end.metrics.CopyFrom(self._put(job.session.trainable.metric_arrays()))
        self._send(job.id, epoch_end=end)

    def progress(self, epoch: int, step: int, logs: Any) -> None:
        """Send the progress of this rank."""
        session = self.job.session
        sent = self._bytes + session.sent_bytes(step)
        message = Progress(epoch=epoch, step=step, samples=session.samples(), bytes_sent=sent, bytes_received=sent)
        message.logs.update(numbers(logs or {}))
        self._send(self.job.id, progress=message)

    def commit(self, epoch: int, step: int, logs: Any) -> None:
        """Send the state after this step. A collective; only rank 0 sends."""
        metrics, samples = progress.take(self.job.session, logs or {})
        by_rank = self.job.session.sharded.totals.by_rank()
        state = self._state()
        if state is not None:
            commit = Commit(epoch=epoch, step=step, samples=samples, skipped=self.job.session.skipped())
            commit.state.CopyFrom(state)
            commit.metrics.CopyFrom(self._put(metrics))
            commit.rank_metrics.CopyFrom(self._put([each.numpy() for each in by_rank]))
            self._send(self.job.id, commit=commit)

    def lock_step(self, step: int, logs: Any) -> bool:
        """Send the end of a step and wait for the client's callbacks. Returns False when they end the epoch."""
        job = self.job
        whole, metrics = job.session.peek(logs or {})
        end = StepEnd(step=step, last=step == job.session.epoch_steps)
        state = self._state() if job.spec.fit.batch_hooks == BatchHooks.STATE else None
        if state is not None:
            end.state.CopyFrom(state)
        if self._comm.rank == 0:
            put_logs(end, numbers(whole))
            end.metrics.CopyFrom(self._put(metrics))
        self._send(job.id, step_end=end)
        return bool(end.last) or self._answer()

    def _answer(self) -> bool:
        command = next(self._commands, None)
        kind = command.WhichOneof("kind") if command is not None else None
        if command is None or kind not in ("step", "end_epoch"):
            raise UserError(f"a step must be followed by the next step or the epoch's end. Received: {kind}")
        if kind == "step":
            metrics = self._load(command.step.changed)
            if metrics:
                self.job.session.sharded.totals.replace(metrics)
            self._probe_again(each=False)
        return bool(kind == "step")

    # -- validation ------------------------------------------------------------------------------------------------
    def _evaluate(self, epoch: int) -> None:
        job = self.job
        message = Evaluated(epoch=epoch)
        with job.recorder.span("main", "validation", epoch + 1) if job.recorder else contextlib.nullcontext():
            put_logs(message, job.session.evaluate(job.validation, epoch))
        if self._comm.rank == 0:
            message.metrics.CopyFrom(self._put(job.session.trainable.metric_arrays()))
        self._send(job.id, evaluated=message)

    # -- small things ----------------------------------------------------------------------------------------------
    def _load(self, changed: job_pb2.State) -> list[Array]:
        """Assign what callbacks changed of the model and its optimizer; return what they changed of the metrics."""
        blobs = self._member.blobs
        self.job.session.load(State.of(changed), blobs)
        return blobs.get_arrays(changed.metrics) if changed.metrics.id else []

    def _probe_again(self, *, each: bool) -> None:
        for note in self.job.session.probing.again(each=each):
            self._send(self.job.id, note=Note(text=note))

    def _state(self) -> job_pb2.State | None:
        """Return the state of model and optimizer on rank 0, None on the others. A collective."""
        arrays = self.job.session.arrays()
        return None if arrays is None else job_pb2.State(model=self._put(arrays[0]), optimizer=self._put(arrays[1]))

    def _put(self, arrays: Any) -> tensor_pb2.BlobRef:
        return self._member.blobs.put_arrays(arrays)

    def _send(self, job: str, **what: Any) -> None:
        self._member.send(Event(job=job, rank=self._member.rank, **what))


if __name__ == "__main__":
    main()
