"""Coordinator of one NFDT job: commands and events in, messages to members and client out. No clock, no threads.

Servers receive the epochs. Workers receive the job; afterwards the servers direct them. An epoch ends when every server
has sent its snapshot, and every worker its counts and metric states, which are summed.
"""

from collections.abc import Container, Sequence

from fdt.blobs import Blobs
from fdt.rpc.session_pb2 import Command, EpochEnd, Event, Failed, Fault, Finished, Leave, Membership, Note, Ready, Setup
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.supervise import Feeding, Outcome, blobs_in
from nfdt.engine.epochs import EpochAggregator, epoch_event, resume
from nfdt.engine.recovery import LossVerdict, ServerRecovery, WorkerMembership, is_suspendable
from nfdt.options import Options

WORKER, SERVER = "worker", "server"
WAITS = "the script itself reads this fit's batches"
HOW = {"left": "has left", "lost": "was lost", "failed": "has failed"}


class ServersCoordinator:
    """Coordinates one job on parameter servers and workers.

    Args:
        workers: Number of workers at the start.
        addresses: Address of each server.
        blobs: Blob store, to sum the members' reports.
        hosted: Whether the only server runs in the only worker's process, which then reports for both.
    """

    def __init__(self, workers: int, addresses: Sequence[str], blobs: Blobs, *, hosted: bool = False) -> None:
        self._hosted = hosted
        self._to_servers = WORKER if hosted else SERVER
        self._servers = 0 if hosted else len(addresses)
        self._worker_membership, self._recovery = WorkerMembership(workers), ServerRecovery(self._servers)
        self._workers, self._addresses, self._blobs = workers, list(addresses), blobs
        self._job = ""
        self._setup = Setup()
        self._lost_early: list[tuple[str, int | None, Failed]] = []  # members lost before the job was set up
        self._finishing = self._announced = False  # announced: the client was informed that all members are ready
        self._ready: dict[tuple[str, int], Ready] = {}
        self._finished: set[tuple[str, int]] = set()
        self._epochs: dict[int, EpochAggregator] = {}
        self._wanted_epoch = -1  # the client's current epoch
        self._given_epoch = -1  # the last epoch whose end the client has received
        self._epoch = Command()  # the client's last epoch command
        self._changed: list[BlobRef] = []
        self._read: list[BlobRef] = []  # of the previous command: restored servers may read it again
        self._feeding = Feeding()
        self.done = self.failed = False

    # -- the client's commands -------------------------------------------------------------------------------

    def from_client(self, command: Command) -> Outcome:
        self._job = command.job
        kind = command.WhichOneof("kind") or ""
        handler = getattr(self, f"_client_{kind}", None)
        if handler is None:
            return self.fail(Failed(message=f"nfdt has no such command. Received: {kind}"))
        outcome: Outcome = handler(command)
        return outcome

    def _client_setup(self, command: Command) -> Outcome:
        self._setup = Setup(job=command.setup.job, peers=self._addresses)
        options = Options.read(command.setup.job.options)
        self._worker_membership = WorkerMembership(self._workers, options.restarts, options.min_np)
        self._recovery.begin(self._setup.job)
        to_servers = [] if self._hosted else [(SERVER, None, command)]
        outcome = Outcome(commands=[*to_servers, *self._to_first_workers()])
        for role, rank, failure in self._lost_early:
            outcome = outcome.followed_by(self.lost(role, rank, failure))
        return outcome

    def _to_first_workers(self) -> list[tuple[str, int | None, Command]]:
        """Return the setup for each worker, except for lost ones: their replacements get a setup of their own."""
        early = {rank for role, rank, _ in self._lost_early if role == WORKER}
        ranks: list[int | None] = [rank for rank in range(self._workers) if rank not in early] if early else [None]
        return [(WORKER, rank, Command(job=self._job, setup=self._setup)) for rank in ranks]

    def _client_epoch(self, command: Command) -> Outcome:
        self._wanted_epoch, self._epoch = command.epoch.epoch, command
        unused = resume(command)
        self._changed += blobs_in(command.epoch)
        return Outcome(commands=[(self._to_servers, None, command)], drop=unused)

    def _client_step(self, command: Command) -> Outcome:
        if command.step.changed.model.id:
            message = "a batch hook wrote weights, and NFDT's workers train while it runs; hfdt run supports such hooks"
            return self.fail(Failed(message=message))
        self._changed += blobs_in(command.step)
        return self._pass_on(command)

    def _pass_on(self, command: Command) -> Outcome:
        return Outcome(commands=[(self._to_servers, None, command)])

    _client_end_epoch = _client_suspend = _pass_on

    def _client_finish(self, command: Command) -> Outcome:
        self._finishing = True
        to_servers = [] if self._hosted else [(SERVER, None, command)]
        to_workers = [(WORKER, rank, command) for rank in self._worker_membership.incarnations]
        return Outcome(commands=[*to_servers, *to_workers])

    def _client_feed(self, command: Command) -> Outcome:
        self._feeding.fed(command.feed)
        return Outcome(commands=[(WORKER, None, command)])

    # -- the members' events ---------------------------------------------------------------------------------

    def from_member(self, role: str, rank: int, event: Event) -> Outcome:
        kind = event.WhichOneof("kind")
        if self.done or event.job != self._job:
            return Outcome(drop=list(blobs_in(event)))
        if role == SERVER and rank in self._recovery.restoring and kind not in ("ready", "failed"):
            return Outcome(drop=list(blobs_in(event)))  # sent before the restoration
        if kind == "checkpoint":
            return Outcome(drop=self._recovery.keep(rank, event.checkpoint))
        if kind == "failed":
            return self.fail(event.failed)
        if kind in ("progress", "output", "step_end", "spans"):
            return Outcome(events=[event])
        if kind == "ready":
            return self._member_ready(role, rank, event.ready)
        if kind == "epoch_end":
            return self._member_epoch_end(role, rank, event.epoch_end)
        if kind == "feed_wanted":
            wanted, workers = event.feed_wanted, len(self._worker_membership.incarnations)
            highest, _, drop = self._feeding.wants(rank, wanted, workers)
            ask = wanted.up_to > highest  # so a slow worker delays no other
            return Outcome(events=[Event(job=self._job, feed_wanted=wanted)] if ask else [], drop=drop)
        if kind == "finished":
            self._finished.add((role, rank))
            return self._done_if_all_have_finished()
        return Outcome()

    def lost(self, role: str, rank: int | None, failure: Failed) -> Outcome:
        """Handle the loss of a member: a worker's batches go to others, a server's loss restores all (recovery.py)."""
        if not self._job:
            self._lost_early.append((role, rank, failure))
            return Outcome()
        if self._hosted or rank is None or self._setup.job.data.HasField("feed"):
            return self.fail(failure)
        if role == SERVER:
            return self._restore(rank, failure)
        incarnation = self._worker_membership.incarnations[rank]
        verdict = self._worker_membership.lose(rank, over=self._finishing)
        if verdict is LossVerdict.TOO_FEW:
            return self.fail(failure)
        leave = self._leave(rank, incarnation)
        outcome = Outcome(commands=[(SERVER, None, leave)], events=[self._fault(rank, verdict, failure)])
        if verdict is LossVerdict.REPLACED:
            outcome.restart.append((WORKER, rank))
            setup = Setup(incarnation=incarnation + 1)
            setup.MergeFrom(self._setup)
            outcome.commands.append((WORKER, rank, Command(job=self._job, setup=setup)))
        return self._without(outcome)

    def _restore(self, shard: int, failure: Failed) -> Outcome:
        """Restore all servers from the last snapshot; later batches are assigned anew."""
        over = 0 <= self._wanted_epoch == self._given_epoch  # the client has its end: it is not trained again
        back = not self._finishing and self._recovery.reaches(self._wanted_epoch + over)
        if not back or not self._worker_membership.use_restart():
            return self.fail(failure)
        setups, spent = self._recovery.restore(self._setup.job)
        spent += self._epochs.pop(self._wanted_epoch, EpochAggregator()).blobs()
        follows = f"all servers continue from their last checkpoint, replacement {self._worker_membership.used} of "
        text = f"{failure.message}; {follows}{self._worker_membership.restarts} starts"
        fault = Fault(message=text, member=f"{SERVER} {shard}", action="restored")
        outcome = Outcome(restart=[(SERVER, shard)], events=[Event(job=self._job, fault=fault)], drop=spent)
        outcome.commands.extend((SERVER, n, Command(job=self._job, setup=setup)) for n, setup in enumerate(setups))
        outcome.commands.extend((SERVER, None, self._leave(*gone)) for gone in self._worker_membership.gone.items())
        if self._wanted_epoch >= 0 and not self._recovery.holds(self._wanted_epoch):
            outcome.commands.append((SERVER, None, self._epoch))
        return outcome

    def joined(self, rank: int, host: str) -> Outcome:
        """Handle an elastic worker: it gets the job as a replacement does. A repeated call has no effect."""
        if not self._job or self._finishing or self.done or rank in self._worker_membership.incarnations:
            return Outcome()
        name = f"{WORKER} {rank} has joined from {host}"
        if self._hosted or self._setup.job.data.HasField("feed"):
            return Outcome(events=[Event(job=self._job, note=Note(text=f"{name}, and waits: {WAITS}"))])
        setup = Setup(incarnation=self._worker_membership.join(rank))
        setup.MergeFrom(self._setup)
        commands: list[tuple[str, int | None, Command]] = [(WORKER, rank, Command(job=self._job, setup=setup))]
        return Outcome(commands=commands, events=[self._membership(rank, "joined", name)])

    def left(self, rank: int, how: str, why: str = "") -> Outcome:
        """Handle the end of an elastic worker: its batches go to others."""
        if rank not in self._worker_membership.incarnations:
            return Outcome()
        leave = self._leave(rank, self._worker_membership.incarnations[rank])
        self._ready.pop((WORKER, rank), None)
        if not self._worker_membership.leave(rank):
            return self.fail(Failed(message=f"the job has no worker left: {WORKER} {rank} {how} too"))
        text = f"{WORKER} {rank}, which had joined, {HOW[how]}{why and ': ' + why}; the others get its batches"
        events = [] if self._finishing else [self._membership(rank, how, text)]
        return self._without(Outcome(commands=[(SERVER, None, leave)], events=events))

    def _without(self, outcome: Outcome) -> Outcome:
        """Return `outcome` and the steps that waited only for a member that is gone."""
        for then in (self._ready_if_all_are, self._end_if_complete, self._done_if_all_have_finished):
            outcome = outcome.followed_by(then())
        return outcome

    def _membership(self, rank: int, action: str, text: str) -> Event:
        return Event(job=self._job, membership=Membership(message=text, member=f"{WORKER} {rank}", action=action))

    def _leave(self, rank: int, incarnation: int) -> Command:
        return Command(job=self._job, leave=Leave(rank=rank, incarnation=incarnation))

    def _fault(self, rank: int, verdict: LossVerdict, failure: Failed) -> Event:
        worker_membership = self._worker_membership
        follows = {
            LossVerdict.REPLACED: f"replacement {worker_membership.used} of {worker_membership.restarts} starts",
            LossVerdict.LEFT_OUT: f"{len(worker_membership.incarnations)} continue without it",
        }[verdict]
        text = f"{failure.message}; the others get its batches, {follows}"
        return Event(job=self._job, fault=Fault(message=text, member=f"{WORKER} {rank}", action=verdict.value))

    def fail(self, failure: Failed) -> Outcome:
        self.done = self.failed = True
        return Outcome(drop=self._recovery.end(), events=[Event(job=self._job, failed=failure)])

    def _member_ready(self, role: str, rank: int, ready: Ready) -> Outcome:
        self._ready[role, rank] = ready
        if role == SERVER:
            self._recovery.restoring.discard(rank)
        return self._ready_if_all_are()

    def _ready_if_all_are(self) -> Outcome:
        if self._announced or not self._all(self._ready):
            return Outcome()
        self._announced = True
        notes = dict.fromkeys(line for r in self._ready.values() for line in r.notes.splitlines())
        workers = [ready for (role, _), ready in self._ready.items() if role == WORKER]
        ready = Ready(notes="\n".join(notes), suspendable=is_suspendable(self._setup.job))
        ready.steps_per_epoch = max(worker.steps_per_epoch for worker in workers)
        ready.algorithm = workers[0].algorithm
        return Outcome(events=[Event(job=self._job, ready=ready)])

    def _member_epoch_end(self, role: str, rank: int, end: EpochEnd) -> Outcome:
        if (role == WORKER and end.generation < self._recovery.generation) or end.epoch <= self._given_epoch:
            return Outcome(drop=list(blobs_in(end)))
        if self._hosted and end.state.model.id:
            role = SERVER
        epoch = self._epochs.setdefault(end.epoch, EpochAggregator())
        (epoch.servers if role == SERVER else epoch.workers)[rank] = end
        return self._end_if_complete()

    def _end_if_complete(self) -> Outcome:
        epoch = self._epochs.get(self._wanted_epoch)
        if epoch is None or len(epoch.servers) < len(self._addresses):
            return Outcome()
        there = [w.rank for w in epoch.servers[0].workers if self._worker_membership.has(w.rank, w.incarnation)]
        if any(rank not in epoch.workers for rank in there):
            return Outcome()
        del self._epochs[self._wanted_epoch]
        return self._epoch_end(epoch)

    def _epoch_end(self, epoch: EpochAggregator) -> Outcome:
        self._given_epoch = self._wanted_epoch
        end, spent = epoch.aggregated(self._blobs, self._epoch.epoch)
        spent += [*self._read, *self._feeding.passed(end.epoch)]
        self._read, self._changed = self._changed, []
        return Outcome(events=[epoch_event(self._job, end)], drop=spent)

    def _done_if_all_have_finished(self) -> Outcome:
        if not self._all(self._finished):
            return Outcome()
        self.done = True
        return Outcome(events=[Event(job=self._job, finished=Finished())], drop=self._unclaimed())

    def _all(self, said: Container[tuple[str, int]]) -> bool:
        """Return whether every member has `said` it. An elastic worker counts once it is ready."""
        ranks = self._worker_membership.incarnations
        workers = [(WORKER, rank) for rank in ranks if rank < self._workers or (WORKER, rank) in self._ready]
        return all(member in said for member in [*((SERVER, s) for s in range(self._servers)), *workers])

    def _unclaimed(self) -> list[BlobRef]:
        """Return the blobs of epochs for which the client did not wait, and of its last commands."""
        refs = [ref for ends in self._epochs.values() for ref in ends.blobs()]
        return [*refs, *self._read, *self._changed, *self._recovery.end()]
