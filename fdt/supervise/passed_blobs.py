"""Blobs that a client and its engine have handed one another within a job, for the day when one of them is gone."""

from google.protobuf.message import Message

from fdt.blobs import LocalBlobs
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.supervise.outcome import blobs_in

FEW = 64  # what is known of is looked through when it has doubled, and never while there is so little


class PassedBlobs:
    """Whoever takes a blob drops it; `drop` is for what was taken by nobody, or by a client that cannot drop."""

    def __init__(self, blobs: LocalBlobs) -> None:
        self._blobs = blobs
        self._refs: list[BlobRef] = []
        self._look_at = FEW

    def add(self, message: Message) -> None:
        self._refs += (ref for ref in blobs_in(message) if ref.id)
        if len(self._refs) > self._look_at:
            self._refs = [ref for ref in self._refs if self._blobs.holds(ref.id)]
            self._look_at = max(FEW, 2 * len(self._refs))

    def drop(self) -> None:
        for ref in self._refs:
            self._blobs.drop(ref)
        self._refs, self._look_at = [], FEW
