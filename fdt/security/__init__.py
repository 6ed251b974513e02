"""Security between processes and users: tokens, certificates, TLS, private directories, owners of TCP sockets."""

import contextlib
import errno
import os
import secrets
import socket
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fdt.errors import UserError

ROOT = 0  # the user number of root, who is trusted
_LISTENS = "0A"  # a state in /proc/net/tcp (TCP_LISTEN)
_BEGINS = ("02", "03")  # TCP_SYN_SENT, TCP_SYN_RECV
_MAPPED = "0000000000000000FFFF0000"  # begins an IPv4 address in /proc/net/tcp6


def is_private(directory: Path) -> bool:
    """Return whether this user owns the directory and no other user can enter it; False for a symbolic link."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def without_links(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Open a file, as an `opener` of open(). Raises UserError for a link or pipe, which another user may have made."""
    try:
        opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode)  # a pipe without a reader is an error
        if stat.S_ISREG(os.fstat(opened).st_mode):
            return opened
        os.close(opened)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path} is a symbolic link, which is not followed for a log: remove it") from None
        if error.errno != errno.ENXIO:
            raise
    raise UserError(f"{path} is not a regular file, and a log cannot be written there: remove it")


def check_directory(directory: Path, option: str) -> None:
    """Raise UserError for a directory in which, or in whose place, another user may have put something.

    That is one that all users can write to, and one that another user put, or a link to it, into such a directory.
    In /tmp only its owner can exchange an entry, so the result stays true, unless directories above belong to another
    user. Raises OSError for a missing directory.
    """
    if directory.stat().st_mode & stat.S_IWOTH:
        raise UserError(f"{option} must not be writable to all users, who could put links there: {directory}")
    path = directory.absolute()
    for each in (*_links_to(path), path, directory.resolve()):  # `path` again: it may have become a directory meanwhile
        user = each.lstat().st_uid
        if user not in (ROOT, os.geteuid()) and each.parent.stat().st_mode & stat.S_IWOTH:
            raise UserError(
                f"{option} must not lead to what another user put into a directory of all users, such as /tmp. "
                f"Received: {each}, of user {user}; name a directory of your own, which may be within it"
            )


def read_ours(path: Path, what: str) -> bytes:
    """Return a file's content; check the file that is open: another user may exchange what the path names."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # it may be a pipe
        check_ours(path, what, file.fileno())
        return file.read()


def check_ours(path: Path, what: str, opened: int | None = None) -> None:
    """Raise UserError for a path, or its `opened` file, that others could write; OSError for a missing one."""
    found = os.stat(path if opened is None else opened)
    if found.st_uid != os.geteuid() or found.st_mode & 0o002:
        whose = "writable to all users" if found.st_mode & 0o002 else f"of user {found.st_uid}"
        raise UserError(f"{what} must belong to the user and be writable to no other. Received: {path}, {whose}")


def _links_to(path: Path) -> Iterator[Path]:
    """Yield the symbolic links on the way to `path`."""
    for each in (*path.parents, path):
        if each.is_symlink():
            yield each
            yield from _links_to(each.parent / os.readlink(each))


def write_anew(path: Path, text: str) -> None:
    """Write a new file that only its user can read, in place of an earlier one."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which the end of the context moves to `path`: a reader finds a whole file."""
    written = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield written
        os.replace(written, path)
    finally:
        with contextlib.suppress(OSError):  # it is gone once it has replaced the file
            written.unlink()


@dataclass(frozen=True)
class TcpSocket:
    """A TCP socket of this machine as the kernel lists it: addresses as (hexadecimal IP, port), and the owner's uid.

    `begins`: the connection is not complete at this end.
    """

    local: tuple[str, int]
    remote: tuple[str, int]
    listens: bool
    uid: int
    inode: int
    begins: bool = False


def tcp_sockets(pid: int | str = "self") -> list[TcpSocket]:
    """Return the TCP sockets in the network namespace of a process; none where the kernel does not list them."""
    found = []
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for _, local, remote, state, _, _, _, uid, _, inode, *_ in map(str.split, lines):
            ends = _address(local), _address(remote)
            found.append(TcpSocket(*ends, state == _LISTENS, int(uid), int(inode), state in _BEGINS))
    return found


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    return host.removeprefix(_MAPPED), int(port, 16)


def own_sockets(pid: int | str = "self") -> dict[int, int]:
    """Return the sockets that a process of this user has open: file descriptors by inode."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:  # closed meanwhile
            continue
        if link.startswith("socket:["):
            found[int(link[8:-1])] = int(name)
    return found


def owner_of(local: tuple[str, int], remote: tuple[str, int], sockets: Iterable[TcpSocket]) -> int | None:
    """Return the uid that owns the socket at `local` which is connected to `remote`; None where no socket is listed.

    A closed socket has no inode, and is listed as root's.
    """
    return next((s.uid for s in sockets if s.inode and (s.local, s.remote) == (local, remote)), None)


def is_own_call(connection: socket.socket) -> bool:
    """Return whether the other end of a TCP connection over IPv4 is a socket of this user on this machine."""
    local, remote = (_hexadecimal(*address[:2]) for address in (connection.getsockname(), connection.getpeername()))
    return owner_of(remote, local, tcp_sockets()) == os.geteuid()


def listens_for_another(host: str, port: int) -> bool:
    """Return whether a process of another user, not root's, listens at this loopback address."""
    try:
        hosts = {_hexadecimal(host, port)[0]}
    except OSError:  # a name, or IPv6
        hosts = {_hexadecimal("127.0.0.1", port)[0], "0" * 24 + _hexadecimal("0.0.0.1", port)[0]}
    places = {(each, port) for each in (*hosts, "0" * 8, "0" * 32)}
    return any(s.listens and s.local in places and s.uid not in (ROOT, os.geteuid()) for s in tcp_sockets())


def is_anothers(path: Path) -> bool:
    """Return whether the file at `path` is another user's, not root's."""
    try:
        return path.stat().st_uid not in (ROOT, os.geteuid())
    except OSError:
        return False


def _hexadecimal(host: str, port: int) -> tuple[str, int]:
    return f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}", port
