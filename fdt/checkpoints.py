"""A checkpoint on disk: one file, there whole or not at all, and told from a damaged one when it is read.

    8 bytes "FDTCKPT1" | 8 bytes, little endian: length of the header | header, JSON | packed arrays | 32 bytes BLAKE2b

The digest is over all that stands before it. Nothing in a file is pickled: reading one runs no code of it.
"""

import contextlib
import hashlib
import json
import os
import secrets
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fdt import tensors
from fdt.tensors import Array

MAGIC = b"FDTCKPT1"
_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = 32


class Damaged(Exception):
    """The file is no whole checkpoint; the message says why."""


def write(path: Path, header: dict[str, Any], arrays: Sequence[Array]) -> None:
    """Write aside, sync to disk, rename: a reader finds the file before or this one. Raises OSError; nothing stays."""
    text = json.dumps(header).encode()
    replace(path, (MAGIC, _LENGTH.pack(len(text)), text, tensors.pack(arrays)), digest=True)


def replace(path: Path, parts: Sequence[bytes | bytearray], *, digest: bool = False) -> None:
    """Put a file of `parts`, and their digest, in the place of `path`, readable to the user alone. Raises OSError."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            sum_ = hashlib.blake2b(digest_size=_DIGEST_BYTES)
            for part in parts:
                file.write(part)
                sum_.update(part)
            if digest:
                file.write(sum_.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    _sync_directory(path.parent)


def read(path: Path) -> tuple[dict[str, Any], list[Array]]:
    """(header, arrays). Raises Damaged, OSError."""
    data = memoryview(path.read_bytes())
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if data[: len(MAGIC)] != MAGIC:
        raise Damaged("it does not begin as one")
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        raise Damaged(f"its {len(data):,} bytes do not add up")
    start = len(MAGIC) + _LENGTH.size
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    try:
        return json.loads(bytes(body[start : start + length])), tensors.unpack(body[start + length :])
    except ValueError as error:
        raise Damaged(str(error)) from None


def _sync_directory(directory: Path) -> None:
    """So that a rename outlives a power cut. Some file systems have no such thing."""
    with contextlib.suppress(OSError):
        held = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(held)
        finally:
            os.close(held)
