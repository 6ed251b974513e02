"""Shard 0's log: what it has decided, in order, for the shards that follow. Not thread-safe."""

import itertools
import queue
from collections import deque

from nfdt.rpc import parameter_server_pb2 as pb

KEPT = 20_000  # entries; workers wait for followers, so these are behind by each worker's last few at most

Reader = queue.SimpleQueue[pb.Logged | None]  # None: the end


class ReplicatedLog:
    """Entries are written once and read by every follower, also by one that comes late or comes again."""

    def __init__(self) -> None:
        self._last: deque[pb.Logged] = deque(maxlen=KEPT)
        self._written = 0
        self._readers: list[Reader] = []

    def write(self, entry: pb.Logged) -> None:
        self._last.append(entry)
        self._written += 1
        for reader in self._readers:
            reader.put(entry)

    def open(self, position: int) -> Reader:
        """Everything behind the first `position` entries, that to come included. Raises RuntimeError: not kept."""
        gone = self._written - len(self._last)
        if position < gone:
            raise RuntimeError(f"a shard that follows must have had {gone} entries. Received: {position}")
        reader: Reader = queue.SimpleQueue()
        for entry in itertools.islice(self._last, position - gone, None):
            reader.put(entry)
        self._readers.append(reader)
        return reader

    def close(self, reader: Reader) -> None:
        self._readers = [other for other in self._readers if other is not reader]

    def end(self) -> None:
        """Nothing follows for those who read now."""
        for reader in self._readers:
            reader.put(None)
