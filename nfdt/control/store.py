"""A peer's tensors, simulated or emulated: what it computed, and what has come and was not waited for yet."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fdt.errors import UserError
from nfdt.tree import leaves

Tensor = Any  # an array, or a tree of arrays (nfdt/tree.py)


class Store:
    """By name. What comes is kept apart, in its order, until it is taken."""

    def __init__(self, owner: str = "the peer") -> None:
        self._owner = owner
        self._tensors: dict[str, Tensor] = {}
        self._arrived: dict[str, deque[Tensor]] = {}

    def get(self, name: str) -> Tensor:
        """Raises UserError when it is not there."""
        if name not in self._tensors:
            known = ", ".join(self._tensors) or "none"
            raise UserError(f"{self._owner} must have the tensor it is to use. Received: {name}; it has {known}")
        return self._tensors[name]

    def compute(self, into: str | Sequence[str], function: Callable[..., Tensor], names: Sequence[str]) -> None:
        """Keep the result of `function`, or its results, read only: peers may share them by reference."""
        result = function(*(self.get(name) for name in names))
        targets = [into] if isinstance(into, str) else list(into)
        for name, value in zip(targets, [result] if isinstance(into, str) else result, strict=True):
            self._tensors[name] = _frozen(value)

    def deliver(self, name: str, tensor: Tensor) -> None:
        self._arrived.setdefault(name, deque()).append(tensor)

    def take(self, name: str) -> bool:
        """Make the first `name` that has come the peer's own. False: none has."""
        if not self._arrived.get(name):
            return False
        self._tensors[name] = self._arrived[name].popleft()
        return True


def _frozen(tensor: Tensor) -> Tensor:
    for array in leaves(tensor):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return tensor
