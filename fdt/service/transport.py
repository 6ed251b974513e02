"""gRPC servers and channels as this project wants them: no size limit, loopback or a Unix socket, threads enough."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import grpc

from fdt.errors import UsageError, UserError
from fdt.service.auth import RequireToken

# A stream holds a thread as long as it lives: two per member, two per client.
MAX_STREAMS = 1024
EMULATED_VARIABLE = "FDT_EMULATED"  # set in members on emulated hosts: their network is joined to nothing else
EMULATED_SUBNET = "10.77."
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
)


def new_server(token: str) -> grpc.Server:
    """A server that refuses calls without `token`."""
    pool = ThreadPoolExecutor(MAX_STREAMS, thread_name_prefix="grpc")
    return grpc.server(pool, interceptors=[RequireToken(token)], options=OPTIONS)


def bind(server: grpc.Server, address: str) -> str:
    """Bind `HOST:PORT` (port 0: any) or `unix:PATH`; return the address to call.

    Raises UsageError for an address that is not loopback, UserError for a port that is taken or a path that cannot be.
    """
    check_local(address)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port and address.startswith("unix:"):
        raise UserError(
            "a socket must be in a directory that can be written, its path 107 bytes or shorter. "
            f"Received: {address.removeprefix('unix:')}"
        )
    if not port:
        raise UserError(f"the address must be free to listen on. Received: {address}, which is in use; try --port 0")
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


def check_local(address: str) -> None:
    """Raise UsageError unless `address` is a Unix socket or loopback HOST:PORT."""
    if address.startswith("unix:"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"an address must be HOST:PORT or unix:PATH. Received: {address!r}")
    if not (_is_loopback(host.strip("[]")) or _is_emulated(host)):
        raise UsageError(
            f"an address must be on this machine's loopback (127.0.0.1, localhost, [::1]). Received: {address!r}"
        )


def open_channel(address: str) -> grpc.Channel:
    """A channel to `address`, which must be local: it is not encrypted."""
    check_local(address)
    return grpc.insecure_channel(address, options=OPTIONS)


def _is_emulated(host: str) -> bool:
    return EMULATED_VARIABLE in os.environ and host.startswith(EMULATED_SUBNET)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return socket.inet_aton(host)[0] == 127
    except OSError:
        return host == "::1"
