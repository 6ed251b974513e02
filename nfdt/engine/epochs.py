"""An epoch of a job: the reports of servers and workers put together, and the batches that the client draws."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fdt.blobs import Blobs
from fdt.job import FEED_WINDOW
from fdt.rpc.job_pb2 import State
from fdt.rpc.session_pb2 import Command, Commit, EpochEnd, Event, FeedBatch, FeedWanted
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

    def aggregated(self, blobs: Blobs, begin: Commit) -> tuple[EpochEnd, list[BlobRef]]:
        """Return the report for the client, and the blobs that are no longer needed.

        Args:
            blobs: The blob store.
            begin: What was done of the epoch before it was suspended; its metric states are changes.
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
        end.metrics.CopyFrom(_metrics(first, [begin.metrics, *(w.metrics for w in workers)], blobs))
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


@dataclass
class Feeding:
    """Requests and batches by feed and epoch: the first index that each worker cannot take yet, and the fed batches."""

    _wanted: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)
    _fed: dict[tuple[str, int], list[tuple[int, BlobRef]]] = field(default_factory=dict)

    def fed(self, batch: FeedBatch) -> None:
        """Record a batch that the client sent."""
        self._fed.setdefault((batch.name, batch.epoch), []).append((batch.index, batch.arrays))

    def wants(self, rank: int, wanted: FeedWanted, workers: int) -> tuple[bool, list[BlobRef]]:
        """Handle a worker's request for batches up to an index.

        The request goes to the client if it exceeds all earlier ones, so a slow worker delays no other. A worker
        without a batch releases nothing before the epoch ends.

        Returns:
            Whether to ask the client, and the batches that all workers have passed.
        """
        key = wanted.name, wanted.epoch
        by_rank = self._wanted.setdefault(key, {})
        before = max(by_rank.values(), default=0)
        by_rank[rank] = wanted.up_to
        passed = min(by_rank.values()) - FEED_WINDOW if len(by_rank) == workers else 0
        fed = self._fed.get(key, [])
        self._fed[key] = [(index, ref) for index, ref in fed if index >= passed]
        return wanted.up_to > before, [ref for index, ref in fed if index < passed]

    def passed(self, epoch: int) -> list[BlobRef]:
        """Return the batches of epochs up to `epoch`, which have ended."""
        keys = [key for key in self._fed if key[1] <= epoch]
        return [ref for key in keys for _, ref in self._fed.pop(key)]
