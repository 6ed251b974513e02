"""Switches off a TensorFlow 1 optimizer's momentum for one update, as nfdt/model/momentum.py does for Keras.

    Momentum    its accumulator is set to 0, and it receives u (with Nesterov's u / (1 + mu)): w <- w - eta u
    Adam        its first moment is set to (1 - beta1) / beta1 (u - g), and it receives g: the result is (1 - beta1) u

u = mu v + g is the algorithm's direction, g its fresh gradient. This works only if the optimizer receives the computed
gradients themselves: a direction that the script clips or scales loses its momentum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from client_shim.replica.sessions.gradients import GradientNode
from fdt.compat.sessions import adam, momentum
from fdt.typing import Array
from nfdt.replica.session_optimizers import Applied

_MOMENTS = {momentum.MomentumOptimizer: ("_momentum", "momentum"), adam.AdamOptimizer: ("_beta1", "m")}


@dataclass(frozen=True)
class Momentum:
    """Momentum of the update that gets all gradients of one call. `mu`: MomentumOptimizer's momentum, Adam's beta1."""

    optimizer: Any
    mu: float
    slots: Sequence[Any]  # variables

    def off(self, direction: Sequence[Array], fresh: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """Return the gradients for the optimizer, and the values that its slots need before the update."""
        if isinstance(self.optimizer, adam.AdamOptimizer):
            scale = (1.0 - self.mu) / self.mu
            return list(fresh), [scale * (u - g) for u, g in zip(direction, fresh, strict=True)]
        by = 1.0 + self.mu if self.optimizer._use_nesterov else 1.0
        return [u / by for u in direction], [np.zeros_like(u) for u in direction]


def momentum_of(taken: GradientNode, applied: Sequence[Applied], variables: Sequence[Any]) -> Momentum | None:
    """Return the momentum, or None if it cannot be off. `applied`: the updates of the node's variables."""
    kind = _MOMENTS.get(type(applied[0].optimizer)) if len(applied) == 1 else None
    if kind is None:
        return None
    (each,), (attribute, slot) = applied, kind
    mu = getattr(each.optimizer, attribute)
    direct = each.gradients <= {str(tensor.name) for tensor in taken.outputs}
    if not direct or not isinstance(mu, float) or not 0 < mu < 1 or each.variables != set(taken.variables):
        return None
    if any(taken.sparse) and slot == "momentum":  # rows that a batch lacks keep their accumulator
        return None
    return Momentum(each.optimizer, mu, [each.optimizer.get_slot(v, slot) for v in variables])
