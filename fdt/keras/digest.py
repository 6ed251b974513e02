"""A pickle in words that do not depend on which equal strings happened to be one object."""

import io
import pickletools
from collections.abc import Iterator
from typing import Any

_STRINGS = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
_GETS = ("BINGET", "LONG_BINGET")


def canonical(pickle: bytes) -> bytes:
    """Bytes that are equal for pickles of equal objects; `pickle` may be several that share a memo, one after another.

    Pickle refers back to a string that it has written if it is the same object, and writes an equal one again: which of
    the two happens changes from one `fit` to the next. Here strings are always written out and not counted.
    """
    return b"\n".join(_words(pickle))


def _words(pickle: bytes) -> Iterator[bytes]:
    memo: list[str | int] = []  # for each memo entry: the string, or its number among the others
    last, others = "", 0
    value: object = None
    for opcode, argument, _ in _operations(pickle):
        if opcode.name in ("MEMOIZE", "FRAME"):
            if opcode.name == "MEMOIZE":
                memo.append(str(value) if last in _STRINGS else others)
                others += last not in _STRINGS
            continue
        last, value = opcode.name, argument
        if last in _GETS and isinstance(argument, int):
            found = memo[argument]
            last, value = ("GET", found) if isinstance(found, int) else (_STRINGS[0], found)
        yield (f"{_STRINGS[0] if last in _STRINGS else last} ".encode()) + _plain(value)


def _operations(pickle: bytes) -> Iterator[Any]:
    stream = io.BytesIO(pickle)
    while stream.tell() < len(pickle):
        yield from pickletools.genops(stream)


def _plain(value: object) -> bytes:
    return bytes(value) if isinstance(value, (bytes, bytearray)) else repr(value).encode()
