"""BlobService: the engine's blob store for callers on other hosts, in chunks."""

from collections.abc import Iterator, Sequence

import grpc

from fdt import tensors
from fdt.blobs import Blobs, LocalBlobs
from fdt.chunks import chunks
from fdt.errors import UserError
from fdt.rpc import training_pb2_grpc
from fdt.rpc.tensor_pb2 import BlobRef, Chunk
from fdt.rpc.training_pb2 import HelloReply
from fdt.security.auth import Metadata
from fdt.service.quota import Quota, host_of
from fdt.tensors import Array, Buffer


class BlobServicer(training_pb2_grpc.BlobServiceServicer):
    """The engine's side of BlobService."""

    def __init__(self, blobs: LocalBlobs) -> None:
        self._blobs, self._quota = blobs, Quota(blobs)

    def Put(self, request_iterator: Iterator[Chunk], context: grpc.ServicerContext) -> BlobRef:
        try:
            parts = (chunk.data for chunk in request_iterator)
            return self._quota.put(host_of(context.peer()), parts)
        except UserError as error:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            raise  # abort did

    def Get(self, request: BlobRef, context: grpc.ServicerContext) -> Iterator[Chunk]:
        try:
            data = self._blobs.get(request)
        except KeyError:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no such blob. Received: {request.id!r}")
        for part in chunks(data):
            yield Chunk(ref=request, data=bytes(part))


class RemoteBlobs:
    """The caller's side of BlobService; it implements fdt.blobs.Blobs."""

    def __init__(self, channel: grpc.Channel, metadata: Metadata) -> None:
        self._stub = training_pb2_grpc.BlobServiceStub(channel)
        self._metadata = metadata

    def put(self, data: Buffer) -> BlobRef:
        stream = (Chunk(data=bytes(part)) for part in chunks(memoryview(data)))
        try:
            ref: BlobRef = self._stub.Put(stream, metadata=self._metadata)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise UserError(error.details()) from None
            raise
        return ref

    def put_arrays(self, arrays: Sequence[Array]) -> BlobRef:
        return self.put(tensors.pack(arrays))

    def get(self, ref: BlobRef) -> memoryview:
        data = bytearray()
        try:
            for chunk in self._stub.Get(ref, metadata=self._metadata):
                data += chunk.data
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise KeyError(ref.id) from None
            raise
        return memoryview(data).toreadonly()

    def get_arrays(self, ref: BlobRef) -> list[Array]:
        return tensors.unpack(self.get(ref))

    def drop(self, ref: BlobRef) -> None:
        """Do nothing: BlobService has no such call. The engine drops a blob when its coordinator no longer needs it."""


def reachable_blobs(hello: HelloReply, channel: grpc.Channel, metadata: Metadata) -> Blobs:
    """Return the engine's own store where this process can map it, else a RemoteBlobs over the channel."""
    local = LocalBlobs.open(hello.blobs)
    return local if local.holds(hello.nonce) else RemoteBlobs(channel, metadata)
