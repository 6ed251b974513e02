"""Where large bytes live: files of one host's shared memory, mapped by every process that needs them.

A blob is written once and read by mapping, so a data set is in memory once however many ranks read it. Callers on
another host go through BlobService (fdt/service/blobs.py), which has the same face.
"""

import contextlib
import fcntl
import mmap
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from fdt import tensors
from fdt.errors import UserError
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.tensors import Array, Buffer

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "fdt-"
LOCK = ".lock"  # held as long as the store's owner lives, however it ends


class Blobs(Protocol):
    """Puts bytes and arrays where the job's other processes can read them."""

    def put(self, data: Buffer) -> BlobRef: ...

    def put_arrays(self, arrays: Sequence[Array]) -> BlobRef: ...

    def get(self, ref: BlobRef) -> memoryview:
        """The blob's bytes, read only. Raises KeyError when it is not there."""
        ...

    def get_arrays(self, ref: BlobRef) -> list[Array]:
        """Read-only views, valid as long as they are held, even after `drop`."""
        ...

    def drop(self, ref: BlobRef) -> None:
        """Forget the blob; dropping what is not there is fine."""
        ...


class LocalBlobs:
    """Blobs as files of `directory`, mapped into memory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock: int | None = None

    @classmethod
    def create(cls) -> "LocalBlobs":
        """A store of its own, private to the user, in shared memory. Stores whose owners were killed are removed."""
        root = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        for left in root.glob(f"{PREFIX}*"):
            _remove_if_left(left)
        store = cls(Path(tempfile.mkdtemp(prefix=PREFIX, dir=root)))
        store._lock = _locked(store.directory / f"{LOCK}.new")
        os.rename(store.directory / f"{LOCK}.new", store.directory / LOCK)  # whoever sees it finds it held
        return store

    @classmethod
    def open(cls, directory: str) -> "LocalBlobs":
        """The store that another process created."""
        return cls(Path(directory))

    def holds(self, name: str) -> bool:
        """Whether a blob of this name is there: true only on the host (and mount) that made it."""
        return bool(name) and os.access(self.directory / _checked(name), os.R_OK)

    def put(self, data: Buffer) -> BlobRef:
        ref, out = self._allocate(len(data))
        if out is not None:
            out[:] = data
        return ref

    def put_parts(self, parts: Iterable[Buffer]) -> BlobRef:
        """A blob of parts that come one by one; nothing is left of it when they end in an error."""
        ref = BlobRef(id=secrets.token_hex(8))
        try:
            with open(self.directory / ref.id, "xb") as file:
                for part in parts:
                    ref.nbytes += file.write(part)
        except OSError as error:
            self.drop(ref)
            raise UserError(f"{self.directory} must have room for more bytes. Received: {error}") from None
        except BaseException:
            self.drop(ref)
            raise
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
        except (FileNotFoundError, ValueError):  # not there, or not as large as that
            raise KeyError(ref.id) from None

    def get_arrays(self, ref: BlobRef) -> list[Array]:
        return tensors.unpack(self.get(ref))

    def keep(self, ref: BlobRef) -> BlobRef:
        """The same bytes under another name: each is dropped by itself. Nothing is copied."""
        name = secrets.token_hex(8)
        os.link(self.directory / _checked(ref.id), self.directory / name)
        return BlobRef(id=name, nbytes=ref.nbytes)

    def drop(self, ref: BlobRef) -> None:
        if ref.id:
            (self.directory / _checked(ref.id)).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the store and all it holds."""
        shutil.rmtree(self.directory, ignore_errors=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def close_if_left(self, wait_s: float) -> None:
        """For those who only opened the store: remove it once its owner is gone, which may take a moment to show."""
        deadline = time.monotonic() + wait_s
        while not _remove_if_left(self.directory) and self.directory.exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _allocate(self, nbytes: int) -> tuple[BlobRef, mmap.mmap | None]:
        ref = BlobRef(id=secrets.token_hex(8), nbytes=nbytes)
        with open(self.directory / ref.id, "xb+") as file:
            if not nbytes:
                return ref, None
            try:
                os.posix_fallocate(file.fileno(), 0, nbytes)  # a full /dev/shm is an error here, not a bus error later
            except OSError as error:
                self.drop(ref)
                raise UserError(
                    f"{self.directory} must have room for {nbytes:,} bytes more. Received: {error}"
                ) from None
            return ref, mmap.mmap(file.fileno(), nbytes)


def _locked(path: Path) -> int | None:
    """Lock a store by this file; None when another process holds it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return lock
    except OSError:
        os.close(lock)
        return None


def _remove_if_left(directory: Path) -> bool:
    """Remove a store of ours that nobody holds. One without a lock is just being made."""
    with contextlib.suppress(OSError):
        if directory.lstat().st_uid == os.geteuid() and (directory / LOCK).exists():
            lock = _locked(directory / LOCK)
            if lock is not None:
                shutil.rmtree(directory, ignore_errors=True)
                os.close(lock)
                return True
    return False


def _checked(name: str) -> str:
    if not name.isalnum():
        raise KeyError(name)
    return name
