"""One checkpoint as a file: either complete or absent; damage is detected when it is read.

Nothing in it is pickled, so reading it runs no code from it:

    8 bytes "FDTCKPT1" | 8 bytes, little endian: length of the header | header, JSON | packed arrays | 32 bytes BLAKE2b

The digest covers all bytes before it. The header has the file's name: no other checkpoint can take its place.
"""

import contextlib
import hashlib
import json
import os
import secrets
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fdt import tensors
from fdt.typing import Array

NAME = "file"  # an entry of the header
MAGIC = b"FDTCKPT1"
DIGEST_BYTES = 32
_LENGTH = struct.Struct("<Q")


class Damaged(Exception):
    """The file is not a complete checkpoint; the message states the reason."""


def write_checkpoint(path: Path, header: dict[str, Any], arrays: Sequence[Array]) -> None:
    """Write a checkpoint atomically: to a temporary file, synced to disk, then renamed. Raises OSError.

    A reader finds the old file or the new one. After an error the temporary file is removed.
    """
    text = json.dumps({**header, NAME: path.name}).encode()
    replace_file(path, (MAGIC, _LENGTH.pack(len(text)), text, tensors.pack(arrays)), digest=True)


def replace_file(path: Path, parts: Sequence[bytes | bytearray], *, digest: bool = False) -> None:
    """Replace `path` by a file of `parts`, and their digest, readable to the user alone. Raises OSError."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            sum_ = hashlib.blake2b(digest_size=DIGEST_BYTES)
            for part in parts:
                file.write(part)
                sum_.update(part)
            if digest:
                file.write(sum_.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        with contextlib.suppress(OSError):  # it is gone once it has replaced the file
            aside.unlink()
    _sync_directory(path.parent)


def read_checkpoint(path: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> tuple[dict[str, Any], list[Array]]:
    """Return (header, arrays) of what `read` returns. Raises Damaged, OSError."""
    data = memoryview(read(path))
    body, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if data[: len(MAGIC)] != MAGIC:
        raise Damaged("it does not begin like a checkpoint")
    if hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest() != digest:
        raise Damaged(f"the checksum of its {len(data):,} bytes is wrong")
    start = len(MAGIC) + _LENGTH.size
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    try:
        header, arrays = json.loads(bytes(body[start : start + length])), tensors.unpack(body[start + length :])
    except (ValueError, RecursionError) as error:
        raise Damaged(str(error)) from None
    if not isinstance(header, dict):
        raise Damaged("its header is no JSON object")
    if (name := header.pop(NAME, path.name)) != path.name:
        raise Damaged(f"it is {name} under another name")
    return header, arrays


def _sync_directory(directory: Path) -> None:
    """Sync a directory, so that a rename survives a power failure. Some file systems do not support it."""
    with contextlib.suppress(OSError):
        held = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(held)
        finally:
            os.close(held)
