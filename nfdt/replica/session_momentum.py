"""A TensorFlow 1 optimizer's own momentum, off for one update: nfdt/model/momentum.py's for Keras's, in a session's
slots.

    Momentum    its accumulator is 0, and it is given u (with Nesterov's u / (1 + mu)): w <- w - eta u
    Adam        its first moment becomes (1 - beta1) / beta1 (u - g), and it is given g: (1 - beta1) u comes of that

u = mu v + g is the rule's direction, g its fresh gradient. Only where the optimizer is given what was taken: of a
direction that the script clips, or scales, no momentum is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tensorflow.python.training import adam, momentum

from client_shim.replica.sessions.gradients import GradientNode
from nfdt.replica.session_optimizers import Applied

Array = Any
_MOMENTS = {momentum.MomentumOptimizer: ("_momentum", "momentum"), adam.AdamOptimizer: ("_beta1", "m")}


@dataclass(frozen=True)
class Momentum:
    """Of the update that all of one call's gradients go to. `mu`: MomentumOptimizer's momentum, Adam's beta1."""

    optimizer: Any
    mu: float
    slots: Sequence[Any]  # variables

    def off(self, direction: Sequence[Array], fresh: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """What to give the optimizer as gradients, and what its slots must hold then."""
        if isinstance(self.optimizer, adam.AdamOptimizer):
            scale = (1.0 - self.mu) / self.mu
            return list(fresh), [scale * (u - g) for u, g in zip(direction, fresh, strict=True)]
        by = 1.0 + self.mu if self.optimizer._use_nesterov else 1.0
        return [u / by for u in direction], [np.zeros_like(u) for u in direction]


def momentum_of(taken: GradientNode, applied: Sequence[Applied], variables: Sequence[Any]) -> Momentum | None:
    """None where it cannot be off. `applied`: the updates that `taken`'s variables get."""
    kind = _MOMENTS.get(type(applied[0].optimizer)) if len(applied) == 1 else None
    if kind is None:
        return None
    (each,), (attribute, slot) = applied, kind
    mu = getattr(each.optimizer, attribute)
    direct = each.gradients <= {str(tensor.name) for tensor in taken.outputs}
    if not direct or not isinstance(mu, float) or not 0 < mu < 1 or each.variables != set(taken.variables):
        return None
    if any(taken.sparse) and slot == "momentum":  # rows that a batch has not keep theirs
        return None
    return Momentum(each.optimizer, mu, [each.optimizer.get_slot(v, slot) for v in variables])
