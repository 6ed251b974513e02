"""Tensors of a peer, simulated or emulated: computed ones, and arrived ones for which it has not waited yet."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fdt.errors import UserError
from nfdt.tree import leaves

Tensor = Any  # an array, or a tree of arrays (nfdt/tree.py)


class Store:
    """Tensors by name. Arrived tensors are kept separately, in order, until they are taken."""

    def __init__(self, owner: str = "the peer") -> None:
        self._owner = owner
        self._tensors: dict[str, Tensor] = {}
        self._arrived: dict[str, deque[Tensor]] = {}

    def get(self, name: str) -> Tensor:
        """Return a tensor. Raises UserError if it does not exist."""
        if name not in self._tensors:
            known = ", ".join(self._tensors) or "none"
            raise UserError(f"{self._owner} has no tensor {name}; it has {known}")
        return self._tensors[name]

    def compute(self, into: str | Sequence[str], function: Callable[..., Tensor], names: Sequence[str]) -> None:
        """Store the result or results of `function`, read only, because peers may share them by reference."""
        result = function(*(self.get(name) for name in names))
        targets = [into] if isinstance(into, str) else list(into)
        for name, value in zip(targets, [result] if isinstance(into, str) else result, strict=True):
            self._tensors[name] = _frozen(value)

    def deliver(self, name: str, tensor: Tensor) -> None:
        """Add an arrived tensor."""
        self._arrived.setdefault(name, deque()).append(tensor)

    def take(self, name: str) -> bool:
        """Store the first arrived tensor `name` as the peer's own. Return False if none has arrived."""
        if not self._arrived.get(name):
            return False
        self._tensors[name] = self._arrived[name].popleft()
        return True


def _frozen(tensor: Tensor) -> Tensor:
    for array in leaves(tensor):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return tensor
