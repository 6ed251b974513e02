"""A record of the blobs that a client and its engine sent each other in a job, to drop the unread ones later."""

from google.protobuf.message import Message

from fdt.blobs import LocalBlobs
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.supervise.outcome import blobs_in

FEW = 64  # the record is searched for dropped blobs only above this size, and then whenever it has doubled


class PassedBlobs:
    """Blobs that messages named. Receivers drop the blobs they read; `drop` drops all that remain."""

    def __init__(self, blobs: LocalBlobs) -> None:
        self._blobs = blobs
        self._refs: list[BlobRef] = []
        self._look_at = FEW

    def add(self, message: Message) -> None:
        """Record the message's blobs."""
        self._refs += (ref for ref in blobs_in(message) if ref.id)
        if len(self._refs) > self._look_at:
            self._refs = [ref for ref in self._refs if self._blobs.holds(ref.id)]
            self._look_at = max(FEW, 2 * len(self._refs))

    def drop(self) -> None:
        """Drop all recorded blobs."""
        for ref in self._refs:
            self._blobs.drop(ref)
        self._refs, self._look_at = [], FEW
