"""Token authentication: one token for each run, sent with every call and compared in constant time.

A process receives the token by environment or file, never by argument, as arguments are public on a machine.
"""

import hmac
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from fdt.errors import UsageError

TOKEN_VARIABLE = "FDT_TOKEN"
_KEY = "authorization"

Metadata = Sequence[tuple[str, str]]


def new_token() -> str:
    """Return a token of 256 random bits, as text."""
    return secrets.token_urlsafe(32)


def checked(token: str) -> str:
    """Return a token that a user chose. Raises UsageError for one that gRPC's metadata cannot hold."""
    if not (token.isascii() and token.isprintable()):
        raise UsageError("a token must be one line of printable ASCII characters. Received: one with other characters")
    return token


def credentials(token: str) -> Metadata:
    """Return the metadata that a caller adds to each call."""
    return ((_KEY, f"Bearer {token}"),)


class RequireToken(grpc.ServerInterceptor):
    """Refuses a call without the token before it reads the call's messages."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def intercept_service(self, continuation: Callable[..., Any], details: grpc.HandlerCallDetails) -> Any:
        given = dict(details.invocation_metadata or ()).get(_KEY, "")
        raw = given if isinstance(given, bytes) else given.encode()
        return continuation(details) if hmac.compare_digest(raw, self._expected) else _REFUSE


def _refuse(_requests: Any, context: grpc.ServicerContext) -> Any:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, f"every call must have the run's token (${TOKEN_VARIABLE})")
    yield  # pragma: no cover  (abort raises; the yield makes this a stream handler)


_REFUSE = grpc.stream_stream_rpc_method_handler(_refuse)
