"""The server of a pool: TrainingService for several jobs at the same time, and PoolService, which shows and cancels."""

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import grpc

from fdt import __version__
from fdt.errors import UserError
from fdt.rpc import training_pb2 as pb
from fdt.rpc import training_pb2_grpc
from fdt.rpc.session_pb2 import Command, Event, Failed, Note
from fdt.security.auth import TlsIdentity, user_of
from fdt.service.server import CommandOrder, RunningServer, listen, until_broken
from fdt.service.transport import new_server
from fdt.supervise import blobs_in
from frontends.pool.engines import EnginePool
from frontends.pool.schedule import JobQueue, QueuedJob, Quotas

NAME_LENGTH = 40


@dataclass
class _Call:
    """A job's call. `cancelled`: the line that says who cancelled it, or ""."""

    commands: "Interruptible"
    cancelled: str = ""
    gone: bool = False  # the caller has ended the call


class Interruptible:
    """The commands of a client, which `end` ends early. They are read in a thread, from the first `next` on."""

    def __init__(self, commands: Iterator[Command]) -> None:
        self._commands = commands
        self._read: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __iter__(self) -> Iterator[Command]:
        self._thread.start()
        return iter(self._read.get, None)

    def end(self) -> None:
        """End the commands."""
        self._read.put(None)

    def _listen(self) -> None:
        for command in self._commands:
            self._read.put(command)
        self._read.put(None)


class PoolServicer(training_pb2_grpc.TrainingServiceServicer, training_pb2_grpc.PoolServiceServicer):
    """The jobs of a pool.

    Args:
        name: The engines' name, "hfdt" or "nfdt".
        engines: The engines.
        quotas: The most slots of each user.
        administrators: Users who may cancel every job and give priorities above 0. Where users have no certificates,
            every caller may.
        whole: Whether each job gets all slots.
    """

    def __init__(
        self,
        name: str,
        engines: EnginePool,
        quotas: Quotas | None = None,
        administrators: Collection[str] = (),
        *,
        whole: bool = False,
    ) -> None:
        self._name, self._engines, self._whole = name, engines, whole
        self._administrators = frozenset(administrators)
        self._nonce = engines.blobs.put(b"training").id
        self._queue = JobQueue(engines.slots, quotas)
        self._calls: dict[int, _Call] = {}
        self._changed = threading.Condition()

    def listen(self, address: str, token: str, identity: TlsIdentity | None = None) -> RunningServer:
        """Serve at an address; arguments and errors are those of fdt.service.server.serve."""
        server = new_server(token, identity)
        training_pb2_grpc.add_TrainingServiceServicer_to_server(self, server)
        training_pb2_grpc.add_PoolServiceServicer_to_server(self, server)
        return listen(server, self._engines.blobs, address, identity)

    # -- TrainingService ----------------------------------------------------------------------------------------------
    def Hello(self, request: pb.HelloRequest, context: grpc.ServicerContext) -> pb.HelloReply:
        return pb.HelloReply(
            engine=self._name,
            version=__version__,
            workers=self._queue.most(user_of(context)),
            blobs=str(self._engines.blobs.directory),
            nonce=self._nonce,
            run_dir=str(self._engines.logs),
        )

    def Train(self, request_iterator: Iterator[Command], context: grpc.ServicerContext) -> Iterator[Event]:
        ordered = CommandOrder(until_broken(request_iterator))
        rest = iter(ordered)
        first = next(rest, None)  # a silent client has no place in the queue
        if first is not None:
            yield from self._queued(first, rest, context)
        if ordered.fault:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, ordered.fault)

    def _queued(self, setup: Command, rest: Iterator[Command], context: grpc.ServicerContext) -> Iterator[Event]:
        call = _Call(Interruptible(itertools.chain([setup], rest)))
        begun = False
        try:
            job, why = self._submitted(setup, call, user_of(context))
        except UserError as error:
            self._drop(setup)
            yield Event(job=setup.job, failed=Failed(message=str(error)))
            return
        try:
            if context.add_callback(lambda: self._leave(call)):
                if job.number not in self._queue.running:
                    yield Event(job=setup.job, note=Note(text=f"job {job.number} is pending: {why}"))
                begun = self._come(job, call)
            if begun:
                yield from self._trained(job, setup.job, call)
            if call.cancelled:
                yield Event(job=setup.job, failed=Failed(message=call.cancelled))
        finally:
            if not begun:
                self._drop(setup)
            self._ended(job)

    def _submitted(self, setup: Command, call: _Call, user: str) -> tuple[QueuedJob, str]:
        asked = setup.setup.request
        if asked.priority > 0 and not self._administers(user):
            raise UserError(f"a priority above 0 needs an administrator of the server. Received: {asked.priority}")
        if self._whole and asked.workers not in (0, self._queue.slots):
            raise UserError(f"this server gives all its {self._queue.slots} workers to each job; leave -np out")
        with self._changed:
            job = self._queue.submit(user, asked.workers, asked.priority, _shown(asked.name), time.monotonic())
            self._calls[job.number] = call
            self._start()
            others = len(self._queue.pending) - 1
            return job, f"{self._queue.free} of {self._queue.slots} slots are free, {others} other jobs are pending"

    def _come(self, job: QueuedJob, call: _Call) -> bool:
        """Wait until the job may start; return whether it may: it was not cancelled, and its client is there."""
        with self._changed:
            self._changed.wait_for(lambda: job.number in self._queue.running or call.cancelled or call.gone)
            return not (call.cancelled or call.gone)

    def _trained(self, job: QueuedJob, identity: str, call: _Call) -> Iterator[Event]:
        """Train the job. Where members cannot be started, it fails with the engine's message, not gRPC's."""
        try:
            with self._engines.engine(job.slots) as engine:
                # Members end before another job has their engine.
                with contextlib.closing(engine.train(iter(call.commands))) as events:
                    for event in events:
                        if call.cancelled and event.HasField("failed"):
                            return
                        yield event
        except UserError as error:
            yield Event(job=identity, failed=Failed(message=str(error)))

    # -- PoolService --------------------------------------------------------------------------------------------------
    def Queue(self, request: pb.QueueRequest, context: grpc.ServicerContext) -> pb.QueueReply:
        with self._changed:
            now, jobs = time.monotonic(), self._queue
            reasons = jobs.reasons(now)
            listed = [("RUNNING", job) for job in jobs.running.values()]
            listed += [("PENDING", job) for job in jobs.ordered(now)]
            return pb.QueueReply(
                engine=self._name,
                slots=jobs.slots,
                free=jobs.free,
                user=user_of(context),
                jobs=[_listed(job, state, reasons.get(job.number, ""), now) for state, job in listed],
            )

    def Cancel(self, request: pb.CancelRequest, context: grpc.ServicerContext) -> pb.CancelReply:
        user = user_of(context)
        with self._changed:
            job = self._queue.running.get(request.number) or self._queue.pending.get(request.number)
            call = self._calls.get(request.number)
            if job is None or call is None:
                context.abort(grpc.StatusCode.NOT_FOUND, f"no job {request.number} is pending or running")
            assert job is not None and call is not None  # abort raised
            if user != job.user and not self._administers(user):
                refusal = f"job {job.number} is {job.user}'s, and {user} is no administrator of the server"
                context.abort(grpc.StatusCode.PERMISSION_DENIED, refusal)
            call.cancelled = f"job {job.number} was cancelled" + (f" by {user}" if user else "")
            call.commands.end()
            self._changed.notify_all()
        return pb.CancelReply()

    # -- the queue ----------------------------------------------------------------------------------------------------
    def _administers(self, user: str) -> bool:
        return not user or user in self._administrators

    def _leave(self, call: _Call) -> None:
        with self._changed:
            call.gone = True
            self._changed.notify_all()

    def _ended(self, job: QueuedJob) -> None:
        with self._changed:
            self._queue.end(job.number, time.monotonic())
            self._calls.pop(job.number, None)
            self._start()

    def _start(self) -> None:
        if self._queue.start(time.monotonic()):
            self._changed.notify_all()

    def _drop(self, setup: Command) -> None:
        """Drop the blobs of a job that never began."""
        for ref in blobs_in(setup.setup):
            self._engines.blobs.drop(ref)


def _listed(job: QueuedJob, state: str, reason: str, now: float) -> pb.QueuedJob:
    return pb.QueuedJob(
        number=job.number,
        user=job.user,
        state=state,
        priority=job.priority,
        slots=job.slots,
        seconds=now - job.since,
        name=job.name,
        reason=reason,
    )


def _shown(name: str) -> str:
    """Return a caller's text as it can be shown in another user's terminal."""
    return "".join(c if c.isprintable() else "?" for c in name[:NAME_LENGTH])
