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
from fdt.service import tls
from fdt.service.auth import TOKEN_VARIABLE
from fdt.service.guests import Came, Left, Welcoming
from fdt.service.hub import Arrival, Hub, Lost
from fdt.service.launched import Launched
from fdt.service.losses import explain_loss
from fdt.service.member import ENGINE_VARIABLE
from fdt.service.outcome import Coordinator, Outcome, Timed, blobs_in, too_few
from fdt.service.passed import Passed
from fdt.service.tls import Identity

POLL_S = 0.25
WATCH_S = 1.0  # between looks at the processes, however much the members have to say
EXPLAIN_S = 5.0  # how long the launcher may take to say how a member was lost


@dataclass(frozen=True)
class _FromClient:
    conversation: object
    command: Command | None  # None: the client has no more to say


class Crew:
    """The members of one engine. `launches`: what to start, by which launcher. `identity`: of all, for other hosts."""

    def __init__(
        self,
        engine: str,
        run_dir: Path,
        blobs: LocalBlobs,
        launches: Sequence[tuple[Launcher, Task]],
        identity: Identity | None = None,
    ) -> None:
        self.hub = Hub(engine, run_dir, blobs, identity)
        self.hub.members = {task.role: task.count for _, task in launches}
        self._run_dir, self._blobs = run_dir, blobs
        self.launched = Launched(launches, self._env(identity))
        self._warm = False  # they have trained a job
        self._watched = 0.0  # time.monotonic() of the last look at the processes
        self._job = ""  # the one that is trained now
        self._held: list[BlobRef] = []  # the blobs of the client's job, which it drops unless it is gone
        self._passed = Passed(blobs)

    def start(self) -> None:
        """Start the members unless they run. Where one was lost since the last job, all are started anew."""
        if self._warm and not self.launched.whole:
            self.end()
        if not self.launched:
            self._launch()

    def _launch(self, workers: int = 0) -> None:
        self.hub.forget_members()
        try:
            self.launched.start(workers)
        except BaseException:
            self.end()  # half a crew must neither live on nor pass for a whole one at the next start
            raise

    def run(self, coordinator: Coordinator, commands: Iterator[Command]) -> Iterator[Event]:
        """One job: what `coordinator` makes of the client's commands and the members' events, until it is done."""
        conversation = object()
        timed = coordinator if isinstance(coordinator, Timed) else None
        self._passed.drop()  # of a job that failed
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
                self._drop(self._held)
                self._forget_unheard()
            if not coordinator.failed:  # a client that is told of a failure may still be reading
                self._passed.drop()

    def _forget_unheard(self) -> None:
        """Drop the blobs of what the client and members that have ended had still said. Guests and their words stay."""
        unheard: list[object] = []
        with contextlib.suppress(queue.Empty):
            while True:
                unheard.append(self.hub.inbox.get_nowait())
        for each in unheard:
            if isinstance(each, Arrival) and not self.hub.is_guest(each.role, each.rank):
                self._drop(_blobs_of(each.what))
            elif isinstance(each, _FromClient):
                self._drop(_blobs_of(each))
            else:
                self.hub.inbox.put(each)

    def end(self) -> None:
        """End the members, within seconds. `start` starts others."""
        self._warm = False
        self.hub.expect_leave()
        self.hub.dismiss_all()
        for role, count in self.launched.counts.items():
            self.hub.broadcast(role, count, Command(exit=ExitCommand()))
        self.launched.stop()
        self.hub.kill_left()

    def close(self) -> None:
        self.end()
        self.hub.close()

    def _listen(self, conversation: object, commands: Iterator[Command]) -> None:
        for command in commands:
            self.hub.inbox.put(_FromClient(conversation, command))
        self.hub.inbox.put(_FromClient(conversation, None))

    def _react(self, coordinator: Coordinator, conversation: object) -> Outcome | None:
        """The outcome of the next thing that happens; None when the client is gone."""
        happened = self._next()
        if isinstance(happened, Exit):
            return self._lose(coordinator, happened.role, happened.rank, happened.cause)
        if isinstance(happened, Arrival):
            return self._from_member(coordinator, happened)
        if isinstance(happened, _FromClient) and happened.conversation is conversation:
            return None if happened.command is None else self._from_client(coordinator, happened.command)
        return Outcome(drop=_blobs_of(happened))  # an earlier conversation's last word

    def _next(self) -> object:
        """What a member or the client says; the end of a process, soon; None when nothing happens."""
        try:
            if time.monotonic() - self._watched < WATCH_S:
                return self.hub.inbox.get(timeout=POLL_S)
        except queue.Empty:
            pass
        self._watched = time.monotonic()
        return next(iter(self.launched.news()), None)

    def _from_member(self, coordinator: Coordinator, arrival: Arrival) -> Outcome:
        role, rank, what = arrival.role, arrival.rank, arrival.what
        guest = self.hub.is_guest(role, rank)
        if arrival.crew != self.hub.crew and not guest:
            return Outcome(drop=_blobs_of(what))  # the last word of members that are gone
        if isinstance(what, Came | Left):
            return self._guest(coordinator, rank, what)
        if not self.hub.has_place(role, rank):  # of a guest that was dismissed
            return Outcome(drop=_blobs_of(what))
        if isinstance(what, Lost) and not self.hub.holds(role, rank, what.outbox):
            return Outcome()
        if isinstance(what, Lost):
            return self._dismiss(rank, "lost") if guest else self._lose(coordinator, role, rank)
        if guest and what.HasField("failed"):
            # One that joined at a job's very end has not found its blobs any more: that is no fault of its own.
            return self._dismiss(rank, "failed", what.failed.message) if what.job in ("", self._job) else Outcome()
        others = [e for e in self.launched.news() if e.rank not in (None, rank)] if what.HasField("failed") else []
        if not others:
            return coordinator.from_member(role, rank, what)
        self.hub.inbox.put(arrival)  # it may have failed for want of a member that is gone: that one's end comes first
        return self._lose(coordinator, others[0].role, others[0].rank, others[0].cause)

    def _guest(self, coordinator: Coordinator, rank: int, what: Came | Left) -> Outcome:
        if not isinstance(coordinator, Welcoming):
            return Outcome()
        if isinstance(what, Left):
            return coordinator.left(rank, what.how, what.why)
        there = self.hub.attached.get(("worker", rank))
        return coordinator.joined(rank, there.host) if there else Outcome()

    def _dismiss(self, rank: int, how: str, why: str = "") -> Outcome:
        """A guest's end is no harm to the others: the coordinator hears next that it has left."""
        self.hub.dismissed(rank, how, why)
        return Outcome()

    def _lose(self, coordinator: Coordinator, role: str, rank: int | None, cause: str | None = None) -> Outcome:
        failure = self._explain(role, rank, cause)
        if rank is not None:
            self.launched.deal_with(role, rank)
            self.hub.forget(role, rank)
        outcome = coordinator.lost(role, rank, failure)
        # mpirun's ranks cannot be replaced one by one
        return outcome if all(self.launched.restartable(r) for r, _ in outcome.restart) else coordinator.fail(failure)

    def _from_client(self, coordinator: Coordinator, command: Command) -> Outcome:
        outcome = coordinator.from_client(command)
        if not command.HasField("setup"):
            self._passed.add(command)
        else:
            self._job = command.job
            self._held = list(blobs_in(command.setup))
            for _, rank in filter(lambda member: self.hub.is_guest(*member), sorted(self.hub.attached)):
                outcome = outcome.followed_by(self._guest(coordinator, rank, Came()))
        return outcome

    def _carried_out(self, coordinator: Coordinator, outcome: Outcome) -> Iterator[Event]:
        """Members that cannot be started again are as good as lost: perhaps fewer can."""
        while True:
            try:
                yield from self._carry_out(outcome)
                return
            except UserError as error:
                yield from self._told(outcome.events)
                outcome = too_few(coordinator, error)

    def _carry_out(self, outcome: Outcome) -> Iterator[Event]:
        for member in outcome.kill:
            self.hub.kill(*member)
        if outcome.relaunch:
            self.end()
            self._launch(outcome.relaunch)
        for member in outcome.restart:
            self.launched.restart(*member)
        sizes = self.launched.counts
        for role, rank, command in outcome.commands:
            if rank is None:
                self.hub.broadcast(role, sizes[role], command)
            else:
                self.hub.send(role, rank, command)
        yield from self._told(outcome.events)
        self._drop(outcome.drop)

    def _told(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            self._passed.add(event)
            yield event

    def _drop(self, refs: Iterable[BlobRef]) -> None:
        for ref in refs:
            self._blobs.drop(ref)

    def _explain(self, role: str, rank: int | None, cause: str | None) -> Failed:
        """Name the member, how it ended and the end of its log."""
        deadline = time.monotonic() + EXPLAIN_S
        while cause is None and time.monotonic() < deadline:
            news = self.launched.news()
            mine = [e for e in news if e.role == role and e.rank in (rank, None)] or news
            if mine:
                rank, cause = (rank if mine[0].rank is None else mine[0].rank), mine[0].cause
            else:
                time.sleep(POLL_S)
        return explain_loss(role, rank, cause or "no answer", self._run_dir)

    def _env(self, identity: Identity | None) -> dict[str, str]:
        whose = {} if identity is None else {tls.VARIABLE: identity.dumps()}
        return {ENGINE_VARIABLE: self.hub.address, TOKEN_VARIABLE: self.hub.token, **whose}


def _blobs_of(what: object) -> list[BlobRef]:
    """Of a member's or client's word, whoever put it into the inbox."""
    said = what.command if isinstance(what, _FromClient) else what
    return list(blobs_in(said)) if isinstance(said, (Event, Command)) else []
