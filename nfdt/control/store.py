"""The tensors of a peer, simulated or emulated, and checks of what a program asks of peers."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fdt.errors import UserError
from nfdt.tree import Tree, leaves

Tensor = Tree


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
        """Store the result or results of `function`, read only, because peers may share them by reference.

        Raises:
            UserError: There is no such tensor, `function` calls sys.exit, or it returns more or fewer values than
                `into` has names.
        """
        try:
            result = function(*(self.get(name) for name in names))
        except SystemExit as error:
            raise UserError(f"the function ends the program, by sys.exit({error.code!r})") from None
        targets, values = ([into], [result]) if isinstance(into, str) else (list(into), _values(result))
        if len(values) != len(targets):
            raise UserError(
                f"the function must return {len(targets)} values, for {', '.join(targets)}. Received: {len(values)}"
            )
        for name, value in zip(targets, values, strict=True):
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


def _values(result: Any) -> list[Tensor]:
    """Return a function's several results; one value, if it returned only that."""
    try:
        return [result] if isinstance(result, Mapping) else list(result)
    except TypeError:  # not a sequence
        return [result]


def _frozen(tensor: Tensor) -> Tensor:
    for array in leaves(tensor):
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    return tensor


def check_steps(steps: float) -> None:
    """Raise UserError where `steps` is no duration."""
    if not 0 <= steps < math.inf:
        raise UserError(f"steps must be a finite number, 0 or more. Received: {steps}")


def check_given(acks: Sequence[Any]) -> None:
    """Raise UserError where there is no acknowledgement to wait for."""
    if not acks:
        raise UserError("peers.first needs one acknowledgement or more. Received: none")
