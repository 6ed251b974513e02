"""The offers of `hfdt join`: hosts whose slots a run may use as long as the caller stays connected.

The run starts the workers of these slots itself, on this machine or by ssh, as on every host of its list. So a caller
gets no secret of the run.
"""

import socket
import threading
from pathlib import Path
from urllib.parse import unquote

from fdt.launch.hosts import Host, is_here
from fdt.rpc.join_pb2 import JoinRequest, Place
from fdt.supervise.joining import Admission, JoinEndpoint, JoinListener
from hfdt.engine.host_pool import MOST_SLOTS, HostPool


class Offers:
    """Accepts offers for `pool` from its creation. Thread-safe.

    Args:
        endpoint: Address and credentials.
        pool: The hosts of the run.
        run_dir: Directory for the files that callers need.

    Attributes:
        listener: The listener.
    """

    def __init__(self, endpoint: JoinEndpoint, pool: HostPool, run_dir: Path) -> None:
        self._pool = pool
        self._over = threading.Event()
        self.listener = JoinListener(endpoint, run_dir, self._admit, "hfdt")

    def close(self) -> None:
        """Send the callers the end of the run, and close the listener."""
        self._over.set()
        self.listener.close()

    def _admit(self, request: JoinRequest, peer: str) -> Admission:
        if not 1 <= request.workers <= MOST_SLOTS:
            raise ValueError(f"1 to {MOST_SLOTS} workers can join. Received: {request.workers}")
        withdraw = self._pool.offer(Host(self._name(request.host, peer), request.workers))
        return Admission(Place(size=request.workers), self._over, withdraw)

    def _name(self, name: str, peer: str) -> str:
        """Return the name of a caller's host: its own one where that leads to the caller, else its address."""
        kind, _, address = unquote(peer).partition(":")  # gRPC writes [::1] as %5B::1%5D
        address = address.rpartition(":")[0]
        if kind == "unix" or is_here(address.strip("[]")) or address == "[::1]":
            return self._pool.own_name
        if kind != "ipv4":
            raise ValueError(f"hosts are called by IPv4; join at an IPv4 address. Received: a call from {peer}")
        try:
            return name if socket.gethostbyname(name) == address else address
        except OSError:
            return address
