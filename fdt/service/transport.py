"""gRPC servers and channels: over loopback or a Unix socket, otherwise with TLS; with limits for unknown callers."""

import contextlib
import os
import socket
import time
from pathlib import Path

import grpc

from fdt.errors import UsageError, UserError
from fdt.security import auth, is_anothers, listens_for_another
from fdt.security.auth import RequireToken, TlsIdentity
from fdt.service.handlers import GuardStreams, ThreadPerCall

# An open stream occupies a thread: two per member, three per client.
MAX_STREAMS = 1024
EMULATED_VARIABLE = "FDT_EMULATED"  # set in members on emulated hosts, whose network is isolated
EMULATED_SUBNET = "10.77."
# Blobs are sent in chunks of 2 MiB, so valid messages are far smaller; this bounds a message's declared size.
MAX_MESSAGE_BYTES = 64 << 20
HANDSHAKE_S = 10
STOP_S = 5.0
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small message must not decompress into a large one
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.max_concurrent_streams", MAX_STREAMS // 4),  # of one connection
    ("grpc.so_reuseport", 0),
    ("grpc.max_reconnect_backoff_ms", 2000),  # to a server that is restarted
    ("grpc.enable_http_proxy", 0),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1000),
)


# A host that loses its network closes no connection: between hosts, each side pings the other. A host that stands still
# for 20 s is not lost; one that is lost is noticed within 23 s.
PING_S, PONG_S, RETRY_S = 2, 20, 0.1
PINGS = (
    ("grpc.keepalive_time_ms", PING_S * 1000),
    ("grpc.keepalive_timeout_ms", PONG_S * 1000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
)


def new_server(token: str, identity: TlsIdentity | None = None) -> grpc.Server:
    """Return a server that refuses calls without `token`. `identity`: for a server that other hosts call, too."""
    options = OPTIONS if identity is None and EMULATED_VARIABLE not in os.environ else OPTIONS + PINGS
    return grpc.server(
        ThreadPerCall(),
        interceptors=[RequireToken(token), GuardStreams()],
        options=options,
        maximum_concurrent_rpcs=MAX_STREAMS,
    )


def stop_server(server: grpc.Server, grace_s: float = 0.2) -> None:
    """Stop a server: end its calls after `grace_s` seconds, and wait for its threads that listen."""
    server.stop(grace_s).wait(grace_s + STOP_S)


def bind(server: grpc.Server, address: str, identity: TlsIdentity | None = None) -> str:
    """Bind a server to an address; TCP uses TLS where there is an `identity`.

    Args:
        server: The server.
        address: `HOST:PORT` (port 0: any) or `unix:PATH`.
        identity: The certificate; None: this process's own, if it has one.

    Returns:
        The address to call.

    Raises:
        UsageError: The address is not local and there is no certificate.
        UserError: The address is in use, or the path is not possible.
    """
    identity = _for(address, identity)
    if address.startswith("unix:"):
        _check_unused(address)
    try:
        if identity is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, identity.server())
    except RuntimeError:
        port = 0
    if not port and address.startswith("unix:"):
        raise UserError(
            "a socket needs a directory that can be written and a path of at most 107 bytes. "
            f"Received: {address.removeprefix('unix:')}"
        )
    if not port:
        raise UserError(f"the address is in use. Received: {address}; port 0 takes any free port")
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


def check_address(address: str) -> None:
    """Raise UsageError unless `address` is unix:PATH or HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not address.startswith("unix:") and (not host or not port.isdecimal() or int(port) > 65535):
        raise UsageError(f"an address must be HOST:PORT or unix:PATH. Received: {address!r}")


def check_safe(address: str, identity: TlsIdentity | None) -> None:
    """Raise UsageError for an address beyond this machine without TLS."""
    check_address(address)
    host = address.rpartition(":")[0]
    if identity is None and not (address.startswith("unix:") or _is_loopback(host.strip("[]")) or _is_emulated(host)):
        raise UsageError(
            "an address other than loopback needs TLS: give --tls-cert, --tls-key and --tls-ca, which `certs` makes. "
            f"Received: {address!r} without them"
        )


def listening_at(address: str) -> str:
    """Return where a member listens that others call at `address`: its host may use another name for itself."""
    return (
        f"0.0.0.0:{address.rpartition(':')[2]}" if auth.own_identity() and not address.startswith("unix:") else address
    )


def free_ports(count: int) -> list[int]:
    """Return `count` different TCP ports that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def open_channel(address: str, identity: TlsIdentity | None = None) -> grpc.Channel:
    """Return a channel to `address`. TLS uses `identity`; only addresses of this machine work without TLS.

    Raises:
        UsageError: The address is not local and there is no certificate.
        UserError: Another user's process listens there without TLS; it would receive the token.
    """
    identity = _for(address, identity)
    if identity is None:
        _check_owner(address)
        return grpc.insecure_channel(address, options=OPTIONS + PINGS if _is_emulated(address) else OPTIONS)
    return grpc.secure_channel(address, identity.caller(), options=[*OPTIONS, *PINGS, *identity.options()])


def without_frames(error: grpc.RpcError) -> grpc.RpcError:
    """Remove the traceback of a call's error, and return the error.

    The error of a stream is the call itself. Its traceback refers to the frames that have read the stream, and these to
    the call: a cycle, which holds everything received until a garbage collection of the oldest objects.
    """
    error.__traceback__ = None
    return error


def await_server(address: str, within_s: float) -> None:
    """Wait until a server listens at a TCP address. gRPC would wait for an unreachable host, too.

    Args:
        address: `HOST:PORT`; nothing is done for another kind of address.
        within_s: Seconds for which the host may stand still. A host that refuses the connection is alive, so the wait
            for its server has no end.

    Raises:
        ConnectionError: The host does not answer.
    """
    host, _, port = address.rpartition(":")
    until = time.monotonic() + within_s
    while host and not address.startswith("unix:"):
        try:
            socket.create_connection((host.strip("[]"), int(port)), max(RETRY_S, until - time.monotonic())).close()
            return
        except ConnectionRefusedError:
            until = time.monotonic() + within_s
        except OSError as error:
            if time.monotonic() >= until:
                raise ConnectionError(f"{address} does not answer: {error}") from None
        time.sleep(RETRY_S)


def _check_unused(address: str) -> None:
    """Raise UserError for a Unix socket at which a server listens: gRPC would take the path from it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(address.removeprefix("unix:"))
        raise UserError(f"a server listens at this address already. Received: {address}; end it, or use another path")


def _check_owner(address: str) -> None:
    """Raise UserError for a Unix socket or a loopback port of another user."""
    host, _, port = address.rpartition(":")
    if address.startswith("unix:"):
        taken, instead = is_anothers(Path(address.removeprefix("unix:"))), "use a server with TLS at a port"
    else:
        taken = _is_loopback(host.strip("[]")) and listens_for_another(host.strip("[]"), int(port))
        instead = "give --tls-ca if it is the right server, which then proves it"
    if taken:
        raise UserError(f"a process of another user listens at {address}, and would get the token: {instead}")


def _for(address: str, identity: TlsIdentity | None) -> TlsIdentity | None:
    """Return the certificate for a connection at `address`: `identity`, or this member's own. Raises UsageError."""
    identity = None if address.startswith("unix:") else identity or auth.own_identity()
    check_safe(address, identity)
    return identity


def _is_emulated(host: str) -> bool:
    return EMULATED_VARIABLE in os.environ and host.startswith(EMULATED_SUBNET)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return socket.inet_aton(host)[0] == 127
    except OSError:
        return host == "::1"
