"""Entries of a folder as a rank other than 0 sees it: those of the real folder, and those of its scratch folder."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

scandir = os.scandir  # saved before it is patched


class _Entry(os.PathLike[Any]):
    """An os.DirEntry of the scratch folder, by the script's name for it."""

    def __init__(self, entry: Any, path: Any) -> None:
        self._entry, self.path = entry, path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def __fspath__(self) -> Any:
        return self.path


class Entries(contextlib.AbstractContextManager["Entries"]):
    """An iterator as os.scandir returns one; where both folders have a name, the scratch folder's entry counts.

    Args:
        scratch: The path of the scratch folder.
        real: The path of the real folder, as the script has it.
    """

    def __init__(self, scratch: Any, real: Any) -> None:
        scratch = os.fsencode(scratch) if isinstance(real, bytes) else scratch
        found: dict[Any, Any] = {}
        with contextlib.suppress(OSError), scandir(real) as others:  # rank 0 may remove it meanwhile
            found.update({entry.name: entry for entry in others})
        with scandir(scratch) as own:
            found.update({entry.name: _Entry(entry, os.path.join(real, entry.name)) for entry in own})
        self._entries: Iterator[Any] = iter(found.values())

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the entries that are left."""
        self._entries = iter(())
