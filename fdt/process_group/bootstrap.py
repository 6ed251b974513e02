"""How ranks on other hosts come to a meeting: TLS by the run's own authority, then the token, then their task.

Whoever shows no certificate of the run's is turned away before a word of his is read, and after ten seconds in any
case; no more than a few may stand here at a time.
"""

import contextlib
import hmac
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from fdt.errors import UserError
from fdt.process_group.streams import ConnectionLost, MessageStream
from fdt.security.tls import TlsIdentity

HANDSHAKE_S = 10.0  # for the handshake, and as long again for the greeting
GREETING_BYTES = 4096
AT_ONCE = 64
AGAIN_S = 0.1  # where a caller could not be taken: one who left meanwhile, or no descriptor is free
CALL_S = 60.0  # every rank of a large run knocks at the same moment
# A host that is cut off closes nothing: the system asks, and gives up what it has sent in vain.
_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)

Words = tuple[dict[str, Any], bytes]


class BootstrapListener:
    """Listens on every interface for ranks below `size`. `task`: what each is told, once it is in."""

    def __init__(self, size: int, identity: TlsIdentity, token: str, task: Callable[[int], Words]) -> None:
        self._size, self._token, self._task = size, token, task
        self._context = identity.context(server=True)
        self._listening = socket.create_server(("", 0))
        self.port = int(self._listening.getsockname()[1])
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._came: queue.SimpleQueue[tuple[int, MessageStream]] = queue.SimpleQueue()
        self._taken: set[int] = {0}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        threading.Thread(target=self._open, daemon=True).start()

    def take_streams(self) -> list[tuple[int, MessageStream]]:
        """Those who have come in since it was asked."""
        return [self._came.get() for _ in range(self._came.qsize())]

    def close(self) -> None:
        self._closing.set()
        try:
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes its thread
        except OSError:
            pass
        self._listening.close()
        for _, line in self.take_streams():
            line.socket.close()

    def _open(self) -> None:
        while True:
            self._places.acquire()
            try:
                connection, _ = self._listening.accept()
            except OSError:
                self._places.release()
                if self._closing.wait(AGAIN_S):
                    return
                continue
            threading.Thread(target=self._receive, args=(connection,), daemon=True).start()

    def _receive(self, connection: socket.socket) -> None:
        try:
            self._admit(connection)
        except Exception:  # no rank of ours: whatever it said or left unsaid is its own affair
            connection.close()
        finally:
            self._places.release()

    def _admit(self, connection: socket.socket) -> None:
        connection.settimeout(HANDSHAKE_S)
        line = MessageStream(self._context.wrap_socket(connection, server_side=True), remote=True)
        try:
            rank = self._claimed(line.receive(_within(HANDSHAKE_S), GREETING_BYTES)[0])
            line.send(*self._task(rank))
            _settle(line.socket)
        except BaseException:
            line.socket.close()
            raise
        self._came.put((rank, line))

    def _claimed(self, greeting: dict[str, Any]) -> int:
        """The caller's rank. Raises ValueError for one that is none, or is taken."""
        rank = int(greeting["rank"])
        if not hmac.compare_digest(str(greeting["token"]).encode(), self._token.encode()):
            raise ValueError("another token")
        with self._lock:
            if rank not in range(self._size) or rank in self._taken:
                raise ValueError("no such place")
            self._taken.add(rank)
        return rank


def connect(address: str, rank: int, token: str, identity: TlsIdentity) -> tuple[MessageStream, Words]:
    """Come in at `address` as `rank`; what we are told there. Raises UserError."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        try:
            plain = stack.enter_context(socket.create_connection((host, int(port)), CALL_S))
            secure = identity.context(server=False).wrap_socket(plain, server_hostname=identity.name)
            line = MessageStream(stack.enter_context(secure), remote=True)
            line.send({"rank": rank, "token": token})
            told = line.receive(_within(CALL_S))
        except (OSError, ConnectionLost) as error:
            raise UserError(f"rank 0 must be reached at {address}. Received: {error or 'the end of it'}") from None
        _settle(line.socket)
        stack.pop_all()
        return line, told


def _settle(connection: socket.socket) -> None:
    connection.settimeout(None)
    for level, name, value in _ALIVE:
        connection.setsockopt(level, name, value)


def _within(seconds: float) -> Callable[[], None]:
    deadline = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > deadline:
            raise ConnectionLost("no answer")

    return check
