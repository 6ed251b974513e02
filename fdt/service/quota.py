"""A limit on the bytes that each caller may keep in the engine's store."""

import os
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.rpc.tensor_pb2 import BlobRef

SHARE = 0.8  # of the store's file system: the job's other blobs need room too


@dataclass
class _Held:
    """One caller's blobs, and the bytes of the blobs that it is sending."""

    refs: list[BlobRef] = field(default_factory=list)
    arriving: int = 0


class Quota:
    """Puts blobs for callers, `limit` bytes for each at most. Thread-safe."""

    def __init__(self, blobs: LocalBlobs, limit: int | None = None) -> None:
        spaces = [os.statvfs(place) for place in (blobs.directory, tempfile.gettempdir())]  # the directories of blobs
        most = max(space.f_blocks * space.f_frsize for space in spaces)
        self.limit = int(SHARE * most) if limit is None else limit
        self._blobs = blobs
        self._held: defaultdict[str, _Held] = defaultdict(_Held)
        self._lock = threading.Lock()

    def put(self, caller: str, parts: Iterable[bytes]) -> BlobRef:
        """Store a blob for `caller`.

        Raises:
            UserError: The caller would keep more than `limit` bytes; raised at the first byte above it.
        """
        with self._lock:
            held = self._held[caller]
            held.refs = [ref for ref in held.refs if self._blobs.holds(ref.id)]
        arrived = [0]
        try:
            ref = self._blobs.put_parts(self._counted(held, parts, arrived))
            with self._lock:
                held.refs.append(ref)
            return ref
        finally:
            with self._lock:
                held.arriving -= arrived[0]

    def _counted(self, held: _Held, parts: Iterable[bytes], arrived: list[int]) -> Iterator[bytes]:
        for part in parts:
            with self._lock:
                held.arriving += len(part)
                arrived[0] += len(part)
                total = held.arriving + sum(ref.nbytes for ref in held.refs)
            if total > self.limit:
                raise UserError(
                    f"a caller may keep {self.limit:,} bytes at the engine. Received: more; send "
                    "less, or from the engine's own host"
                )
            yield part


def host_of(peer: str) -> str:
    """Return gRPC's name of the other side without its port: a new connection of a host is not a new caller."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer
