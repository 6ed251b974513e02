"""The sharded optimizer: each rank updates its part of every weight, and holds that part of the optimizer's slots.

This is stage 1 of ZeRO (Rajbhandari et al. 2020, section 5.1):

    gradients --reduce_scatter--> a part of the mean --Keras's apply--> a part of the weights --all_gather--> weights

A weight is a vector of as many parts as there are ranks, padded with zeros. The optimizers of Keras 3 and tf_keras find
their slots by the `_unique_id` of a variable. So a part has the id of its weight, and the script's own optimizer
updates it: with the script's learning rate, its count of steps and its exclusions from weight decay. The slots of the
optimizer are replaced by their parts. A weight whose gradient is IndexedSlices is not divided.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from fdt import compat
from fdt.errors import UserError
from fdt.keras.variables import tensor_variable, variables_of_slots
from fdt.patches import Patch, patched
from fdt.trainable import is_left_out, read
from fdt.typing import Array, Tensor
from hfdt.algorithm import Tree
from hfdt.collectives import Comm
from hfdt.worker.exchange import StepGroup, buckets, by_position
from hfdt.worker.step_context import StepContext

ELEMENTWISE = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD")


class WeightPart:
    """The part of a variable that belongs to one rank.

    Attributes:
        variable: A tf.Variable with the part: a vector of `length` elements.
        length: Elements of a part, the same on all ranks.
    """

    def __init__(self, whole: tf.Variable, rank: int, size: int) -> None:
        self._shape, self._rank, self._size = whole.shape, rank, size
        self.length = max(1, -(-whole.shape.num_elements() // size))
        self.variable = tf.Variable(self.cut(whole), trainable=whole.trainable, name=whole.name.partition(":")[0])

    def padded(self, tensor: Tensor) -> Tensor:
        """Return the elements of a tensor of the variable's shape, padded to the parts of all ranks."""
        missing = self.length * self._size - self._shape.num_elements()
        flat = tf.reshape(tensor, [-1])
        return tf.pad(flat, [[0, missing]]) if missing else flat

    def cut(self, tensor: Tensor) -> Tensor:
        """Return this rank's elements of a tensor of the variable's shape."""
        begin, total = self._rank * self.length, self._shape.num_elements()
        own = tf.reshape(tensor, [-1])[min(begin, total) : min(begin + self.length, total)]
        missing = self.length - own.shape[0]
        return tf.pad(own, [[0, missing]]) if missing else own

    def whole(self, gathered: Tensor) -> Tensor:
        """Return the tensor of the variable's shape whose parts, in the order of ranks, are `gathered`."""
        return tf.reshape(gathered[: self._shape.num_elements()], self._shape)


class ShardedOptimizer:
    """The parts of a model's weights and slots that belong to this rank. Made at the same time on all ranks.

    Args:
        trainable: The model with its variables.
        comm: The collectives of the run.
        sparse: Ids of the variables whose gradients are IndexedSlices.

    Raises:
        UserError: If the update of an element depends on other elements.
    """

    def __init__(self, trainable: Any, comm: Comm, sparse: set[int]) -> None:
        check_elementwise(trainable)
        self._trainable, self._comm = trainable, comm
        self.optimizer = trainable.model.optimizer
        self._flavor = trainable.flavor.name
        hooks, variables = compat.of(self._flavor), trainable.optimizer
        self._weights = hooks.built_for(self.optimizer, [*trainable.trainable, *trainable.non_trainable])
        weights = [tensor_variable(v) for v in self._weights if v is not None]
        self._parts = {id(w): self._part(w) for w in weights if id(w) not in sparse}
        for weight in weights:
            if id(weight) in self._parts:
                self._parts[id(weight)].variable._unique_id = weight._unique_id
        self._targets = [self.target(v) for v in self._weights]
        weights_of = variables_of_slots(self.optimizer, self._weights)
        places = [i for i, slot in enumerate(variables) if self.part(weights_of.get(id(slot))) is not None]
        parts = [self._part(tensor_variable(variables[i])) for i in places]
        slots = hooks.set_slots(self.optimizer, [variables[i] for i in places], [part.variable for part in parts])
        for place, slot in zip(places, slots, strict=True):
            variables[place] = slot
        self._slots = {id(slot): part for slot, part in zip(slots, parts, strict=True)}

    def _part(self, whole: tf.Variable) -> WeightPart:
        return WeightPart(whole, self._comm.rank, self._comm.size)

    def part(self, variable: Any) -> WeightPart | None:
        """Return the part of a trainable variable; None if it is not divided."""
        return self._parts.get(id(tensor_variable(variable)))

    def divided(self, variables: Sequence[Any]) -> list[tuple[Any, WeightPart]]:
        """Return those weights with their parts that an update of `variables` reads or writes.

        With EMA it is all weights in Keras 3; in tf_keras it is `variables`.
        """
        used = self._weights if self.optimizer.use_ema and self._flavor == "keras" else variables
        return [(v, part) for v in used if (part := self.part(v)) is not None]

    def target(self, variable: Any) -> Any:
        """Return the variable that the optimizer updates in place of a trainable variable."""
        part = self.part(variable)
        return variable if part is None else part.variable

    def group(self, step: StepContext, variables: list[Any]) -> StepGroup:
        """Return the ReduceGroup of a step with gradients of these variables."""
        return ShardedGroup(self, step, variables)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Within the context, the optimizer updates parts, and `Trainable.write_optimizer` takes whole slots."""
        patches = [Patch(self._trainable, "write_optimizer", self._write)]
        if clips_by_norm(self.optimizer):
            patches.append(Patch(self.optimizer, "_clip_gradients", lambda _, given: given))  # `clipped` does it
        with patched(patches), self._held():
            yield

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """Within the context, an optimizer of Keras 3, which keeps its variables, has parts in their place."""
        held = vars(self.optimizer)
        before = held.get("_trainable_variables")
        if before is None:
            yield
            return
        held["_trainable_variables"] = self._targets
        try:
            yield
        finally:
            held["_trainable_variables"] = before

    # -- state -----------------------------------------------------------------------------------------------------
    def arrays(self) -> list[Array]:
        """Return the values of `Trainable.optimizer`, slots whole. A collective."""
        variables = self._trainable.optimizer
        places = [i for i, v in enumerate(variables) if id(v) in self._slots]
        values = read(variables)
        gathered = self._comm.all_gather([values[i] for i in places], "hfdt.slots") if places else []
        for place, rows in zip(places, gathered, strict=True):
            values[place] = self._slots[id(variables[place])].whole(rows).numpy()
        return values

    def _write(self, original: Any, arrays: list[Array]) -> None:
        slots = [self._slots.get(id(v)) for v in self._trainable.optimizer]
        pairs = zip(slots, arrays, strict=True)
        original([a if part is None or is_left_out(a) else part.cut(a).numpy() for part, a in pairs])

    # -- inside a step ---------------------------------------------------------------------------------------------
    def clipped(self, step: StepContext, gradient: Tree, variables: Sequence[Any]) -> Tree:
        """Return the gradients, parts or whole, clipped by the norms of whole gradients as Keras clips them."""
        norm, global_norm = self.optimizer.clipnorm, self.optimizer.global_clipnorm
        places = [i for i, g in enumerate(gradient) if g is not None]
        if not clips_by_norm(self.optimizer) or not places:
            return gradient
        counts = [1.0 if self.part(variables[i]) or not self._comm.rank else 0.0 for i in places]
        wide = tf.float64 if any(gradient[i].dtype == tf.float64 for i in places) else tf.float32
        squares = [tf.reduce_sum(tf.square(tf.cast(_values(gradient[i]), wide))) for i in places]
        (sums,) = step.sum([tf.stack(squares) * tf.constant(counts, wide)], "clip")
        if norm:
            scales = tf.unstack(norm / tf.maximum(tf.sqrt(sums), norm))
        else:
            whole = tf.sqrt(tf.reduce_sum(sums))  # not finite: NaN, as in Keras
            scales = [global_norm * tf.minimum(1 / whole, 1 / global_norm) + (whole - whole)] * len(places)
        found = list(gradient)
        for i, scale in zip(places, scales, strict=True):
            # Keras 3 makes slices dense there
            found[i] = _times(gradient[i], scale, dense=not norm and self._flavor == "keras")
        return found


class ShardedGroup(StepGroup):
    """The ReduceGroup of a step whose means are parts; those of IndexedSlices are whole.

    Args:
        shards: The parts of this rank.
        step: The step.
        variables: The variable of each tensor of `mean`.
    """

    def __init__(self, shards: ShardedOptimizer, step: StepContext, variables: list[Any]) -> None:
        super().__init__(step, ids=[id(tensor_variable(v)) for v in variables])
        self._shards, self._variables = shards, variables
        self._dividing: list[WeightPart] = []  # the parts of the dense tensors

    def mean(self, tensors: Sequence[Tensor]) -> Tree:
        self._dividing = []
        for tensor, variable in zip(tensors, self._variables, strict=True):
            part = self._shards.part(variable)
            if tensor is not None and isinstance(tensor, tf.IndexedSlices) != (part is None):
                raise UserError(
                    "--shard-optimizer needs gradients that are dense in every batch or sparse in every batch. "
                    f"Received: for {variable.name} not as in the first batch"
                )
            if tensor is not None and part is not None:
                self._dividing.append(part)
        return super().mean(tensors)

    def targets(self, gradient: Tree, variables: list[Any]) -> tuple[Tree, list[Any]]:
        for variable, part in self._shards.divided(variables):
            part.variable.assign(part.cut(tensor_variable(variable)))
        return self._shards.clipped(self._step, gradient, variables), [self._shards.target(v) for v in variables]

    def _exchanged(self, dense: list[Tensor], last: list[Tensor]) -> list[Tensor]:
        step, parts = self._step, self._dividing
        order = buckets(dense, step.terms.bucket_bytes) if dense else []
        sums = [step.reduce_scatter([parts[i].padded(dense[i]) for i in bucket], "gradient") for bucket in order]
        return by_position(order, sums) + (step.sum(last, "gradient") if last else [])

    def updated(self, variables: list[Any]) -> None:
        """Gather the weights, and apply their constraints."""
        divided = self._shards.divided(variables)
        own = [tf.convert_to_tensor(part.variable) for _, part in divided]
        order = buckets(own, self._step.terms.bucket_bytes)

        def gathered() -> list[Tensor]:
            found = [self._step.all_gather([own[i] for i in bucket], "weights") for bucket in order]
            return by_position(order, found)

        for (variable, part), rows in zip(divided, self._step.timed(own, gathered) if own else [], strict=True):
            variable.assign(part.whole(rows))
            if getattr(variable, "constraint", None) is not None:
                variable.assign(variable.constraint(variable))


def clips_by_norm(optimizer: Any) -> bool:
    """Return whether the optimizer clips gradients by a norm."""
    return bool(optimizer.clipnorm or optimizer.global_clipnorm)


def check_elementwise(trainable: Any) -> None:
    """Raise UserError if the optimizer cannot update a part of a weight alone."""
    optimizers = trainable.flavor.optimizers(trainable.model)
    if len(optimizers) != 1:
        raise UserError(f"--shard-optimizer needs a model with one optimizer. Received: {len(optimizers)}")
    (optimizer,) = optimizers
    kind, module = type(optimizer).__name__, type(optimizer).__module__
    if not module.startswith(("keras.", "tf_keras.")):  # a subclass may compute with whole gradients
        kind = f"the script's {kind}"
    elif ".legacy." in module:
        kind = f"a legacy {kind} of tf_keras"
    if kind not in ELEMENTWISE:
        raise UserError(
            "--shard-optimizer needs an optimizer that updates each element alone: one of "
            f"{', '.join(ELEMENTWISE)}. Received: {kind}"
        )
    between = [n for n in ("gradient_accumulation_steps", "loss_scale_factor") if getattr(optimizer, n, None)]
    if between and clips_by_norm(optimizer):
        raise UserError(f"--shard-optimizer does not clip by a norm with {between[0]}. Received: both")


def _values(gradient: Tensor) -> Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _times(gradient: Tensor, scale: Tensor, *, dense: bool) -> Tensor:
    if dense or not isinstance(gradient, tf.IndexedSlices):
        return tf.convert_to_tensor(gradient) * tf.cast(scale, gradient.dtype)
    return tf.IndexedSlices(gradient.values * tf.cast(scale, gradient.dtype), gradient.indices, gradient.dense_shape)
