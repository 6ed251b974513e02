"""Keras's CSVLogger, in a fit that goes on: its file keeps the rows of epochs that are over, and no others."""

import contextlib
import os
from typing import Any

LOGGER = "CSVLogger"  # whose attributes are about the file that it has open


def kept(logger: Any) -> dict[str, int]:
    """How far its file goes, to which each row is written at once."""
    try:
        return {"size": os.stat(logger.filename).st_size}
    except (OSError, AttributeError, TypeError):
        return {}


def go_on(logger: Any, said: dict[str, int]) -> None:
    """Have `logger` append, behind what `kept` said: rows written just before the interruption come again."""
    logger.append = True
    with contextlib.suppress(OSError):
        if os.stat(logger.filename).st_size > said.get("size", float("inf")):
            os.truncate(logger.filename, said["size"])
