"""IP multicast among ranks whose hosts share a switch: datagrams to a multicast group for each team, with loss repair.

A packet is sent once and the network copies it (RFC 1112; with a time to live of 1 no router forwards it). Lost pieces
are sent again (hfdt/collectives/repair.py). A team of two uses unicast instead of a group. Datagrams have a tag keyed
for this run, and others are dropped unread. A thread of its own does the input and output, so a rank that computes
still answers.
"""

import collections
import hashlib
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fdt.errors import UserError
from fdt.typing import Vector
from hfdt.collectives.datagrams import LARGEST_TEAM, PacketId, Piece, ReportDatagram, Wire
from hfdt.collectives.repair import PIECE, ReceiverReport, Receiving, Sending

BUFFER = 4 << 20  # bytes of a socket's receive buffer
SILENCE_S = 20.0  # time without progress after which the run fails
CLOSE_S = 2.0  # time for unfinished packets when the transport is closed
MOST_WAITING = 64  # unfinished packets above which `multicast` blocks
AT_ONCE = 64  # datagrams read before the next ones are sent
ALL = 2**32 - 1
Address = tuple[str, int]


@dataclass
class OutgoingPacket:
    """A packet that is queued or being sent to a group or one receiver."""

    id: PacketId
    data: memoryview
    sending: Sending
    to: Address


@dataclass
class IncomingPacket:
    """The packets from one root to one team: the next one's number, its state, and the queue of finished ones."""

    number: int
    receiving: Receiving | None
    inbox: "queue.SimpleQueue[bytearray]"

    def take(self, piece: Piece) -> ReceiverReport | None:
        """Add a piece of the next packet; return the report that its root needs, if any."""
        receiving = self.receiving = self.receiving or Receiving(piece.nbytes)
        report = receiving.report() if receiving.take(piece.number, piece.payload) else None
        if receiving.done:
            self.inbox.put(receiving.data)
            self.number, self.receiving = self.number + 1, None
        return report


class IpMulticast:
    """The transport of rank `rank`.

    Args:
        addresses: (IP, port) of every rank.
        own: A UDP socket bound to this rank's address.
        key: The run's key for tags and groups.

    Attributes:
        sent_bytes: Bytes of packets sent, each packet counted once.
        again_bytes: Bytes of pieces that were sent again.
    """

    def __init__(self, rank: int, addresses: Sequence[Address], own: socket.socket, key: bytes) -> None:
        if len(addresses) > LARGEST_TEAM:
            raise UserError(f"--multicast ip needs at most {LARGEST_TEAM} workers. Received: {len(addresses)}")
        self.rank, self.size = rank, len(addresses)
        self.sent_bytes = self.again_bytes = 0
        self._addresses, self._own, self._wire, self._key = addresses, own, Wire(key), key
        self._selector = selectors.DefaultSelector()
        self._groups: dict[int, socket.socket] = {}
        self._incoming: dict[tuple[int, int], IncomingPacket] = {}
        self._numbers: collections.Counter[int] = collections.Counter()  # of packets sent, by team
        self._outgoing: collections.deque[OutgoingPacket] = collections.deque()
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._room = threading.Semaphore(MOST_WAITING)
        self._failure: Exception | None = None
        self._ends_s: float | None = None
        self._buffer = memoryview(bytearray(2048))
        self._bell, self._rung = socket.socketpair()
        self._selector.register(own, selectors.EVENT_READ, self._read)
        self._selector.register(self._rung, selectors.EVENT_READ, lambda rung: rung.recv(4096))
        self._thread = threading.Thread(target=self._run, name="multicast", daemon=True)
        self._thread.start()

    # -- the rank's thread ---------------------------------------------------------------------------------------------
    def multicast(self, packet: Vector, root: int, members: tuple[int, ...]) -> Vector:
        """Send or receive a packet, see Multicast. The sender does not wait. Raises UserError if datagrams get lost."""
        self._check()
        team = sum(1 << k for k in members)
        if team not in self._groups:
            self._do(lambda: self._join(team))
        if root == self.rank:
            if len(members) > 1:
                self._await_room()
                self.sent_bytes += packet.nbytes
                data = memoryview(packet.tobytes())
                self._do(lambda: self._enqueue(team, data))
            return packet
        data_in = self._received(self._from(team, root).inbox)
        if len(data_in) != packet.nbytes:
            raise UserError(
                f"ranks must exchange vectors of the same size, but rank {root} sent {len(data_in)} bytes instead of "
                f"{packet.nbytes}"
            )
        return np.frombuffer(data_in, packet.dtype).reshape(packet.shape)

    def close(self) -> None:
        """Return once all packets have arrived, or after CLOSE_S."""
        self._ends_s = time.monotonic() + CLOSE_S
        self._do(lambda: None)
        self._thread.join()
        for each in (self._own, self._bell, self._rung, *self._groups.values()):
            each.close()
        self._selector.close()

    def _received(self, inbox: "queue.SimpleQueue[bytearray]") -> bytearray:
        while True:
            try:
                return inbox.get(timeout=0.5)
            except queue.Empty:
                self._check()

    def _await_room(self) -> None:
        while not self._room.acquire(timeout=0.5):
            self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _do(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._bell.send(b"!")

    def _from(self, team: int, root: int) -> IncomingPacket:
        return self._incoming.setdefault((team, root), IncomingPacket(0, None, queue.SimpleQueue()))

    # -- the network's thread ------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while not self._over():
                for ready, _ in self._selector.select(self._pause_s()):
                    ready.data(ready.fileobj)
                for _ in range(len(self._commands)):
                    self._commands.popleft()()
                self._send()
        except OSError as error:
            self._failure = UserError(f"the network does not accept IP multicasts: {error}; use --multicast mpi")
        except Exception as error:
            self._failure = error

    def _over(self) -> bool:
        return self._ends_s is not None and (not self._outgoing or time.monotonic() > self._ends_s)

    def _pause_s(self) -> float | None:
        return max(0.0, self._outgoing[0].sending.probe_s - time.monotonic()) if self._outgoing else None

    def _join(self, team: int) -> None:
        """Join the multicast group of `team`."""
        if team in self._groups or team.bit_count() == 2:
            return
        group, own = self._group(team), self._addresses[self.rank][0]
        joined = self._groups[team] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        joined.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ranks of one host each get a copy
        joined.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        joined.bind(group)
        joined.setsockopt(
            socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group[0]) + socket.inet_aton(own)
        )
        self._selector.register(joined, selectors.EVENT_READ, self._read)

    def _group(self, team: int) -> Address:
        """Return the group of `team`, of 239.0.0.0/8 for use inside an organisation (RFC 2365). Runs differ."""
        a, b, c = hashlib.blake2b(team.to_bytes(8, "big"), digest_size=3, key=self._key).digest()
        return f"239.{a}.{b}.{c}", self._addresses[0][1]

    def _enqueue(self, team: int, data: memoryview) -> None:
        others = [k for k in range(self.size) if team >> k & 1 and k != self.rank]
        to = self._addresses[others[0]] if len(others) == 1 else self._group(team)
        packet = PacketId(team, self.rank, self._numbers[team])
        self._numbers[team] += 1
        self._outgoing.append(OutgoingPacket(packet, data, Sending(len(data), others, time.monotonic()), to))

    def _send(self) -> None:
        """Send the due pieces of the oldest packet. Only one is sent at a time: several would compete for a link."""
        while self._outgoing and self._outgoing[0].sending.done:
            self._outgoing.popleft()
            self._room.release()
            if self._outgoing:
                self._outgoing[0].sending.begin(time.monotonic())
        if not self._outgoing:
            return
        out, now = self._outgoing[0], time.monotonic()
        again, new = out.sending.due(now)
        for number in [*again, *new]:
            self._own.sendto(self._piece(out, number), out.to)
        self.again_bytes += PIECE * len(again)
        if now >= out.sending.probe_s:
            probe = self._piece(out, out.sending.probe(now))
            for receiver in out.sending.behind:  # by unicast: the receiver may not have joined the group yet
                self._own.sendto(probe, self._addresses[receiver])
        if now - out.sending.progress_s > SILENCE_S:
            raise UserError(
                f"for {SILENCE_S:g} s no multicast packet has arrived at rank "
                f"{', '.join(map(str, out.sending.behind))}; --multicast mpi needs no IP multicast"
            )

    def _piece(self, out: OutgoingPacket, number: int) -> bytes:
        payload = out.data[number * PIECE : (number + 1) * PIECE]
        return self._wire.piece(out.id, number, len(out.data), payload)

    def _read(self, ready: Any) -> None:
        for _ in range(AT_ONCE):
            try:
                nbytes = ready.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            message = self._wire.open(self._buffer[:nbytes])
            if isinstance(message, Piece):
                self._take(message)
            elif isinstance(message, ReportDatagram):
                self._receive_report(message)

    def _receive_report(self, datagram: ReportDatagram) -> None:
        if self._outgoing and self._outgoing[0].id == datagram.packet:
            self._outgoing[0].sending.receive_report(datagram.receiver, datagram.report, time.monotonic())

    def _take(self, piece: Piece) -> None:
        packet = piece.packet
        if packet.root == self.rank or not packet.team >> self.rank & 1:
            return  # this rank's own packet, looped back by the host
        self._join(packet.team)
        mine = self._from(packet.team, packet.root)
        if packet.number < mine.number:
            self._report(packet, ReceiverReport(ALL))
        elif packet.number == mine.number:
            report = mine.take(piece)
            if report is not None:
                self._report(packet, report)

    def _report(self, packet: PacketId, report: ReceiverReport) -> None:
        self._own.sendto(self._wire.report(packet, self.rank, report), self._addresses[packet.root])
