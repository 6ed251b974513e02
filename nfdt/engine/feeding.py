"""Bookkeeping of batches that the client draws: how many to request, and which ones are no longer needed."""

from dataclasses import dataclass, field

from fdt.job import FEED_WINDOW
from fdt.rpc.session_pb2 import FeedBatch, FeedWanted
from fdt.rpc.tensor_pb2 import BlobRef


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
