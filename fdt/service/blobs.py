"""BlobService: the engine's blob store for callers on other hosts, in chunks, with a limit on each caller's bytes.

A client's blobs end with it, however it ends: it holds them by a call that is open as long as the client lives.
"""

import itertools
import os
import secrets
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import grpc

from fdt import tensors
from fdt.blobs import Blobs, LocalBlobs
from fdt.errors import UserError
from fdt.rpc import training_pb2_grpc
from fdt.rpc.tensor_pb2 import BlobRef, Chunk, Holder, HoldRequest
from fdt.rpc.training_pb2 import HelloReply
from fdt.security.auth import Metadata
from fdt.service.handlers import StreamBroken
from fdt.service.transport import without_frames
from fdt.tensors import Buffer
from fdt.typing import Array

CHUNK_BYTES = 2 << 20


def chunks(data: memoryview) -> Iterator[memoryview]:
    """Yield views of `data` of CHUNK_BYTES each, the last one shorter; empty data are one empty view."""
    data = data.cast("B")
    for start in range(0, max(len(data), 1), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


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

    def put(self, caller: str, parts: Iterable[bytes], holder: str = "") -> BlobRef:
        """Store a blob for `caller`, whose id begins with `holder`.

        Raises:
            UserError: The caller would keep more than `limit` bytes; raised at the first byte above it.
        """
        with self._lock:
            held = self._held[caller]
            held.refs = [ref for ref in held.refs if self._blobs.holds(ref.id)]
        arrived = [0]
        try:
            ref = LocalBlobs(self._blobs.directory, holder).put_parts(self._counted(held, parts, arrived))
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
                    f"the engine stores at most {self.limit:,} bytes for a caller on another host, and this job "
                    "needs more: send less, or run on the engine's host"
                )
            yield part


def host_of(peer: str) -> str:
    """Return gRPC's name of the other side without its port: a new connection of a host is not a new caller."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer


class BlobServicer(training_pb2_grpc.BlobServiceServicer):
    """The engine's side of BlobService."""

    def __init__(self, blobs: LocalBlobs) -> None:
        self._blobs, self._quota = blobs, Quota(blobs)
        self._holders: set[str] = set()

    def Hold(self, request: HoldRequest, context: grpc.ServicerContext) -> Iterator[Holder]:
        holder, ended = secrets.token_hex(8), threading.Event()
        self._holders.add(holder)
        try:
            if context.add_callback(ended.set):
                yield Holder(id=holder)
                ended.wait()
        finally:
            self._holders.discard(holder)
            self._blobs.drop_of(holder)

    def Put(self, request_iterator: Iterator[Chunk], context: grpc.ServicerContext) -> BlobRef:
        first = next(request_iterator, Chunk())
        holder = first.holder if first.holder in self._holders else ""  # a broken connection has ended the call
        try:
            parts = (chunk.data for chunk in itertools.chain([first], request_iterator))
            ref = self._quota.put(host_of(context.peer()), parts, holder)
            if holder and holder not in self._holders:  # its call ended meanwhile
                self._blobs.drop_of(holder)
            return ref
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

    def __init__(self, channel: grpc.Channel, metadata: Metadata, holder: str = "") -> None:
        self._stub = training_pb2_grpc.BlobServiceStub(channel)
        self._metadata, self._holder = metadata, holder

    def put(self, data: Buffer) -> BlobRef:
        stream = (Chunk(data=bytes(part), holder=self._holder) for part in chunks(memoryview(data)))
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
            code, reason = without_frames(error).code(), str(error)
        else:
            return memoryview(data).toreadonly()
        if code is grpc.StatusCode.NOT_FOUND:
            raise KeyError(ref.id)
        raise StreamBroken(f"a blob was not received: {reason}")

    def get_arrays(self, ref: BlobRef) -> list[Array]:
        return tensors.unpack(self.get(ref))

    def drop(self, ref: BlobRef) -> None:
        """Do nothing: BlobService has no such call. The engine drops a blob when its coordinator no longer needs it."""


def reachable_blobs(hello: HelloReply, channel: grpc.Channel, metadata: Metadata, holder: str = "") -> Blobs:
    """Return the engine's own store where this process can map it, else a RemoteBlobs over the channel.

    A server could name any directory of the caller's, whose files would then be read and removed as blobs.
    """
    local = LocalBlobs.open(hello.blobs, holder)
    return local if local.is_store() and local.holds(hello.nonce) else RemoteBlobs(channel, metadata, holder)
