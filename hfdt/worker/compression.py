"""The compressor of a job on one rank, with its state: called between the weighting of gradients and their sum.

State begins anew with every `fit`, and with every restart of a rank. So what a rank has not sent of its gradients by
the end of a `fit` is dropped.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.errors import UserError
from fdt.keras.variables import assign, is_loss_scaled
from fdt.ops import all_finite
from fdt.typing import Tensor, Variable
from hfdt import compressors
from hfdt.compressors import Add, GradientCompressor, Shape

NOT_USED = "--compress is not used: one worker sends nothing"


class GradientCompression:
    """The compressor and its variables.

    Args:
        compressor: The compressor.
        name: Its text, for messages.
    """

    def __init__(self, compressor: GradientCompressor, name: str) -> None:
        self.compressor, self.name = compressor, name
        self._states: dict[Hashable, tuple[list[Variable], list[Tensor]]] = {}  # variables and their first values

    def begin(
        self, gradients: list[Tensor], dense: int, key: Hashable
    ) -> tuple[list[Tensor], Callable[[list[Tensor], Add], list[Tensor]]]:
        """Begin an exchange.

        Args:
            gradients: This rank's weighted gradients.
            dense: The number of those, from the first, that have a fixed shape.
            key: Identifies the variables that the gradients are of.

        Returns:
            A tensor to sum for each gradient, and a function that takes these sums and returns those of the gradients.
        """
        shapes: list[Shape] = [tuple(g.shape) if i < dense else None for i, g in enumerate(gradients)]
        variables = self._variables((key, *shapes), shapes)
        state = [tf.convert_to_tensor(v) for v in variables]

        def end(sums: list[Tensor], add: Add) -> list[Tensor]:
            whole, new = self.compressor.receive(state, gradients, shapes, sums, add)
            finite = all_finite(whole) if variables else None
            for variable, before, after in zip(variables, state, new, strict=True):
                variable.assign(tf.where(finite, after, before))  # a step that is left out was not sent
            return whole

        return self.compressor.send(state, gradients, shapes), end

    def restart(self) -> None:
        """Give all state its first values."""
        for variables, first in self._states.values():
            assign(variables, first)

    def _variables(self, key: Hashable, shapes: Sequence[Shape]) -> list[Variable]:
        if key not in self._states:
            with tf.init_scope():
                first = self.compressor.init(shapes)
                self._states[key] = [tf.Variable(value, trainable=False) for value in first], first
        return self._states[key][0]


def compression_of(trainable: Any, options: Mapping[str, str], size: int) -> GradientCompression | None:
    """Return the compressor that `size` ranks use. Raises UserError for one that the optimizer cannot have."""
    name = options.get("compress", "")
    if name in ("", "auto") or size == 1:  # auto: tuning.py has not chosen yet
        return None
    compressor = compressors.make(name)
    if compressor.feedback and any(map(is_loss_scaled, trainable.flavor.optimizers(trainable.model))):
        raise UserError(
            f"--compress {name} needs an optimizer that does not scale the loss: the gradients sent later would have "
            "another scale. Received: LossScaleOptimizer; use --compress bf16"
        )
    return GradientCompression(compressor, name)
