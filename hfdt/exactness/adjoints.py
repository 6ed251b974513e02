"""The adjoints of the script's sums and means: the derivatives of the loss by the elements that each of them adds up.

A sum over samples which happens to be 0 for the rows at hand adds nothing to gradients, so these do not tell it from a
mean: a penalty of values out of a range, or a rare label's loss. Its adjoints do. An element's adjoint is 1 in a sum
and 1/n in a mean of n elements, whatever the element is. Where ranks' losses, weighted, add up to the whole batch's,
their adjoints do, too, at every operation. So do sums of the adjoints, in which the order of rows does not matter.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.compat.tensorflow import ops
from fdt.patches import Patch, patched
from fdt.typing import Tensor
from hfdt.exactness.script_lines import line_of_script

_REDUCTIONS = ("Sum", "Mean", "L2Loss", "SegmentSum", "UnsortedSegmentSum")
_NOISE = 1e-6  # adjoints whose absolute values add up to less may be rounding errors


@dataclass(frozen=True)
class Addition:
    """A sum or mean in the script. `adjoint`: of what it adds up, with the shape of its input."""

    line: str
    adjoint: Tensor


@dataclass
class Backward:
    """A backward pass. `results`: the gradients that it returned; `additions`: by type and input."""

    additions: dict[tuple[str, str], Addition] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)

    def add(self, kind: str, tensor: Any, adjoint: Tensor) -> None:
        """Record an addition of this kind if the script made it. TensorFlow tells an input of it, not the operation."""
        lines = (line_of_script(op) for op in tensor.consumers() if op.type == kind)
        key, line = (kind, tensor.name), next(filter(None, lines), "")
        if key in self.additions:
            adjoint += self.additions[key].adjoint
        if line:
            self.additions[key] = Addition(line, adjoint)


@contextlib.contextmanager
def recorded() -> Iterator[list[Backward]]:
    """Record the backward passes of a step that is traced within the context. A step that runs eagerly has none."""
    done: list[Backward] = []
    if tf.executing_eagerly():
        yield done
        return
    graph, running = tf.compat.v1.get_default_graph(), list[Backward]()

    def gradient(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        running.append(Backward())
        try:
            found = original(*args, **kwargs)
        finally:
            done.append(running.pop())
        done[-1].results.extend(tf.nest.flatten(found))
        return found

    def lookup(original: Callable[..., Any], registry: Any, name: str) -> Any:
        function = original(registry, name)
        recording = running and registry is ops.gradient_registry and name in _REDUCTIONS
        return differentiated(name, function) if recording else function

    def differentiated(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(op: Any, *gradients: Any) -> Any:
            found = function(op, *gradients)
            first = tf.nest.flatten(found)[0] if name != "L2Loss" else tf.ones_like(op.inputs[0]) * gradients[0]
            if getattr(first, "graph", None) is graph:
                running[-1].add(name, op.inputs["Segment" in name], first)
            return found

        return call

    registry = type(ops.gradient_registry)
    with patched([Patch(tf.GradientTape, "gradient", gradient), Patch(registry, "lookup", lookup)]):
        yield done


def behind(passes: Iterable[Backward], gradients: Iterable[Any]) -> list[Addition]:
    """Return the additions of the passes that returned any of `gradients`, in the same order on all ranks.

    Another pass has another purpose: its numbers may be an input of the model, or a norm that is not divided.
    """
    used = {id(gradient) for gradient in gradients if gradient is not None}
    kept = [each.additions for each in passes if used & set(map(id, each.results))]
    return [additions[key] for additions in kept for key in sorted(additions)]


def totals(additions: Sequence[Addition], weight: Tensor) -> list[Tensor]:
    """Return a rank's float64 [additions, 2]: the weighted sums of the adjoints, and of their absolute values.

    The list is empty where there are no additions. `weight`: the rank's weight in the exchange, a float64 scalar.
    """
    wide = [tf.cast(each.adjoint, tf.float64) for each in additions]
    pairs = [tf.stack([tf.reduce_sum(each), tf.reduce_sum(tf.abs(each))]) for each in wide]
    return [tf.math.multiply_no_nan(tf.stack(pairs), weight)] if pairs else []


def first_other(ours: Tensor, theirs: Tensor, tolerance: float) -> int:
    """Return the number, from 1, of the first addition whose sums differ by more than `tolerance`, relative; else 0.

    Sums that are not finite do not differ.
    """
    for number, (a, b) in enumerate(zip(np.asarray(ours), np.asarray(theirs), strict=True), 1):
        difference = float(np.max(np.abs(a - b)))
        if math.isfinite(difference) and difference > tolerance * (float(b[1]) + _NOISE):
            return number
    return 0
