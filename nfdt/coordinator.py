"""What NFDT's engine decides: one job's commands and events in, what to pass on out. No clock, no threads.

Servers get the epochs; workers get the job and then hear from the servers alone. An epoch has ended when every server
has given its snapshot and every worker its counts and metric states, which add up.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from fdt.blobs import Blobs
from fdt.rpc.job_pb2 import State
from fdt.rpc.session_pb2 import (
    Command,
    EpochEnd,
    Event,
    Failed,
    Fault,
    Finished,
    Leave,
    Ready,
    Setup,
)
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.service.crew import Outcome, blobs_in, share_of
from nfdt.feeding import Feeding
from nfdt.metrics import add_up
from nfdt.options import Options
from nfdt.recovery import Recovery
from nfdt.roster import Roster, Verdict

WORKER, SERVER = "worker", "server"
LAST = 2**31  # an incarnation behind all


@dataclass
class _Epoch:
    """What has been said of one epoch's end."""

    servers: dict[int, EpochEnd] = field(default_factory=dict)
    workers: dict[int, EpochEnd] = field(default_factory=dict)


class ServersCoordinator:
    """One job on `workers` workers and the servers at `addresses`. `blobs`: to add up what members report.

    `hosted`: the one server is in the one worker's process, which takes the commands of both and reports for both.
    """

    def __init__(self, workers: int, addresses: Sequence[str], blobs: Blobs, *, hosted: bool = False) -> None:
        self._hosted = hosted
        self._to_servers = WORKER if hosted else SERVER
        self._servers = 0 if hosted else len(addresses)
        self._roster, self._recovery = Roster(workers), Recovery(self._servers)
        self._workers, self._addresses, self._blobs = workers, list(addresses), blobs
        self._job = ""
        self._setup = Setup()
        self._lost_early: list[tuple[str, int | None, Failed]] = []  # before there was a job to say what follows
        self._announced = False  # the client knows that all are ready
        self._finishing = False
        self._ready: dict[tuple[str, int], Ready] = {}
        self._finished: set[tuple[str, int]] = set()
        self._epochs: dict[int, _Epoch] = {}
        self._wanted_epoch = -1  # the client asked for it; ends of later ones are kept back
        self._given_epoch = -1  # the last whose end the client has
        self._epoch = Command()  # the client's last
        self._changed: list[BlobRef] = []
        self._read: list[BlobRef] = []  # the command before's: with overlapped epochs a server may come to it late
        self._feeding = Feeding()
        self.done = self.failed = False

    # -- the client's commands -------------------------------------------------------------------------------

    def from_client(self, command: Command) -> Outcome:
        self._job = command.job
        kind = command.WhichOneof("kind") or ""
        handler = getattr(self, f"_client_{kind}", None)
        if handler is None:
            return self.fail(Failed(message=f"nfdt does not know this command. Received: {kind}"))
        outcome: Outcome = handler(command)
        return outcome

    def _client_setup(self, command: Command) -> Outcome:
        self._setup = Setup(job=command.setup.job, peers=self._addresses)
        options = Options.read(command.setup.job.options)
        self._roster = Roster(self._workers, options.restarts, options.min_np)
        self._recovery.begin(self._setup.job)
        to_servers = [] if self._hosted else [(SERVER, None, command)]
        outcome = Outcome(commands=[*to_servers, (WORKER, None, Command(job=self._job, setup=self._setup))])
        for role, rank, failure in self._lost_early:
            outcome = outcome.followed_by(self.lost(role, rank, failure))
        return outcome

    def _client_epoch(self, command: Command) -> Outcome:
        self._wanted_epoch, self._epoch = command.epoch.epoch, command
        outcome = self._end_if_complete()  # overlapped epochs: it may be over already
        self._keep(command.epoch.changed)
        outcome.commands.insert(0, (self._to_servers, None, command))
        return outcome

    def _client_step(self, command: Command) -> Outcome:
        if command.step.changed.model.id:
            message = "NFDT workers go on while a batch hook runs: it must not write weights. Received: weights written"
            return self.fail(Failed(message=f"{message}; hfdt run takes them"))
        self._keep(command.step.changed)
        return Outcome(commands=[(self._to_servers, None, command)])

    def _client_end_epoch(self, command: Command) -> Outcome:
        return Outcome(commands=[(self._to_servers, None, command)])

    def _client_finish(self, command: Command) -> Outcome:
        self._finishing = True
        to_servers = [] if self._hosted else [(SERVER, None, command)]
        return Outcome(commands=[*to_servers, (WORKER, None, command)])

    def _client_feed(self, command: Command) -> Outcome:
        self._feeding.fed(command.feed)
        return Outcome(commands=[(WORKER, None, command)])

    # -- the members' events ---------------------------------------------------------------------------------

    def from_member(self, role: str, rank: int, event: Event) -> Outcome:
        kind = event.WhichOneof("kind")
        if self.done or event.job != self._job:
            return Outcome()
        if role == SERVER and rank in self._recovery.restoring and kind not in ("ready", "failed"):
            return Outcome(drop=list(blobs_in(event)))  # of before
        if kind == "checkpoint":
            return Outcome(drop=self._recovery.keep(rank, event.checkpoint))
        if kind == "failed":
            return self.fail(event.failed)
        if kind in ("progress", "output", "step_end"):
            return Outcome(events=[event])
        if kind == "ready":
            return self._member_ready(role, rank, event.ready)
        if kind == "epoch_end":
            return self._member_epoch_end(role, rank, event.epoch_end)
        if kind == "feed_wanted":
            ask, drop = self._feeding.wants(rank, event.feed_wanted, len(self._roster.incarnations))
            return Outcome(events=[Event(job=self._job, feed_wanted=event.feed_wanted)] if ask else [], drop=drop)
        if kind == "finished":
            return self._member_finished(role, rank, event)
        return Outcome()

    def lost(self, role: str, rank: int | None, failure: Failed) -> Outcome:
        """Batches of a worker go to others, another may take its place (roster.py). Servers go back (recovery.py)."""
        if not self._job:
            self._lost_early.append((role, rank, failure))
            return Outcome()
        if self._hosted or rank is None or self._setup.job.data.HasField("feed"):
            return self.fail(failure)
        if role == SERVER:
            return self._restore(rank, failure)
        incarnation = self._roster.incarnations[rank]
        verdict = self._roster.lose(rank, over=self._finishing)
        if verdict is Verdict.TOO_FEW:
            return self.fail(failure)
        leave = self._leave(rank, incarnation)
        outcome = Outcome(commands=[(SERVER, None, leave)], events=[self._fault(rank, verdict, failure)])
        if verdict is Verdict.REPLACED:
            outcome.restart.append((WORKER, rank))
            setup = Setup(incarnation=incarnation + 1)
            setup.MergeFrom(self._setup)
            outcome.commands.append((WORKER, rank, Command(job=self._job, setup=setup)))
        for then in (self._ready_if_all_are, self._end_if_complete, self._done_if_all_have_finished):
            outcome = outcome.followed_by(then())
        return outcome

    def _restore(self, shard: int, failure: Failed) -> Outcome:
        """All servers go back to the last snapshot; batches after it are dealt again."""
        if self._finishing or not self._recovery.reaches(self._wanted_epoch) or not self._roster.spend():
            return self.fail(failure)
        setups, spent = self._recovery.restore(self._setup.job)
        ends = self._epochs.pop(self._wanted_epoch, _Epoch())
        spent += [ref for end in (*ends.servers.values(), *ends.workers.values()) for ref in blobs_in(end)]
        follows = f"all servers go back to their last checkpoint, replacement {self._roster.used} of "
        text = f"{failure.message}; {follows}{self._roster.restarts} starts"
        fault = Fault(message=text, member=f"{SERVER} {shard}", action="restored")
        outcome = Outcome(restart=[(SERVER, shard)], events=[Event(job=self._job, fault=fault)], drop=spent)
        for number, setup in enumerate(setups):
            outcome.commands.append((SERVER, number, Command(job=self._job, setup=setup)))
        outcome.commands += [(SERVER, None, self._leave(rank)) for rank in self._roster.gone]
        if self._wanted_epoch >= 0 and not self._recovery.holds(self._wanted_epoch):
            outcome.commands.append((SERVER, None, self._epoch))
        return outcome

    def _leave(self, rank: int, incarnation: int = LAST) -> Command:
        return Command(job=self._job, leave=Leave(rank=rank, incarnation=incarnation))

    def _fault(self, rank: int, verdict: Verdict, failure: Failed) -> Event:
        roster = self._roster
        follows = {
            Verdict.REPLACED: f"replacement {roster.used} of {roster.restarts} starts",
            Verdict.LEFT_OUT: f"{len(roster.incarnations)} go on without it",
        }[verdict]
        text = f"{failure.message}; its batches go to the others, {follows}"
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
        steps = max(ready.steps_per_epoch for (role, _), ready in self._ready.items() if role == WORKER)
        return Outcome(events=[Event(job=self._job, ready=Ready(steps_per_epoch=steps, notes="\n".join(notes)))])

    def _member_epoch_end(self, role: str, rank: int, end: EpochEnd) -> Outcome:
        if end.epoch <= self._given_epoch:  # told again by members that went back
            return Outcome(drop=list(blobs_in(end)))
        if self._hosted and end.state.model.id:
            role = SERVER
        epoch = self._epochs.setdefault(end.epoch, _Epoch())
        (epoch.servers if role == SERVER else epoch.workers)[rank] = end
        return self._end_if_complete()

    def _end_if_complete(self) -> Outcome:
        epoch = self._epochs.get(self._wanted_epoch)
        if epoch is None or len(epoch.servers) < len(self._addresses):
            return Outcome()
        there = [w.rank for w in epoch.servers[0].workers if self._roster.has(w.rank, w.incarnation)]
        if any(rank not in epoch.workers for rank in there):
            return Outcome()
        del self._epochs[self._wanted_epoch]
        return self._epoch_end(epoch)

    def _epoch_end(self, epoch: _Epoch) -> Outcome:
        self._given_epoch = self._wanted_epoch
        first, workers = epoch.servers[0], [epoch.workers[rank] for rank in sorted(epoch.workers)]
        end = EpochEnd(epoch=first.epoch, steps=first.steps, samples=first.samples, extra=first.extra)
        end.skipped = first.skipped
        end.logs.update(_mean_logs(workers))
        end.seconds = max((w.seconds for w in workers), default=0.0)
        end.bytes_sent, end.bytes_received = sum(w.bytes_sent for w in workers), sum(w.bytes_received for w in workers)
        end.workers.extend(share_of(rank, w) for rank, w in sorted(epoch.workers.items()))
        end.metrics.CopyFrom(self._metrics(first, workers))
        state, spent = self._state([epoch.servers[shard] for shard in sorted(epoch.servers)])
        end.state.CopyFrom(state)
        spent += [*(w.metrics for w in workers), *self._read, *self._feeding.passed(first.epoch)]
        self._read, self._changed = self._changed, []
        return Outcome(events=[Event(job=self._job, epoch_end=end)], drop=spent)

    def _metrics(self, first: EpochEnd, workers: Sequence[EpochEnd]) -> BlobRef:
        """Sums of metric states. In lock step shard 0 has them: workers also counted steps that were not applied."""
        if first.metrics.id or not workers:  # none: all were lost before they could report
            return first.metrics
        return self._blobs.put_arrays(add_up([self._blobs.get_arrays(w.metrics) for w in workers]))

    def _state(self, ends: Sequence[EpochEnd]) -> tuple[State, list[BlobRef]]:
        from nfdt.server.shards import merge  # TensorFlow: not before the script has imported it

        if len(ends) == 1:
            return ends[0].state, []
        groups = {}
        for name in ("model", "optimizer"):
            parts = [self._blobs.get_arrays(getattr(end.state, name)) for end in ends]
            groups[name] = self._blobs.put_arrays(merge(parts))
        return State(**groups), [ref for end in ends for ref in (end.state.model, end.state.optimizer)]

    def _member_finished(self, role: str, rank: int, event: Event) -> Outcome:
        self._finished.add((role, rank))
        return self._done_if_all_have_finished()

    def _done_if_all_have_finished(self) -> Outcome:
        if not self._all(self._finished):
            return Outcome()
        self.done = True
        return Outcome(events=[Event(job=self._job, finished=Finished())], drop=self._unclaimed())

    def _all(self, said: Container[tuple[str, int]]) -> bool:
        """Whether every member that is there is among those who have `said` it."""
        workers = [(WORKER, rank) for rank in self._roster.incarnations]
        return all(member in said for member in [*((SERVER, s) for s in range(self._servers)), *workers])

    def _unclaimed(self) -> list[BlobRef]:
        """Ends of epochs that the client did not wait for, and what it wrote last."""
        ends = [end for e in self._epochs.values() for end in (*e.servers.values(), *e.workers.values())]
        refs = [ref for end in ends for ref in (end.state.model, end.state.optimizer, end.metrics)]
        return [*refs, *self._read, *self._changed, *self._recovery.end()]

    def _keep(self, changed: State) -> None:
        self._changed += [ref for ref in (changed.model, changed.optimizer) if ref.id]


def _mean_logs(workers: Sequence[EpochEnd]) -> dict[str, float]:
    """Logs of raw training steps, weighted by samples; for metrics the client computes results from their states."""
    samples = sum(w.samples for w in workers) or 1
    names = {name for w in workers for name in w.logs}
    return {n: sum(w.logs[n] * w.samples for w in workers if n in w.logs) / samples for n in sorted(names)}
