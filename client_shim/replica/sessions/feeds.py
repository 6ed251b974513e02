"""A call of `Session.run`, and the analysis of its feeds: which arrays hold the rows of the batch."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class SessionCall:
    """A call of `Session.run`, the `original`."""

    original: Callable[..., Any]
    session: Any
    options: Any = None
    metadata: Any = None

    def run(self, fetches: Any, feeds: Any) -> Any:
        """Run the session with the script's own options."""
        return self.original(self.session, fetches, feeds, self.options, self.metadata)

    def plainly(self, fetches: Any, feeds: Any = None) -> Any:
        """Run the session without the script's own options."""
        return self.original(self.session, fetches, feeds)


Feeds = Mapping[Any, Any]  # arrays by tensor


def rows_of(feeds: Feeds) -> int | None:
    """Return the rows of the batch; None where no fed array has rows."""
    counts = Counter(len(value) for tensor, value in feeds.items() if _is_open(tensor) and np.ndim(value))
    return counts.most_common(1)[0][0] if counts else None


def fixed(feeds: Feeds, rows: int | None) -> str:
    """Return the name of a tensor that is fed a batch but has a fixed number of rows; "" for none."""
    for tensor, value in feeds.items():
        if _takes_rows(tensor) and not _is_open(tensor) and np.ndim(value) and rows in (None, len(value)):
            return str(tensor.name)
    return ""


def divided(feeds: Feeds, rows: int) -> list[Any]:
    """Return the tensors that are fed a part of the batch."""
    return [tensor for tensor, value in feeds.items() if _is_open(tensor) and np.ndim(value) and len(value) == rows]


def between(feeds: Feeds, rows: int, low: int, high: int) -> dict[Any, Any]:
    """Return `feeds` with rows `low` to `high` of the batch."""
    parts = set(map(id, divided(feeds, rows)))
    return {tensor: value[low:high] if id(tensor) in parts else value for tensor, value in feeds.items()}


def arrays(feeds: Feeds) -> dict[Any, Any]:
    """Return `feeds` with lists converted to arrays, so that they are converted only once."""
    return {tensor: _as_array(tensor, value) for tensor, value in feeds.items()}


def _as_array(tensor: Any, value: Any) -> Any:
    if _takes_rows(tensor) and isinstance(value, (list, tuple)):
        return np.asarray(value, tensor.dtype.base_dtype.as_numpy_dtype)
    return value


def _takes_rows(tensor: Any) -> bool:
    return isinstance(tensor, tf.Tensor) and tensor.shape.rank != 0


def _is_open(tensor: Any) -> bool:
    return _takes_rows(tensor) and (tensor.shape.rank is None or tensor.shape.as_list()[0] is None)
