"""Process of an emulated peer, `python -m nfdt.control.host`: commands by a Unix socket, tensors by TCP over the links.

Both are connections of multiprocessing, which authenticate each other by the run's token before any other message.
"""

import contextlib
import json
import os
import queue
import socket
import struct
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from typing import Any

import cloudpickle

from fdt import tensors
from fdt.errors import UserError
from fdt.network import Pacer, pacer_of
from fdt.security.auth import TOKEN_VARIABLE
from fdt.service.member import ENGINE_VARIABLE
from nfdt.control.peer import Store, flat_numbers

ADDRESS_VARIABLE = "FDT_PEER_ADDRESS"
SEED_VARIABLE = "FDT_PEER_SEED"
PORT = 7078
CONNECT_S = 20.0
KEY_S = 30.0  # longest time for which a caller without the key stays connected; a peer may be stopped for 25 s
RETRY_S = 0.02

Done = Callable[[str], None]  # called with an error, or ""


class Outbox:
    """A thread that sends tensors to one other peer, in order."""

    def __init__(self, address: str, key: bytes) -> None:
        self._address, self._key = address, key
        self._waiting: queue.SimpleQueue[tuple[bytes, Done]] = queue.SimpleQueue()
        threading.Thread(target=self._send, daemon=True).start()

    def put(self, message: bytes, done: Done) -> None:
        """Queue a message; `done` is called after its arrival, or with the error of the connection."""
        self._waiting.put((message, done))

    def _send(self) -> None:
        connection = None
        while True:
            message, done = self._waiting.get()
            try:
                connection = connection or self._connect()
                connection.send_bytes(message)
                connection.recv_bytes()  # the receiver's confirmation
            except (OSError, EOFError, AuthenticationError) as error:
                done(f"the connection to {self._address} ended: {type(error).__name__}: {error}")
            else:
                done("")

    def _connect(self) -> Connection:
        deadline = time.monotonic() + CONNECT_S
        while True:
            try:
                return _prompt(Client((self._address, PORT), "AF_INET", authkey=self._key))
            except (OSError, EOFError):  # the other peer does not listen yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)


class PeerHost:
    """Executes one command after another."""

    def __init__(self, control: Connection, key: bytes, pacer: Pacer | None) -> None:
        self._control, self._key, self._pacer = control, key, pacer
        self._store = Store()
        self._came = threading.Condition()
        self._replying = threading.Lock()
        self._outboxes: dict[str, Outbox] = {}

    def run(self) -> None:
        """Execute commands until the control program ends.

        A thread receives further commands meanwhile, so that the control program never blocks on a full socket.
        """
        commands: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._receive_commands, args=(commands,), daemon=True).start()
        for command in iter(commands.get, None):
            number, kind, arguments = cloudpickle.loads(command)
            try:
                getattr(self, kind)(number, *cloudpickle.loads(arguments))
            except UserError as error:
                self._reply(number, None, str(error))
            except Exception as error:
                self._reply(number, None, f"{type(error).__name__}: {error}", traceback.format_exc())

    def _receive_commands(self, commands: "queue.SimpleQueue[bytes | None]") -> None:
        try:
            while True:
                commands.put(self._control.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # the program has ended, and no other thread can continue

    def listen(self, address: str) -> None:
        """Receive tensors from all peers that connect."""
        listener = Listener((address, PORT), "AF_INET", backlog=128)  # each thread asks its caller for the key
        while True:
            try:
                caller = listener.accept()
            except OSError:  # no descriptor is left, until callers without the key are refused
                time.sleep(RETRY_S)
            else:
                threading.Thread(target=self._take_in, args=(caller,), daemon=True).start()

    # -- commands --------------------------------------------------------------------------------------------

    def compute(
        self, number: int, into: str | Sequence[str], function: Callable[..., Any], names: Sequence[str], steps: float
    ) -> None:
        start = time.monotonic()
        self._store.compute(into, function, names)
        if self._pacer is not None:
            self._pacer.hold(start, steps)
        self._reply(number)

    def send(self, number: int, addresses: Sequence[str], name: str, into: str) -> None:
        skeleton, arrays = flat_numbers(name, self._store.get(name))
        message = f"{json.dumps(into)}\n{skeleton}\n".encode() + bytes(tensors.pack(arrays))
        missing, unanswered = deque(range(len(addresses))), threading.Lock()

        def done(error: str) -> None:
            """Reply once, from the thread that takes the last element or has an error. A pop is atomic."""
            if (error or missing.pop() == 0) and unanswered.acquire(blocking=False):
                self._reply(number, None, error)

        if not addresses:
            self._reply(number)
        for address in addresses:
            if address not in self._outboxes:
                self._outboxes[address] = Outbox(address, self._key)
            self._outboxes[address].put(message, done)

    def wait(self, number: int, name: str) -> None:
        with self._came:
            self._came.wait_for(lambda: self._store.take(name))
        self._reply(number)

    def read(self, number: int, name: str) -> None:
        self._reply(number, self._store.get(name))

    def _take_in(self, connection: Connection) -> None:
        with connection, contextlib.suppress(Exception):  # of a caller without the key, or that sends noise
            _set_option(connection, socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(KEY_S), 0))
            deliver_challenge(_prompt(connection), self._key)
            answer_challenge(connection, self._key)
            _set_option(connection, socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 0))
            while True:
                into, skeleton, packed = connection.recv_bytes().split(b"\n", 2)
                value = tensors.unflatten(skeleton.decode(), tensors.unpack(memoryview(packed)))
                with self._came:
                    self._store.deliver(json.loads(into), value)
                    self._came.notify_all()
                connection.send_bytes(b"came")

    def _reply(self, number: int, value: Any = None, error: str = "", detail: str = "") -> None:
        packed = cloudpickle.dumps(value)
        with self._replying:
            self._control.send_bytes(cloudpickle.dumps((number, packed, error, detail)))


def listening(path: str, count: int) -> Listener:
    """Return a listener for `count` peers at a Unix socket. It asks no caller for the key. Raises UserError."""
    try:
        return Listener(path, "AF_UNIX", backlog=count)
    except OSError as error:  # a path of a socket has 107 bytes at most
        raise UserError(f"TMPDIR must be a short path, for a socket. Received: {path} ({error})") from None


def _prompt(connection: Connection) -> Connection:
    """Send small messages at once (TCP_NODELAY), because the sender waits for an answer."""
    _set_option(connection, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _set_option(connection: Connection, level: int, name: int, value: int | bytes) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(level, name, value)


def main() -> None:
    """Connect to the engine and serve its commands and the other peers until it ends."""
    key = os.environ.pop(TOKEN_VARIABLE).encode()
    rank = int(os.environ["FDT_RANK"])
    control = Client(os.environ[ENGINE_VARIABLE].removeprefix("unix:"), "AF_UNIX", authkey=key)
    control.send_bytes(str(rank).encode())
    host = PeerHost(control, key, pacer_of(rank, int(os.environ[SEED_VARIABLE]), every_node=True))
    threading.Thread(target=host.listen, args=(os.environ[ADDRESS_VARIABLE],), daemon=True).start()
    host.run()


if __name__ == "__main__":
    main()
