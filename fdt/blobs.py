"""The store of large data: files in one host's shared memory, mapped by every process that reads them.

A blob is written once and read by mapping, so a data set is in memory once however many ranks read it. Containers often
have only 64 MB of shared memory. A blob without room there becomes a file on disk, to which the store has a link.
Callers on other hosts use BlobService (fdt/service/blobs.py), which has the same interface.
"""

import contextlib
import errno
import fcntl
import io
import mmap
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from fdt import shm_reaper, tensors
from fdt.errors import UserError
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.security import is_private
from fdt.shm_reaper import DISK
from fdt.signals import shielded
from fdt.tensors import Buffer
from fdt.typing import Array

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "fdt-"
COPY_BYTES = 1 << 20
LOCK = ".lock"  # locked while the store's owner lives; the kernel unlocks it at its end


class Blobs(Protocol):
    """A store of bytes and arrays that the job's other processes can read."""

    def put(self, data: Buffer) -> BlobRef:
        """Store bytes; return the blob's reference. Raises UserError when there is no room."""

    def put_arrays(self, arrays: Sequence[Array]) -> BlobRef:
        """Store arrays as in fdt/tensors.py; return the blob's reference. Raises UserError when there is no room."""

    def get(self, ref: BlobRef) -> memoryview:
        """Return the blob's bytes, read only. Raises KeyError when it does not exist."""

    def get_arrays(self, ref: BlobRef) -> list[Array]:
        """Return read-only views of the arrays, valid as long as they are referenced, even after `drop`."""

    def drop(self, ref: BlobRef) -> None:
        """Remove the blob, if it exists."""


class LocalBlobs:
    """Blobs as files of `directory`, mapped into memory. The ids of those that are put here begin with `holder`."""

    def __init__(self, directory: Path, holder: str = "") -> None:
        self.directory, self._holder = directory, holder
        self._shm_reaper: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None

    @classmethod
    def create(cls, root: Path | None = None) -> "LocalBlobs":
        """Create a private store in shared memory, or in `root`. It is removed at this process's end, also if killed.

        Stores whose owners were killed together with their shm reapers are removed, too.
        """
        root = root or (SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir()))
        for left in root.glob(f"{PREFIX}*"):
            _remove_if_left(left)
        store = cls(root / f"{PREFIX}{secrets.token_hex(8)}")
        store._shm_reaper = start_reaper(store.directory)
        try:
            store.directory.mkdir(mode=0o700)
            store._lock = _locked(store.directory / f"{LOCK}.new")
            os.rename(store.directory / f"{LOCK}.new", store.directory / LOCK)  # visible only when locked
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def open(cls, directory: str, holder: str = "") -> "LocalBlobs":
        """Return the store that another process created."""
        return cls(Path(directory), holder)

    def is_store(self) -> bool:
        """Return whether the directory is a store that `create` made for this user."""
        directory = self.directory
        return is_private(directory) and directory.name.startswith(PREFIX) and (directory / LOCK).is_file()

    def holds(self, name: str) -> bool:
        """Return whether a blob of this name exists, which is so only on the host (and mount) that made it."""
        return name.isalnum() and os.access(self.directory / name, os.R_OK)

    def put(self, data: Buffer) -> BlobRef:
        ref, out = self._allocate(len(data))
        if out is not None:
            out[:] = data
        return ref

    def put_parts(self, parts: Iterable[Buffer]) -> BlobRef:
        """Store a blob of parts that arrive one by one. If they end in an error, the blob is removed."""
        ref = BlobRef(id=self._new_id())
        file = self._new(ref.id, 0)
        try:
            for part in parts:
                if not _written(file, part):
                    file = self._moved(file, ref)
                    if not _written(file, part):
                        raise self._full("more bytes")
                ref.nbytes += len(part)
        except BaseException:
            self.drop(ref)
            raise
        finally:
            file.close()
        return ref

    def put_arrays(self, arrays: Sequence[Array]) -> BlobRef:
        ref, out = self._allocate(tensors.packed_size(arrays))
        assert out is not None, "packed arrays are never empty"
        tensors.pack_into(arrays, memoryview(out))
        return ref

    def get(self, ref: BlobRef) -> memoryview:
        if not ref.nbytes:
            return memoryview(b"")
        try:
            with open(self.directory / _checked(ref.id), "rb") as file:
                return memoryview(mmap.mmap(file.fileno(), ref.nbytes, prot=mmap.PROT_READ))
        except (FileNotFoundError, ValueError):  # it does not exist, or is smaller
            raise KeyError(ref.id) from None

    def get_arrays(self, ref: BlobRef) -> list[Array]:
        return tensors.unpack(self.get(ref))

    def keep(self, ref: BlobRef) -> BlobRef:
        """Return a second name of the same bytes, without a copy. Each name is dropped separately."""
        name, old = secrets.token_hex(8), self.directory / _checked(ref.id)
        if old.is_symlink():
            os.link(os.readlink(old), self._disk() / name)
            os.symlink(self._disk() / name, self.directory / name)
        else:
            os.link(old, self.directory / name)
        return BlobRef(id=name, nbytes=ref.nbytes)

    def drop(self, ref: BlobRef) -> None:
        if ref.id.isalnum():  # no blob has another name
            path = self.directory / ref.id
            with contextlib.suppress(OSError):  # not a link: the blob is in shared memory
                os.unlink(os.readlink(path))
            path.unlink(missing_ok=True)

    def drop_of(self, holder: str) -> None:
        """Remove the blobs whose ids begin with `holder`."""
        for directory in (self.directory, self.directory / DISK):
            with contextlib.suppress(FileNotFoundError):  # the store is being removed
                for name in os.listdir(directory):  # glob would keep each pattern, compiled
                    if name.startswith(_checked(holder)):
                        (directory / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the store and all its blobs."""
        shm_reaper.remove(self.directory)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)
        beside, self._shm_reaper = self._shm_reaper, None
        if beside is not None:
            beside.kill()
            beside.wait()

    def _allocate(self, nbytes: int) -> tuple[BlobRef, mmap.mmap | None]:
        ref = BlobRef(id=self._new_id(), nbytes=nbytes)
        with self._new(ref.id, nbytes) as file:
            return ref, mmap.mmap(file.fileno(), nbytes) if nbytes else None

    def _new_id(self) -> str:
        return self._holder + secrets.token_hex(8)

    def _new(self, name: str, nbytes: int, *, on_disk: bool = False) -> io.FileIO:
        """Return a new open file of that size and name."""
        try:
            if not on_disk:
                return _sized(self.directory / name, nbytes)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        try:
            file = _sized(self._disk() / name, nbytes)
            os.symlink(self._disk() / name, self.directory / name)
            return file
        except OSError as error:
            raise self._full(f"{nbytes:,} bytes more", error) from None

    def _moved(self, file: io.FileIO, ref: BlobRef) -> io.FileIO:
        """Move the file of `ref` to disk; return it open at its end."""
        with file:
            self.drop(ref)  # removes the name; the open file remains
            moved = self._new(ref.id, 0, on_disk=True)
            file.seek(0)
            left = ref.nbytes
            while left:
                part = file.read(min(left, COPY_BYTES))
                if not part or not _written(moved, part):
                    moved.close()
                    raise self._full("more bytes")
                left -= len(part)
        return moved

    def directory_for(self, nbytes: int) -> Path:
        """Return a directory for another library's `nbytes`, removed with the store: on disk if memory has no room."""
        return self.directory if shutil.disk_usage(self.directory).free >= nbytes else self._disk()

    def _disk(self) -> Path:
        """Return the private directory on disk for blobs without room in memory; it is made at the first call."""
        link = self.directory / DISK
        if not link.is_symlink():
            made = tempfile.mkdtemp(prefix=PREFIX)
            try:
                os.symlink(made, link)
            except FileExistsError:  # another process was first
                os.rmdir(made)
        return Path(os.readlink(link))

    def _full(self, what: str, error: OSError | None = None) -> UserError:
        received = error or os.strerror(errno.ENOSPC)
        return UserError(f"{self.directory} and {tempfile.gettempdir()} have no room for {what}: {received}")


def start_reaper(directory: Path) -> "subprocess.Popen[bytes]":
    """Start the shm reaper, which removes the store if this process is killed. The store need not exist yet."""
    argv = [sys.executable, "-I", "-S", shm_reaper.__file__, str(directory), str(os.getpid())]
    nothing = subprocess.DEVNULL
    with shielded():
        return subprocess.Popen(argv, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)


def _sized(path: Path, nbytes: int) -> io.FileIO:
    """Return a new file of zeros. A full file system is an error here instead of a bus error (SIGBUS) later."""
    file = io.FileIO(path, "xb+")
    try:
        if nbytes:
            os.posix_fallocate(file.fileno(), 0, nbytes)
        return file
    except OSError:
        file.close()
        path.unlink()
        raise


def _written(file: io.FileIO, part: Buffer) -> bool:
    """Append `part`; return False when there is no room for all of it."""
    view = memoryview(part)
    try:
        while view:
            view = view[file.write(view) :]
        return True
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False


def _locked(path: Path) -> int | None:
    """Lock a store by this file; return None when another process has locked it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return lock
    except OSError:
        os.close(lock)
        return None


def _remove_if_left(directory: Path) -> None:
    """Remove a store of this user that is not locked. One without a lock file is just being created."""
    with contextlib.suppress(OSError):
        if directory.lstat().st_uid == os.geteuid() and (directory / LOCK).exists():
            lock = _locked(directory / LOCK)
            if lock is not None:
                shm_reaper.remove(directory)
                os.close(lock)


def _checked(name: str) -> str:
    if not name.isalnum():
        raise KeyError(name)
    return name
