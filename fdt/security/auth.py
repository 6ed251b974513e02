"""Authentication of connections: the run's token, and TLS settings for connections between machines.

One token for each run is sent with every call and compared in constant time. A process receives the token by
environment or file, never by argument, as arguments are public on a machine.

TLS settings are this process's certificate, the trusted authority and gRPC credentials. A server sends its certificate.
Where it has an authority, callers must have a certificate of that authority (mutual TLS). The token is required in both
cases.
"""

import datetime
import hmac
import json
import os
import secrets
import ssl
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
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


def user_of(context: grpc.ServicerContext) -> str:
    """Return the common name of the caller's certificate; "" where the server asks for none."""
    found = context.auth_context()
    names = [name.decode(errors="replace") for name in found.get("x509_common_name", ())]
    if "x509_pem_cert" in found and not (len(names) == 1 and names[0] and names[0].isprintable()):
        rule = "a caller's certificate must have one common name, the user's name"
        context.abort(grpc.StatusCode.UNAUTHENTICATED, rule)
    return names[0] if names else ""


TLS_VARIABLE = "FDT_TLS"  # holds a member's TlsIdentity, written by TlsIdentity.dumps
FLAGS = {"certificate": "--tls-cert", "key": "--tls-key", "authority": "--tls-ca"}

Option = tuple[str, str]


@dataclass(frozen=True)
class TlsIdentity:
    """A certificate and the authority that its owner trusts.

    Attributes:
        certificate: This side's certificate, PEM text or "".
        key: The certificate's private key, PEM text or "".
        authority: The certificate of the trusted authority, PEM text or "".
        name: The name in the other side's certificate, where it is not the name that is called.
    """

    certificate: str = ""
    key: str = ""
    authority: str = ""
    name: str = ""

    @classmethod
    def read(cls, certificate: Path | None, key: Path | None, authority: Path | None) -> "TlsIdentity | None":
        """Read PEM files; return None where none is given. Raises UsageError for a file that cannot be read or used."""
        if certificate is key is authority is None:
            return None
        if (certificate is None) is not (key is None):
            missing = "--tls-key" if key is None else "--tls-cert"
            raise UsageError(f"--tls-cert and --tls-key need each other: give {missing} too")
        texts = {"certificate": certificate, "key": key, "authority": authority}
        identity = cls(**{name: _pem(FLAGS[name], path) for name, path in texts.items() if path is not None})
        _check(certificate, key, authority)
        for name in ("certificate", "authority"):
            _check_dates(FLAGS[name], texts[name], getattr(identity, name))
        return identity

    @classmethod
    def loads(cls, text: str) -> "TlsIdentity":
        """Parse the text that `dumps` made."""
        return cls(**json.loads(text))

    def dumps(self) -> str:
        """Return the identity as JSON."""
        return json.dumps(asdict(self))

    def __repr__(self) -> str:
        return "Identity(...)"  # never in a log

    def server(self) -> grpc.ServerCredentials:
        """Return a server's gRPC credentials. Raises UsageError without a certificate."""
        if not self.certificate:
            raise UsageError("TLS at a server needs --tls-cert and --tls-key. Received: --tls-ca alone")
        pair = (self.key.encode(), self.certificate.encode())
        authority = self.authority.encode() or None
        return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)

    def caller(self) -> grpc.ChannelCredentials:
        """Return a caller's gRPC credentials. Without an authority, gRPC's built-in (public) ones are trusted."""
        parts = (self.authority, self.key, self.certificate)
        return grpc.ssl_channel_credentials(*(part.encode() or None for part in parts))

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Return an SSL context for sockets; both sides must have a certificate of the authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.authority)
        memory = os.memfd_create("identity", os.MFD_CLOEXEC)  # ssl reads files only, and the key must not be on a disk
        try:
            os.write(memory, (self.certificate + self.key).encode())
            context.load_cert_chain(f"/proc/self/fd/{memory}")
        finally:
            os.close(memory)
        return context

    def options(self) -> list[Option]:
        """Return a caller's channel options."""
        return [("grpc.ssl_target_name_override", self.name)] if self.name else []


def _check(certificate: Path | None, key: Path | None, authority: Path | None) -> None:
    """Raise UsageError for PEM files that TLS cannot use."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if certificate is not None and key is not None:
            context.load_cert_chain(certificate, key)
    except ssl.SSLError:
        raise UsageError(
            f"--tls-key must be the key of --tls-cert, both in PEM format. Received: {key} and {certificate}"
        ) from None
    try:
        if authority is not None:
            context.load_verify_locations(authority)
    except ssl.SSLError:
        raise UsageError(
            f"--tls-ca must hold an authority's certificate in PEM format. Received: {authority}"
        ) from None


def _check_dates(flag: str, path: Path | None, text: str) -> None:
    """Raise UsageError for a certificate that is not valid now. Of an authority's several, one must be."""
    from cryptography import x509  # a command without TLS does not need it

    now = datetime.datetime.now(datetime.timezone.utc)
    try:
        found = x509.load_pem_x509_certificates(text.encode()) if text else []
    except ValueError:  # TLS may know what this parser does not
        return
    ours = found[:1] if flag == FLAGS["certificate"] else found  # the issuers' follow the certificate
    if ours and not any(each.not_valid_before_utc <= now <= each.not_valid_after_utc for each in ours):
        first, last = ours[0].not_valid_before_utc, ours[0].not_valid_after_utc
        validity = f"{path}, which is valid from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"
        raise UsageError(f"{flag} must be valid now; `certs` makes another. Received: {validity}")


_members_own: TlsIdentity | None = None


def adopt_identity(identity: TlsIdentity) -> None:
    """Set the certificate of this member process, which it uses for all connections."""
    global _members_own
    _members_own = identity


def own_identity() -> TlsIdentity | None:
    """Return the certificate of this member process, or None."""
    return _members_own


def _pem(flag: str, path: Path) -> str:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{flag} cannot be read: {error}") from None
    if "-----BEGIN " not in text:
        raise UsageError(f"{flag} must be a file in PEM format. Received: {path}")
    return text
