"""Bootstrap of ranks on other hosts: a TLS listener of rank 0, and the function by which a rank connects to it.

The run has its own certificate authority. The listener checks the caller's certificate, then its token, then sends the
rank its task. It closes a connection without a certificate of this authority before it reads a message, and any
connection that does not finish in time (`HANDSHAKE_S`). At most `AT_ONCE` callers are checked at a time.
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
from fdt.process_group.streams import ConnectionLost, MessageStream, ReadAheadStream
from fdt.security.auth import TlsIdentity

HANDSHAKE_S = 10.0  # for the handshake, and the same again for the greeting
GREETING_BYTES = 4096
AT_ONCE = 64
AGAIN_S = 0.1  # wait after a failed accept: the caller disconnected, or no file descriptor is free
CALL_S = 60.0  # every rank of a large run connects at the same moment
# A host that loses its network closes no connection: TCP keepalive and TCP_USER_TIMEOUT detect it within 23 s, and the
# run's end needs some of the promised 30. A host that stops for 20 s, within a second of its answer, keeps its
# connection.
_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 22_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)

Message = tuple[dict[str, Any], bytes]


class BootstrapListener:
    """Listens on every interface for the ranks below `size`.

    Args:
        size: The world size.
        identity: The run's certificate, key and authority.
        token: The token that a caller must send.
        task: Returns the message for a rank, sent when the rank is admitted.
    """

    def __init__(self, size: int, identity: TlsIdentity, token: str, task: Callable[[int], Message]) -> None:
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
        """Return the ranks that were admitted since the last call, each with its stream; does not wait."""
        taken = []
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self._came.get_nowait())
        return taken

    def close(self) -> None:
        """Stop listening and close the streams that were not taken."""
        self._closing.set()
        try:
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
        except OSError:
            pass
        self._listening.close()
        self._close_streams()

    def _close_streams(self) -> None:
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
        except Exception:  # not a rank of this run: its error concerns only the caller
            connection.close()
        finally:
            self._places.release()

    def _admit(self, connection: socket.socket) -> None:
        connection.settimeout(HANDSHAKE_S)
        line = MessageStream(self._context.wrap_socket(connection, server_side=True), remote=True)
        try:
            rank = self._claimed(line.receive(within(HANDSHAKE_S, ConnectionLost("no answer")), GREETING_BYTES)[0])
            line.send(*self._task(rank))
            _settle(line.socket)
        except BaseException:
            line.socket.close()
            raise
        self._came.put((rank, ReadAheadStream(line)))
        if self._closing.is_set():  # `close` may have emptied the queue before
            self._close_streams()

    def _claimed(self, greeting: dict[str, Any]) -> int:
        """Return the caller's rank. Raise ValueError for a wrong token and for a rank that is out of range or taken."""
        rank = int(greeting["rank"])
        if not hmac.compare_digest(str(greeting["token"]).encode(), self._token.encode()):
            raise ValueError("the token is wrong")
        with self._lock:
            if rank not in range(self._size) or rank in self._taken:
                raise ValueError("the rank is not free")
            self._taken.add(rank)
        return rank


def connect(address: str, rank: int, token: str, identity: TlsIdentity) -> tuple[MessageStream, Message]:
    """Connect to rank 0's bootstrap listener.

    Args:
        address: "HOST:PORT".
        rank: This process's rank.
        token: The run's token.
        identity: The run's certificate, key and authority.

    Returns:
        The stream to rank 0, and the message that it sent: a header and bytes.

    Raises:
        UserError: Rank 0 cannot be reached, or it closed the connection.
    """
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        try:
            plain = stack.enter_context(socket.create_connection((host, int(port)), CALL_S))
            secure = identity.context(server=False).wrap_socket(plain, server_hostname=identity.name)
            line = MessageStream(stack.enter_context(secure), remote=True)
            line.send({"rank": rank, "token": token})
            answer = line.receive(within(CALL_S, ConnectionLost("no answer")))
        except (OSError, ConnectionLost) as error:
            raise UserError(f"rank 0 cannot be reached at {address}: {error}") from None
        _settle(line.socket)
        stack.pop_all()
        return line, answer


def _settle(connection: socket.socket) -> None:
    connection.settimeout(None)
    for level, name, value in _ALIVE:
        connection.setsockopt(level, name, value)


def within(seconds: float, late: Exception) -> Callable[[], None]:
    """Return a function that raises `late` once `seconds` have passed."""
    deadline = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > deadline:
            raise late

    return check
