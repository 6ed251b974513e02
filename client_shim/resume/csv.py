"""Resumption of Keras's CSVLogger: its file keeps the rows of saved epochs only."""

import contextlib
import os
from typing import Any

LOGGER = "CSVLogger"  # a class whose attributes describe its open file


def kept(logger: Any) -> dict[str, int]:
    """Return the size of the logger's file, to which each row is written at once."""
    try:
        return {"size": os.stat(logger.filename).st_size}
    except (OSError, AttributeError, TypeError):
        return {}


def go_on(logger: Any, said: dict[str, int]) -> None:
    """Make `logger` append, and cut its file at the size that `kept` saved, because later rows are written again."""
    logger.append = True
    with contextlib.suppress(OSError):
        if os.stat(logger.filename).st_size > said.get("size", float("inf")):
            os.truncate(logger.filename, said["size"])
