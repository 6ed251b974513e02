"""A worker's step: weights in, gradient and forward changes out. The gradient is Keras's own `train_step`.

The outermost optimizer's apply is replaced, within, by noting what it was given; so custom training steps, losses,
sample weights, regularisers and metrics are Keras's work. Loss scaling is undone here, with the scale that this step
used, for the server's may have moved on; the server scales again with its own.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, ResourceVariable  # no public hook

from fdt.compiled import call_flat
from fdt.errors import CaptureError
from fdt.keras.variables import tensor_variable
from fdt.trainable import Trainable
from nfdt.server.shards import Ownership, carried_others, own
from nfdt.transport.client import Outgoing
from nfdt.variables import is_loss_scaled, loss_scale

Tensor = Any
_ASSIGNS = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update")


@contextlib.contextmanager
def assignments() -> Iterator[set[int]]:
    """Ids of the tf.Variables that are assigned to within, while traced or run."""
    assigned: set[int] = set()

    def noting(original: Any) -> Any:
        def assign(self: Any, *args: Any, **kwargs: Any) -> Any:
            assigned.add(id(self))
            return original(self, *args, **kwargs)

        return assign

    # TensorFlow gives the subclass copies of some of these methods.
    owners = (BaseResourceVariable, ResourceVariable)
    methods = [(owner, name, vars(owner)[name]) for owner in owners for name in _ASSIGNS if name in vars(owner)]
    for owner, name, original in methods:
        setattr(owner, name, noting(original))
    try:
        yield assigned
    finally:
        for owner, name, original in methods:
            setattr(owner, name, original)


@dataclass(frozen=True)
class Found:
    """What tracing found out: which gradients exist, which other variables the forward pass changes."""

    present: list[int]
    changed: list[int]


class Computed(NamedTuple):
    """One step's result: a gradient by trainable variable, what the forward pass added to which of `others`."""

    gradient: list[Tensor | None]
    changes: list[Tensor]
    changed: list[int]
    logs: dict[str, Tensor]
    finite: bool


class Step:
    """The compiled gradient of one built model; kept as long as the model is."""

    def __init__(self, trainable: Trainable) -> None:
        self._trainable, self._model = trainable, trainable.model
        self._others = carried_others(trainable)
        self._found: Found | None = None
        self._assigns: dict[tuple[tuple[int, int], ...], Any] = {}
        self._every_pull: list[Any] = []
        self._function = self._compile()
        self._concrete: dict[tuple[Any, ...], Any] = {}  # by shapes and types of a batch

    def trace(self, batch: Any, owned: Sequence[Ownership]) -> None:
        """Compile before the first batch: a worker that traces in the midst of it is seconds stale to the others.

        `batch`: a tree of tf.TypeSpec, as the source's batches fit it.
        """
        if not self._model.run_eagerly and self._found is None:
            self._every_pull = [v for shard in owned for v in (*shard.part.trainable, *shard.part.scalars)]
            weights = [tf.TensorSpec(v.shape, tensor_variable(v).dtype) for v in self._every_pull]
            self._function.get_concrete_function(batch, weights)

    def run(self, batch: Any, owned: Sequence[Ownership], pulled: Sequence[tuple[list[int], list[Tensor]]]) -> Computed:
        """The step on one batch.

        `pulled`: what the shards sent. The variables share the buffers' memory: nothing is copied.
        """
        weights, others = self._sort(owned, pulled)
        if others:
            self._assign_others(owned, others)
        gradients, changes, logs, finite = self._call(batch, weights)
        assert self._found is not None
        whole: list[Tensor | None] = [None] * len(self._trainable.trainable)
        for position, gradient in zip(self._found.present, gradients, strict=True):
            whole[position] = gradient
        return Computed(whole, changes, self._found.changed, logs, bool(finite))

    def _call(self, batch: Any, weights: list[Tensor]) -> Any:
        if self._model.run_eagerly:
            return self._function(batch, weights)
        tensors = [t for t in tf.nest.flatten(batch, expand_composites=True) if t is not None]
        key = tuple((t.dtype, *t.shape) for t in tensors)
        if key not in self._concrete:
            self._concrete[key] = self._function.get_concrete_function(batch, weights)
        return call_flat(self._concrete[key], [*tensors, *weights])

    def _sort(
        self, owned: Sequence[Ownership], pulled: Sequence[tuple[list[int], list[Tensor]]]
    ) -> tuple[list[Tensor], list[tuple[int, int, Tensor]]]:
        """What every pull brings, and (shard, position, value) of what only some do."""
        weights, others = [], []
        self._every_pull = []
        for number, (shard, (positions, tensors)) in enumerate(zip(owned, pulled, strict=True)):
            part = shard.part
            first, behind = len(part.trainable), len(part.trainable) + len(part.others)
            self._every_pull += [*part.trainable, *part.scalars]
            for position, tensor in zip(positions, tensors, strict=True):
                if first <= position < behind:
                    others.append((number, position - first, tensor))
                else:
                    weights.append(tensor)
        return weights, others

    def _assign_others(self, owned: Sequence[Ownership], others: Sequence[tuple[int, int, Tensor]]) -> None:
        key = tuple((number, position) for number, position, _ in others)
        if key not in self._assigns:
            variables = [tensor_variable(owned[number].part.others[position]) for number, position in key]
            self._assigns[key] = tf.function(lambda values: _assign(variables, values), autograph=False)
        self._assigns[key]([tensor for _, _, tensor in others])

    def _compile(self) -> Any:
        if self._model.run_eagerly:
            return self._compute
        if self._trainable.flavor.name == "keras":  # Keras 3 traces its own step without autograph
            compute = tf.autograph.experimental.do_not_convert(self._compute)
        else:
            compute = self._compute
        return tf.function(compute, jit_compile=bool(self._model.jit_compile) or None, reduce_retracing=True)

    def _compute(self, batch: Any, weights: list[Tensor]) -> tuple[list[Tensor], list[Tensor], Any, Tensor]:
        _assign([tensor_variable(v) for v in self._every_pull], weights)
        others = [tensor_variable(v) for v in self._others]
        before = [v.read_value() for v in others]
        applied: list[tuple[list[Any], list[Any]]] = []

        def note(apply: Any, gradients: list[Any], variables: list[Any]) -> None:
            applied.append((list(gradients), list(variables)))

        with self._trainable.flavor.replace_apply(self._model.optimizer, note), assignments() as assigned:
            logs = self._model.train_step(batch)
        if len(applied) != 1:
            raise CaptureError(
                f"NFDT trains steps that apply gradients once. Received: {len(applied)} times in train_step"
            )
        present, gradients = self._in_order(*applied[0])
        changed = [i for i, v in enumerate(others) if id(v) in assigned]
        self._found = Found(present, changed)
        finite = is_loss_scaled(self._model.optimizer) or _finite(gradients)  # which meets overflow by itself
        return gradients, [others[i].read_value() - before[i] for i in changed], logs, tf.convert_to_tensor(finite)

    def _in_order(self, gradients: list[Any], variables: list[Any]) -> tuple[list[int], list[Tensor]]:
        position = {id(tensor_variable(v)): i for i, v in enumerate(self._trainable.trainable)}
        pairs = zip(variables, gradients, strict=True)
        by_position = {position[id(tensor_variable(v))]: g for v, g in pairs if g is not None}
        present = sorted(by_position)
        scale = loss_scale(self._model.optimizer)
        dense = [tf.convert_to_tensor(by_position[i]) for i in present]
        return present, dense if scale is None else [g / tf.cast(scale, g.dtype) for g in dense]


def _assign(variables: Sequence[Any], values: Sequence[Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value, read_value=False)


def _finite(gradients: Sequence[Tensor]) -> Tensor:
    """One pass over each: a sum that holds NaN or infinity is neither a number nor finite itself."""
    return tf.math.is_finite(tf.add_n([tf.reduce_sum(tf.cast(g, tf.float32)) for g in gradients] or [tf.constant(0.0)]))


def ownerships(trainable: Trainable, shards: int) -> list[Ownership]:
    return [own(trainable, shard, shards) for shard in range(shards)]


def split(owned: Sequence[Ownership], computed: Computed) -> list[Outgoing]:
    """What goes to each shard of one step's result."""
    gradient, change_of = computed.gradient, dict(zip(computed.changed, computed.changes, strict=True))
    parts = []
    for shard in owned:
        mine = [(i, other) for i, other in enumerate(shard.others) if other in change_of]
        parts.append(
            Outgoing([gradient[i] for i in shard.trainable], [change_of[o] for _, o in mine], [i for i, _ in mine])
        )
    return parts
