"""An epoch of a job: the reports of servers and workers put together."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fdt.blobs import Blobs
from fdt.rpc.job_pb2 import State
from fdt.rpc.session_pb2 import Command, Commit, Epoch, EpochEnd, Event
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.supervise import blobs_in, share_of
from fdt.tensors import put_logs
from nfdt.model import add_up


@dataclass
class EpochAggregator:
    """The reports of one epoch's end, by shard and by rank."""

    servers: dict[int, EpochEnd] = field(default_factory=dict)
    workers: dict[int, EpochEnd] = field(default_factory=dict)

    def blobs(self) -> list[BlobRef]:
        """Return the blobs of all reports."""
        return [ref for end in (*self.servers.values(), *self.workers.values()) for ref in blobs_in(end)]

    def aggregated(self, blobs: Blobs, command: Epoch) -> tuple[EpochEnd, list[BlobRef]]:
        """Return the report for the client, and the blobs that are no longer needed.

        Args:
            blobs: The blob store.
            command: It began the epoch. Workers add to the metric states that callbacks wrote before, and to those of
                the epoch's part before it was suspended.
        """
        first, workers = self.servers[0], [self.workers[rank] for rank in sorted(self.workers)]
        end = EpochEnd(epoch=first.epoch, steps=first.steps, samples=first.samples, extra=first.extra)
        end.skipped = first.skipped
        if first.HasField("remaining"):
            end.remaining.CopyFrom(first.remaining)
        put_logs(end, _mean_logs(workers))
        end.seconds = max((w.seconds for w in workers), default=0.0)
        end.bytes_sent, end.bytes_received = sum(w.bytes_sent for w in workers), sum(w.bytes_received for w in workers)
        end.workers.extend(share_of(rank, w) for rank, w in sorted(self.workers.items()))
        before = [command.begin.metrics, command.changed.metrics]
        end.metrics.CopyFrom(_metrics(first, [*before, *(w.metrics for w in workers)], blobs))
        seeds = self.workers[0].seeds if 0 in self.workers else BlobRef()
        state, spent = _state([self.servers[shard] for shard in sorted(self.servers)], seeds, blobs)
        end.state.CopyFrom(state)
        return end, [*spent, *(w.metrics for w in workers)]


def _metrics(first: EpochEnd, others: Sequence[BlobRef], blobs: Blobs) -> BlobRef:
    """Return the summed metric states. In lock step shard 0 has them: workers also count steps that are not applied."""
    parts = [blobs.get_arrays(ref) for ref in others if ref.id]
    if first.metrics.id or not parts:  # no parts: all workers were lost before they reported
        return first.metrics
    return blobs.put_arrays(add_up(parts))


def resume(command: Command) -> list[BlobRef]:
    """Let an epoch command load the state at which the epoch was suspended. Return the blobs that it loaded before."""
    epoch = command.epoch
    if not epoch.HasField("begin"):
        return []
    unused = list(blobs_in(epoch.changed))
    epoch.changed.CopyFrom(epoch.begin.state)
    epoch.begin.ClearField("state")
    return unused


def epoch_event(job: str, end: EpochEnd) -> Event:
    """Return the event of an epoch's end: a commit where the epoch was suspended."""
    if not end.HasField("remaining"):
        return Event(job=job, epoch_end=end)
    commit = Commit(epoch=end.epoch, step=end.steps + end.skipped, samples=end.samples, skipped=end.skipped)
    commit.state.CopyFrom(end.state)
    commit.metrics.CopyFrom(end.metrics)
    commit.remaining.CopyFrom(end.remaining)
    return Event(job=job, commit=commit)


def _state(ends: Sequence[EpochEnd], seeds: BlobRef, blobs: Blobs) -> tuple[State, list[BlobRef]]:
    """Return the servers' state with a worker's random generators, which servers do not use; and unneeded blobs."""
    from nfdt.model.shards import merge  # imports TensorFlow, which the script must import first

    state, spent = ends[0].state, list[BlobRef]()
    if len(ends) > 1:
        spent = [ref for end in ends for ref in (end.state.model, end.state.optimizer)]
        state = State()
        for name in ("model", "optimizer"):
            parts = [blobs.get_arrays(getattr(end.state, name)) for end in ends]
            getattr(state, name).CopyFrom(blobs.put_arrays(merge(parts)))
    if seeds.id:
        arrays, (positions, *found) = list(blobs.get_arrays(state.model)), blobs.get_arrays(seeds)
        for position, array in zip(positions, found, strict=True):
            arrays[position] = array
        spent += [seeds, state.model]
        state = State(model=blobs.put_arrays(arrays), optimizer=state.optimizer)
    return state, spent


def _mean_logs(workers: Sequence[EpochEnd]) -> dict[str, float]:
    """Return the logs of training steps, weighted by samples. The client computes metrics from their states."""
    samples = sum(w.samples for w in workers) or 1
    names = dict.fromkeys(name for w in workers for name in w.log_names)
    return {n: sum(w.logs[n] * w.samples for w in workers if n in w.logs) / samples for n in names}
