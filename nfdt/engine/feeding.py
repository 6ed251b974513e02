"""Batches that the client draws: how many to ask for, and which are of no more use."""

from dataclasses import dataclass, field

from fdt.job import FEED_WINDOW
from fdt.rpc.session_pb2 import FeedBatch, FeedWanted
from fdt.rpc.tensor_pb2 import BlobRef


@dataclass
class Feeding:
    """By feed and epoch: the first index that each worker has no room for, and what was fed."""

    _wanted: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)
    _fed: dict[tuple[str, int], list[tuple[int, BlobRef]]] = field(default_factory=dict)

    def fed(self, batch: FeedBatch) -> None:
        self._fed.setdefault((batch.name, batch.epoch), []).append((batch.index, batch.arrays))

    def wants(self, rank: int, wanted: FeedWanted, workers: int) -> tuple[bool, list[BlobRef]]:
        """Whether to ask the client, for what the fastest of `workers` has room for; and what all have passed.

        Batches are dealt, so a slow worker holds up nobody; one without a batch passes nothing before the epoch ends.
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
        """What was fed in an epoch that is over."""
        keys = [key for key in self._fed if key[1] <= epoch]
        return [ref for key in keys for _, ref in self._fed.pop(key)]
