"""Code that simulated and emulated peers share: places in the cluster, tensors, checks of commands."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from fdt import tensors
from fdt.errors import UserError
from fdt.network import Cluster, ClusterNode
from fdt.network.topology import topology_of
from fdt.signals import Ended
from nfdt.tree import Tree, leaves

if TYPE_CHECKING:
    from typing_extensions import Self

Tensor = Tree


class ClusterPeer:
    """One node. `index`, `name` and `layer` come from the cluster file; commands set everything else."""

    def __init__(self, peers: "ClusterPeers[Any]", node: ClusterNode) -> None:
        self.index, self.name, self.layer = node.index, node.name, node.group.layer
        self._all = peers

    @property
    def above(self) -> "Self | None":
        """The parent in a tree, the edge of a terminal, the cloud of an edge."""
        index = self._all.topology.above.get(self.index)
        return None if index is None else self._all[index]

    @property
    def below(self) -> "list[Self]":
        """The peers whose `above` is this peer."""
        return [peer for peer in self._all if peer.above is self]

    def __repr__(self) -> str:
        return f"<peer {self.name}>"


AnyPeer = TypeVar("AnyPeer", bound=ClusterPeer)


class ClusterPeers(Sequence[AnyPeer]):
    """All peers of a cluster, in the order of the cluster file. `make` returns the peer of a node."""

    def __init__(self, cluster: Cluster, make: Callable[[ClusterNode], AnyPeer]) -> None:
        self.cluster, self.topology = cluster, topology_of(cluster)
        self._peers = [make(node) for node in cluster.nodes]

    @overload
    def __getitem__(self, index: int) -> AnyPeer: ...
    @overload
    def __getitem__(self, index: slice) -> list[AnyPeer]: ...
    def __getitem__(self, index: int | slice) -> AnyPeer | list[AnyPeer]:
        return self._peers[index]

    def __len__(self) -> int:
        return len(self._peers)

    def of(self, layer: str) -> list[AnyPeer]:
        """Return the peers of a layer: "terminal", "edge" or "cloud"."""
        return [peer for peer in self._peers if peer.layer == layer]


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
        except Ended:  # a signal has ended the program, which simulates this peer
            raise
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


def flat_numbers(name: str, tensor: Tensor) -> tuple[str, list[np.ndarray]]:
    """Return the structure of a tensor that is to be sent, and its arrays. Raises UserError where it is not of numbers.

    A masked array would arrive without its mask, and a matrix as an array, whose `*` is another operation.
    """
    skeleton, values = tensors.flatten(tensor)
    arrays = [np.asarray(value) for value in values]
    for value, array in zip(values, arrays, strict=True):
        if array.dtype.name not in tensors.NUMBERS or isinstance(value, (np.ma.MaskedArray, np.matrix)):
            received = array.dtype.name if array.dtype.name not in tensors.NUMBERS else type(value).__name__
            raise UserError(f"links take arrays of numbers only. Received: {received} in {name}")
    return skeleton, arrays


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
