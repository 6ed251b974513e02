"""The datagrams of hfdt/collectives/ip_multicast.py: a keyed tag, a header, and a piece of a packet or a report."""

import hashlib
import hmac
import struct
from dataclasses import dataclass

from hfdt.collectives.repair import ReceiverReport

TAG = 16  # bytes
# kind, sender; team (a bit for each rank), root, number of the packet; then two numbers that depend on the kind
_HEAD = struct.Struct("!BBQBIII")
_RANGE = struct.Struct("!II")
_PIECE, _REPORT = 0, 1
LARGEST_TEAM = 64  # ranks


@dataclass(frozen=True)
class PacketId:
    """The identity of a packet: the `number`th that `root` sends to `team`, a bit mask of ranks."""

    team: int
    root: int
    number: int


@dataclass(frozen=True)
class Piece:
    """A piece of a packet."""

    packet: PacketId
    number: int
    nbytes: int  # of the whole packet
    payload: memoryview


@dataclass(frozen=True)
class ReportDatagram:
    """A receiver's report on a packet."""

    packet: PacketId
    receiver: int
    report: ReceiverReport


class Wire:
    """The encoder and decoder of datagrams, which authenticates them with the run's `key`."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def piece(self, packet: PacketId, number: int, nbytes: int, payload: memoryview) -> bytes:
        """Encode a piece of a packet of `nbytes` bytes."""
        return self._tagged(self._head(_PIECE, packet.root, packet, number, nbytes), payload)

    def report(self, packet: PacketId, receiver: int, report: ReceiverReport) -> bytes:
        """Encode a receiver's report."""
        ranges = b"".join(_RANGE.pack(low, high) for low, high in report.missing)
        return self._tagged(self._head(_REPORT, receiver, packet, report.first, len(report.missing)), ranges)

    def open(self, datagram: memoryview) -> Piece | ReportDatagram | None:
        """Decode a datagram; None for one without the tag of this run."""
        tag, rest = datagram[:TAG], datagram[TAG:]
        if len(rest) < _HEAD.size or not hmac.compare_digest(tag, self._tag(rest)):
            return None
        kind, sender, team, root, number, a, b = _HEAD.unpack_from(rest)
        packet, body = PacketId(team, root, number), rest[_HEAD.size :]
        if kind == _PIECE:
            return Piece(packet, a, b, body)
        missing = tuple(_RANGE.unpack_from(body, i * _RANGE.size) for i in range(b))
        return ReportDatagram(packet, sender, ReceiverReport(a, missing))

    def _head(self, kind: int, sender: int, packet: PacketId, a: int, b: int) -> bytes:
        return _HEAD.pack(kind, sender, packet.team, packet.root, packet.number, a, b)

    def _tagged(self, head: bytes, body: bytes | memoryview) -> bytes:
        rest = b"".join((head, body))
        return self._tag(rest) + rest

    def _tag(self, rest: bytes | memoryview) -> bytes:
        return hashlib.blake2b(rest, digest_size=TAG, key=self._key).digest()
