"""The supervisor of an engine's members (worker and server processes): it starts, watches, restarts and ends them.

A Coordinator, an object without I/O, decides for the engine: events in, an Outcome out. The supervisor surrounds it
with processes, streams and the clock. Both engines use it.
"""

import queue
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fdt.blobs import LocalBlobs
from fdt.environment import SCRATCH_VARIABLE
from fdt.errors import UserError
from fdt.launch import Exit, Launcher, Task
from fdt.rpc.session_pb2 import Attached, Command, Event, Failed
from fdt.rpc.session_pb2 import Exit as ExitCommand
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.security.auth import TLS_VARIABLE, TOKEN_VARIABLE, TlsIdentity
from fdt.service.member import ENGINE_VARIABLE
from fdt.supervise import Coordinator, Outcome, PassedBlobs, Timed, blobs_in, explain_loss, too_few
from fdt.supervise.processes import ElasticCoordinator, LaunchedProcesses, WorkerJoined, WorkerLeft
from fdt.supervise.worker_registry import MemberMessage, StreamLost, WorkerRegistry

POLL_S, WATCH_S = 0.25, 1.0  # of messages; between checks of the processes, even while messages keep arriving
EXPLAIN_S, EXPLAIN_REMOTE_S = 5.0, 2.0  # for the launcher to report how a member ended; a remote host may be cut off


@dataclass(frozen=True)
class _FromClient:
    conversation: object
    command: Command | None  # None: the client's stream has ended


class Supervisor:
    """The supervisor of one engine's members.

    Args:
        engine: The engine's name, "hfdt" or "nfdt".
        run_dir: The directory of the members' logs.
        blobs: The engine's blob store.
        launches: The tasks to start, each with its launcher.
        identity: The members' certificate where some are on other hosts.
    """

    def __init__(
        self,
        engine: str,
        run_dir: Path,
        blobs: LocalBlobs,
        launches: Sequence[tuple[Launcher, Task]],
        identity: TlsIdentity | None = None,
    ) -> None:
        members = {task.role: task.count for _, task in launches}
        self.registry = WorkerRegistry(engine, run_dir, blobs, members, identity)
        self._run_dir, self._blobs = run_dir, blobs
        self.launched = LaunchedProcesses(launches, self._env(identity))
        self._warm = False  # the members have trained a job and can train the next
        self._watched = 0.0  # time.monotonic() of the last check of the processes
        self._job = ""  # id of the current job
        self._abandoned = threading.Event()  # the current job's client has ended its stream
        self._job_blobs: list[BlobRef] = []  # the blobs of the job's Setup; the client drops them unless it is lost
        self._passed_blobs = PassedBlobs(blobs)

    def start(self, workers: int = 0) -> None:
        """Start the members unless they run. Where one was lost since the last job, restart all.

        `workers`: how many workers there are to be; 0: as many as their task asks for.
        """
        if self._warm and not self.launched.complete(workers):
            self.end()
        if not self.launched:
            self._launch(workers)

    def _launch(self, workers: int = 0) -> None:
        self.launched.resize(workers)
        self.registry.forget_members(self.launched.counts)
        try:
            self.launched.start()
        except BaseException:
            self.end()  # a partial set must neither keep running nor count as complete at the next start
            raise

    def run(self, coordinator: Coordinator, commands: Iterator[Command]) -> Generator[Event, None, None]:
        """Run one job: pass the client's commands and the members' events to `coordinator` until it is done.

        Yields:
            The events for the client.
        """
        conversation = object()
        known: dict[tuple[str, int], Attached] = {}
        timed = coordinator if isinstance(coordinator, Timed) else None
        self._passed_blobs.drop()  # those of an earlier job that failed
        self._abandoned = threading.Event()
        threading.Thread(target=self._listen, args=(conversation, commands, self._abandoned), daemon=True).start()
        try:
            while not coordinator.done:
                outcome = self._react(coordinator, conversation)
                if outcome is None:
                    return
                yield from self._executed(coordinator, outcome)
                yield from self._arrivals(known)
                if timed is not None and not coordinator.done:
                    yield from self._executed(coordinator, timed.tick(time.monotonic()))
        finally:
            self._job = ""
            if coordinator.failed or not coordinator.done:
                self.end()
            else:
                self._warm = True
            if not coordinator.done:  # the client is lost, perhaps killed
                self._drop(self._job_blobs)
                self._drop_unread()
            if not coordinator.failed:  # after a failure the client may still be reading blobs
                self._passed_blobs.drop()

    def _drop_unread(self) -> None:
        """Drop the blobs of unread messages from the client and from ended members. Elastic workers' messages stay."""
        inbox = self.registry.inbox  # this thread is its only reader
        for each in [inbox.get_nowait() for _ in range(inbox.qsize())]:
            if isinstance(each, MemberMessage) and not self.registry.is_elastic(each.role, each.rank):
                self._drop(_blobs_of(each.what))
            elif isinstance(each, _FromClient):
                self._drop(_blobs_of(each))
            else:
                inbox.put(each)

    def end(self) -> None:
        """End the members, within seconds. `start` starts new ones."""
        self._warm = False
        self.registry.expect_leave()
        self.registry.release_all()
        for role, count in self.launched.counts.items():
            self.registry.broadcast(role, count, Command(exit=ExitCommand()))
        self.launched.stop()
        self.registry.kill_left()

    def close(self) -> None:
        """End the members, stop listening, and drop the last job's blobs."""
        self.end()
        self.registry.close()
        self._passed_blobs.drop()

    def _arrivals(self, known: dict[tuple[str, int], Attached]) -> Iterator[Event]:
        """Yield the members that have attached since the last call; nothing before the job is known."""
        for member, attached in list(self.registry.attached.items()) if self._job else ():
            if known.get(member) is not attached:
                known[member] = attached
                yield Event(job=self._job, rank=member[1], attached=attached)

    def _listen(self, conversation: object, commands: Iterator[Command], abandoned: threading.Event) -> None:
        for command in commands:
            self.registry.inbox.put(_FromClient(conversation, command))
        abandoned.set()
        self.registry.inbox.put(_FromClient(conversation, None))

    def _react(self, coordinator: Coordinator, conversation: object) -> Outcome | None:
        """Return the outcome of the next event; None when the client is lost."""
        happened = self._next()
        if isinstance(happened, Exit):
            return self._lose(coordinator, happened.role, happened.rank, happened.cause)
        if isinstance(happened, MemberMessage):
            return self._from_member(coordinator, happened)
        if isinstance(happened, _FromClient) and happened.conversation is conversation:
            return None if happened.command is None else self._from_client(coordinator, happened.command)
        return Outcome(drop=_blobs_of(happened))  # the last message of an earlier conversation

    def _next(self) -> object:
        """Return the next message, or an unhandled exit (checked every WATCH_S seconds), or None when there is none."""
        try:
            if time.monotonic() - self._watched < WATCH_S:
                return self.registry.inbox.get(timeout=POLL_S)
        except queue.Empty:
            pass
        self._watched = time.monotonic()
        return next(iter(self.launched.unhandled_exits()), None)

    def _from_member(self, coordinator: Coordinator, arrival: MemberMessage) -> Outcome:
        role, rank, what = arrival.role, arrival.rank, arrival.what
        elastic = self.registry.is_elastic(role, rank)
        if arrival.generation != self.registry.generation and not elastic:
            return Outcome(drop=_blobs_of(what))  # the last message of ended members
        if isinstance(what, WorkerJoined | WorkerLeft):
            return self._elastic(coordinator, rank, what)
        if not self.registry.has_rank(role, rank):  # from an elastic worker that was released
            return Outcome(drop=_blobs_of(what))
        if isinstance(what, StreamLost) and not self.registry.holds(role, rank, what.outbox):
            return Outcome()
        if isinstance(what, StreamLost):
            return self._release(rank, "lost") if elastic else self._lose(coordinator, role, rank)
        if elastic and what.HasField("failed"):
            # A worker that joins as a job ends no longer finds the job's blobs: that is no failure.
            return self._release(rank, "failed", what.failed.message) if what.job in ("", self._job) else Outcome()
        exits = self.launched.unhandled_exits() if what.HasField("failed") else []
        others = [e for e in exits if e.rank not in (None, rank)]
        if not others:
            return coordinator.from_member(role, rank, what)
        # this failure may follow from another member's loss: handle that loss first
        self.registry.inbox.put(arrival)
        return self._lose(coordinator, others[0].role, others[0].rank, others[0].cause)

    def _elastic(self, coordinator: Coordinator, rank: int, what: WorkerJoined | WorkerLeft) -> Outcome:
        if not isinstance(coordinator, ElasticCoordinator):
            return Outcome()
        if isinstance(what, WorkerLeft):
            return coordinator.left(rank, what.how, what.why)
        attached = self.registry.attached.get(("worker", rank))
        return coordinator.joined(rank, attached.host) if attached else Outcome()

    def _release(self, rank: int, how: str, why: str = "") -> Outcome:
        """Release an elastic worker. The other members continue, and the coordinator then receives WorkerLeft."""
        self.registry.release_worker(rank, how, why)
        return Outcome()

    def _lose(self, coordinator: Coordinator, role: str, rank: int | None, cause: str | None = None) -> Outcome:
        failure = self._explain(role, rank, cause)
        if rank is not None:
            self.launched.mark_handled(role, rank)
            self.registry.forget(role, rank)
        outcome = coordinator.lost(role, rank, failure)
        # mpirun's ranks cannot be restarted singly
        return outcome if all(self.launched.restartable(r) for r, _ in outcome.restart) else coordinator.fail(failure)

    def _from_client(self, coordinator: Coordinator, command: Command) -> Outcome:
        outcome = coordinator.from_client(command)
        if not command.HasField("setup"):
            self._passed_blobs.add(command)
        else:
            self._job = command.job
            self._job_blobs = list(blobs_in(command.setup))
            for _, rank in filter(lambda member: self.registry.is_elastic(*member), sorted(self.registry.attached)):
                outcome = outcome.followed_by(self._elastic(coordinator, rank, WorkerJoined()))
        return outcome

    def _executed(self, coordinator: Coordinator, outcome: Outcome) -> Iterator[Event]:
        """Execute an outcome. Members that cannot be restarted count as lost: fewer may be able to continue."""
        while True:
            try:
                yield from self._execute(outcome)
                return
            except UserError as error:
                yield from self._noted(outcome.events)
                outcome = too_few(coordinator, error)

    def _execute(self, outcome: Outcome) -> Iterator[Event]:
        for member in outcome.kill:
            self.registry.kill(*member)
        if self._abandoned.is_set():  # what would start now would only have to be ended
            outcome = Outcome(events=outcome.events, drop=outcome.drop)
        if outcome.relaunch or outcome.pause:
            self.end()
        if outcome.relaunch:
            self._launch(outcome.relaunch)
        for member in outcome.restart:
            self.launched.restart(*member)
        sizes = self.launched.counts
        for role, rank, command in outcome.commands:
            if rank is None:
                self.registry.broadcast(role, sizes[role], command)
            else:
                self.registry.send(role, rank, command)
        yield from self._noted(outcome.events)
        self._drop(outcome.drop)

    def _noted(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            self._passed_blobs.add(event)
            yield event

    def _drop(self, refs: Iterable[BlobRef]) -> None:
        for ref in refs:
            self._blobs.drop(ref)

    def _explain(self, role: str, rank: int | None, cause: str | None) -> Failed:
        """Return a failure that names the member, how it ended, and the end of its log."""
        deadline = time.monotonic() + (EXPLAIN_REMOTE_S if self.registry.is_remote(role, rank) else EXPLAIN_S)
        while cause is None and time.monotonic() < deadline and not self._abandoned.is_set():
            exits = self.launched.unhandled_exits()
            mine = [e for e in exits if e.role == role and e.rank in (rank, None)] or exits
            if mine:
                rank, cause = (rank if mine[0].rank is None else mine[0].rank), mine[0].cause
            else:
                self._abandoned.wait(POLL_S)
        if cause is None and not self._abandoned.is_set() and self.registry.is_remote(role, rank):
            self.launched.mark_cut_off(role, rank)
        cause = cause or ": ".join(filter(None, ("no answer", self.launched.reason())))
        return explain_loss(role, rank, cause, self._run_dir)

    def _env(self, identity: TlsIdentity | None) -> dict[str, str]:
        tls = {} if identity is None else {TLS_VARIABLE: identity.dumps()}
        secrets = {SCRATCH_VARIABLE: self.registry.scratch, TOKEN_VARIABLE: self.registry.token, **tls}
        return {ENGINE_VARIABLE: self.registry.address, **secrets}


def _blobs_of(what: object) -> list[BlobRef]:
    """Return the blobs that an object of the inbox names: a member's event or a client's command."""
    message = what.command if isinstance(what, _FromClient) else what
    return list(blobs_in(message)) if isinstance(message, (Event, Command)) else []
