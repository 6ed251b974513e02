"""Keras's CSVLogger, in a fit that goes on: its file keeps the rows of epochs that are over, and no others."""

import contextlib
from pathlib import Path
from typing import Any

LOGGER = "CSVLogger"  # whose attributes are about the file that it has open


def go_on(logger: Any, first: int) -> None:
    """Have `logger` append. Rows from epoch `first` on were written just before the interruption: they come again."""
    logger.append = True
    with contextlib.suppress(OSError, ValueError):
        file = Path(logger.filename)
        lines = file.read_bytes().splitlines(keepends=True)
        while len(lines) > 1 and int(lines[-1].split(logger.sep.encode())[0]) >= first:
            lines.pop()
        file.write_bytes(b"".join(lines))
