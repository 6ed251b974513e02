"""An engine's members as one crew: started together, heard through one inbox, ended together.

What an engine decides is a Coordinator's, a pure object (events in, an Outcome out); this is the shell around it that
has the processes, the streams and the clock. Both engines stand on it.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.launch import Exit, Launcher, Task
from fdt.rpc.session_pb2 import Command, Event, Failed
from fdt.rpc.session_pb2 import Exit as ExitCommand
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.security import tls
from fdt.security.auth import TOKEN_VARIABLE
from fdt.security.tls import TlsIdentity
from fdt.service.member import ENGINE_VARIABLE
from fdt.supervise.elastic_workers import ElasticCoordinator, WorkerJoined, WorkerLeft
from fdt.supervise.launched_processes import LaunchedProcesses
from fdt.supervise.lost_processes import explain_loss
from fdt.supervise.outcome import Coordinator, Outcome, Timed, blobs_in, too_few
from fdt.supervise.passed_blobs import PassedBlobs
from fdt.supervise.worker_registry import MemberMessage, StreamLost, WorkerRegistry

POLL_S = 0.25
WATCH_S = 1.0  # between looks at the processes, however much the members have to say
EXPLAIN_S = 5.0  # how long the launcher may take to say how a member was lost


@dataclass(frozen=True)
class _FromClient:
    conversation: object
    command: Command | None  # None: the client has no more to say


class Supervisor:
    """The members of one engine. `launches`: what to start, by which launcher. `identity`: of all, for other hosts."""

    def __init__(
        self,
        engine: str,
        run_dir: Path,
        blobs: LocalBlobs,
        launches: Sequence[tuple[Launcher, Task]],
        identity: TlsIdentity | None = None,
    ) -> None:
        self.registry = WorkerRegistry(engine, run_dir, blobs, identity)
        self.registry.members = {task.role: task.count for _, task in launches}
        self._run_dir, self._blobs = run_dir, blobs
        self.launched = LaunchedProcesses(launches, self._env(identity))
        self._warm = False  # they have trained a job
        self._watched = 0.0  # time.monotonic() of the last look at the processes
        self._job = ""  # the one that is trained now
        self._job_blobs: list[BlobRef] = []  # the blobs of the client's job, which it drops unless it is gone
        self._passed_blobs = PassedBlobs(blobs)

    def start(self) -> None:
        """Start the members unless they run. Where one was lost since the last job, all are started anew."""
        if self._warm and not self.launched.complete:
            self.end()
        if not self.launched:
            self._launch()

    def _launch(self, workers: int = 0) -> None:
        self.registry.forget_members()
        try:
            self.launched.start(workers)
        except BaseException:
            self.end()  # half a crew must neither live on nor pass for a whole one at the next start
            raise

    def run(self, coordinator: Coordinator, commands: Iterator[Command]) -> Iterator[Event]:
        """One job: what `coordinator` makes of the client's commands and the members' events, until it is done."""
        conversation = object()
        timed = coordinator if isinstance(coordinator, Timed) else None
        self._passed_blobs.drop()  # of a job that failed
        threading.Thread(target=self._listen, args=(conversation, commands), daemon=True).start()
        try:
            while not coordinator.done:
                outcome = self._react(coordinator, conversation)
                if outcome is None:
                    return
                yield from self._carried_out(coordinator, outcome)
                if timed is not None and not coordinator.done:
                    yield from self._carried_out(coordinator, timed.tick(time.monotonic()))
        finally:
            self._job = ""
            if coordinator.failed or not coordinator.done:
                self.end()
            else:
                self._warm = True
            if not coordinator.done:  # the client is gone, perhaps killed
                self._drop(self._job_blobs)
                self._drop_unread()
            if not coordinator.failed:  # a client that is told of a failure may still be reading
                self._passed_blobs.drop()

    def _drop_unread(self) -> None:
        """Drop the blobs of what the client and members that have ended had still said. Guests and their words stay."""
        unheard: list[object] = []
        with contextlib.suppress(queue.Empty):
            while True:
                unheard.append(self.registry.inbox.get_nowait())
        for each in unheard:
            if isinstance(each, MemberMessage) and not self.registry.is_elastic(each.role, each.rank):
                self._drop(_blobs_of(each.what))
            elif isinstance(each, _FromClient):
                self._drop(_blobs_of(each))
            else:
                self.registry.inbox.put(each)

    def end(self) -> None:
        """End the members, within seconds. `start` starts others."""
        self._warm = False
        self.registry.expect_leave()
        self.registry.release_all()
        for role, count in self.launched.counts.items():
            self.registry.broadcast(role, count, Command(exit=ExitCommand()))
        self.launched.stop()
        self.registry.kill_left()

    def close(self) -> None:
        self.end()
        self.registry.close()

    def _listen(self, conversation: object, commands: Iterator[Command]) -> None:
        for command in commands:
            self.registry.inbox.put(_FromClient(conversation, command))
        self.registry.inbox.put(_FromClient(conversation, None))

    def _react(self, coordinator: Coordinator, conversation: object) -> Outcome | None:
        """The outcome of the next thing that happens; None when the client is gone."""
        happened = self._next()
        if isinstance(happened, Exit):
            return self._lose(coordinator, happened.role, happened.rank, happened.cause)
        if isinstance(happened, MemberMessage):
            return self._from_member(coordinator, happened)
        if isinstance(happened, _FromClient) and happened.conversation is conversation:
            return None if happened.command is None else self._from_client(coordinator, happened.command)
        return Outcome(drop=_blobs_of(happened))  # an earlier conversation's last word

    def _next(self) -> object:
        """What a member or the client says; the end of a process, soon; None when nothing happens."""
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
            return Outcome(drop=_blobs_of(what))  # the last word of members that are gone
        if isinstance(what, WorkerJoined | WorkerLeft):
            return self._elastic(coordinator, rank, what)
        if not self.registry.has_rank(role, rank):  # of a guest that was dismissed
            return Outcome(drop=_blobs_of(what))
        if isinstance(what, StreamLost) and not self.registry.holds(role, rank, what.outbox):
            return Outcome()
        if isinstance(what, StreamLost):
            return self._release(rank, "lost") if elastic else self._lose(coordinator, role, rank)
        if elastic and what.HasField("failed"):
            # One that joined at a job's very end has not found its blobs any more: that is no fault of its own.
            return self._release(rank, "failed", what.failed.message) if what.job in ("", self._job) else Outcome()
        others = (
            [e for e in self.launched.unhandled_exits() if e.rank not in (None, rank)]
            if what.HasField("failed")
            else []
        )
        if not others:
            return coordinator.from_member(role, rank, what)
        # it may have failed for want of a member that is gone: that one's end comes first
        self.registry.inbox.put(arrival)
        return self._lose(coordinator, others[0].role, others[0].rank, others[0].cause)

    def _elastic(self, coordinator: Coordinator, rank: int, what: WorkerJoined | WorkerLeft) -> Outcome:
        if not isinstance(coordinator, ElasticCoordinator):
            return Outcome()
        if isinstance(what, WorkerLeft):
            return coordinator.left(rank, what.how, what.why)
        there = self.registry.attached.get(("worker", rank))
        return coordinator.joined(rank, there.host) if there else Outcome()

    def _release(self, rank: int, how: str, why: str = "") -> Outcome:
        """A guest's end is no harm to the others: the coordinator hears next that it has left."""
        self.registry.release_worker(rank, how, why)
        return Outcome()

    def _lose(self, coordinator: Coordinator, role: str, rank: int | None, cause: str | None = None) -> Outcome:
        failure = self._explain(role, rank, cause)
        if rank is not None:
            self.launched.mark_handled(role, rank)
            self.registry.forget(role, rank)
        outcome = coordinator.lost(role, rank, failure)
        # mpirun's ranks cannot be replaced one by one
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

    def _carried_out(self, coordinator: Coordinator, outcome: Outcome) -> Iterator[Event]:
        """Members that cannot be started again are as good as lost: perhaps fewer can."""
        while True:
            try:
                yield from self._carry_out(outcome)
                return
            except UserError as error:
                yield from self._noted(outcome.events)
                outcome = too_few(coordinator, error)

    def _carry_out(self, outcome: Outcome) -> Iterator[Event]:
        for member in outcome.kill:
            self.registry.kill(*member)
        if outcome.relaunch:
            self.end()
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
        """Name the member, how it ended and the end of its log."""
        deadline = time.monotonic() + EXPLAIN_S
        while cause is None and time.monotonic() < deadline:
            news = self.launched.unhandled_exits()
            mine = [e for e in news if e.role == role and e.rank in (rank, None)] or news
            if mine:
                rank, cause = (rank if mine[0].rank is None else mine[0].rank), mine[0].cause
            else:
                time.sleep(POLL_S)
        return explain_loss(role, rank, cause or "no answer", self._run_dir)

    def _env(self, identity: TlsIdentity | None) -> dict[str, str]:
        whose = {} if identity is None else {tls.VARIABLE: identity.dumps()}
        return {ENGINE_VARIABLE: self.registry.address, TOKEN_VARIABLE: self.registry.token, **whose}


def _blobs_of(what: object) -> list[BlobRef]:
    """Of a member's or client's word, whoever put it into the inbox."""
    said = what.command if isinstance(what, _FromClient) else what
    return list(blobs_in(said)) if isinstance(said, (Event, Command)) else []
