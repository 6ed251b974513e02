"""Aggregation of an epoch's reports by servers and workers into one."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fdt.blobs import Blobs
from fdt.rpc.job_pb2 import State
from fdt.rpc.session_pb2 import EpochEnd
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.supervise.outcome import blobs_in, share_of
from nfdt.model.metrics import add_up


@dataclass
class EpochAggregator:
    """The reports of one epoch's end, by shard and by rank."""

    servers: dict[int, EpochEnd] = field(default_factory=dict)
    workers: dict[int, EpochEnd] = field(default_factory=dict)

    def blobs(self) -> list[BlobRef]:
        """Return the blobs of all reports."""
        return [ref for end in (*self.servers.values(), *self.workers.values()) for ref in blobs_in(end)]

    def aggregated(self, blobs: Blobs) -> tuple[EpochEnd, list[BlobRef]]:
        """Return the report for the client, and the blobs that are no longer needed."""
        first, workers = self.servers[0], [self.workers[rank] for rank in sorted(self.workers)]
        end = EpochEnd(epoch=first.epoch, steps=first.steps, samples=first.samples, extra=first.extra)
        end.skipped = first.skipped
        end.logs.update(_mean_logs(workers))
        end.seconds = max((w.seconds for w in workers), default=0.0)
        end.bytes_sent, end.bytes_received = sum(w.bytes_sent for w in workers), sum(w.bytes_received for w in workers)
        end.workers.extend(share_of(rank, w) for rank, w in sorted(self.workers.items()))
        end.metrics.CopyFrom(_metrics(first, workers, blobs))
        state, spent = _state([self.servers[shard] for shard in sorted(self.servers)], blobs)
        end.state.CopyFrom(state)
        return end, [*spent, *(w.metrics for w in workers)]


def _metrics(first: EpochEnd, workers: Sequence[EpochEnd], blobs: Blobs) -> BlobRef:
    """Return the summed metric states. In lock step shard 0 has them: workers also count steps that are not applied."""
    if first.metrics.id or not workers:  # no workers: all were lost before they reported
        return first.metrics
    return blobs.put_arrays(add_up([blobs.get_arrays(w.metrics) for w in workers]))


def _state(ends: Sequence[EpochEnd], blobs: Blobs) -> tuple[State, list[BlobRef]]:
    from nfdt.model.shards import merge  # imports TensorFlow, which the script must import first

    if len(ends) == 1:
        return ends[0].state, []
    groups = {}
    for name in ("model", "optimizer"):
        parts = [blobs.get_arrays(getattr(end.state, name)) for end in ends]
        groups[name] = blobs.put_arrays(merge(parts))
    return State(**groups), [ref for end in ends for ref in (end.state.model, end.state.optimizer)]


def _mean_logs(workers: Sequence[EpochEnd]) -> dict[str, float]:
    """Return the logs of training steps, weighted by samples. The client computes metrics from their states."""
    samples = sum(w.samples for w in workers) or 1
    names = {name for w in workers for name in w.logs}
    return {n: sum(w.logs[n] * w.samples for w in workers if n in w.logs) / samples for n in sorted(names)}
