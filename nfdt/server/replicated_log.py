"""Shard 0's log: its decisions in order, for the other shards. Not thread-safe."""

import itertools
import queue
from collections import deque

from nfdt.rpc import parameter_server_pb2 as pb

KEPT = 20_000  # entries; workers wait for the other shards, so a shard lags by few entries per worker

Reader = queue.SimpleQueue[pb.Logged | None]  # None: the end


class ReplicatedLog:
    """A log that is written once and read by every other shard, also by one that connects late or again."""

    def __init__(self) -> None:
        self._last: deque[pb.Logged] = deque(maxlen=KEPT)
        self._written = 0
        self._readers: list[Reader] = []

    def write(self, entry: pb.Logged) -> None:
        """Append an entry and send it to all readers."""
        self._last.append(entry)
        self._written += 1
        for reader in self._readers:
            reader.put(entry)

    def open(self, position: int) -> Reader:
        """Return a reader of all entries after the first `position`. Raises RuntimeError if some of them are gone."""
        gone = self._written - len(self._last)
        if position < gone:
            raise RuntimeError(f"the log holds entries from {gone} on. Received: a request for {position}")
        reader: Reader = queue.SimpleQueue()
        for entry in itertools.islice(self._last, position - gone, None):
            reader.put(entry)
        self._readers.append(reader)
        return reader

    def close(self, reader: Reader) -> None:
        """Remove a reader."""
        self._readers = [other for other in self._readers if other is not reader]

    def end(self) -> None:
        """End the log for all current readers."""
        for reader in self._readers:
            reader.put(None)
