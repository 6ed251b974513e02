"""A worker's gradient step: weights in, gradient and forward changes out. Keras's own `train_step` computes them.

The step replaces the outermost optimizer's apply by a function that records the gradients. So Keras handles custom
training steps, losses, sample weights, regularisers and metrics. The step divides by the loss scale that it used,
because the server's scale may have changed; the server multiplies by its own.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from client_shim.summed_state import SummedState, watched_states
from fdt.data.source import leading
from fdt.keras.variables import assignments, is_loss_scaled, moving_averages, read_behind, tensor_variable
from fdt.ops import all_finite
from fdt.trainable import Trainable
from fdt.typing import Tensor
from nfdt.algorithm import AsyncAlgorithm
from nfdt.model.settings import check_logs, needs_replica
from nfdt.model.shards import Changed, Ownership, change_of, own, pushed_others
from nfdt.model.variables import clipped, current_rate, momentum_of, takes_rows_alone, unscaled
from nfdt.transport import Weights, WorkerGradient
from nfdt.worker.local_steps import Assign, ByShape, LocalStep, LocalSteps, MicroSteps, assign

WITHIN = (
    "train_step applies gradients within a branch, a loop or a tf.function, and a server applies those of every step"
)
Computed = tuple[list[Tensor], list[Tensor], Any, Tensor]  # what GradientStep.compute returns of tensors


@dataclass(frozen=True)
class TracedGradient:
    """What a trace of the step finds.

    Attributes:
        present: Positions of the weights that have a gradient.
        changed: The other variables that the forward pass changes.
        adds_rows: Whether the gradient adds rows that Keras's optimizer takes alone.
        reads: Names of the variables that the step reads behind the update.
    """

    present: list[int]
    changed: Changed
    adds_rows: bool
    reads: list[str]


class GradientStep:
    """The compiled gradient of one built model. It lives as long as the model."""

    def __init__(self, trainable: Trainable) -> None:
        self._trainable, self._model = trainable, trainable.model
        self._others = pushed_others(trainable)
        self._averages = moving_averages(trainable.model)
        self._assign = Assign()
        self._every_pull: list[Any] = []
        self._function = ByShape(self.compute, trainable)
        self._local: LocalStep | None = None
        self._micro: dict[int, MicroSteps] = {}  # by number of parts

    @property
    def found(self) -> TracedGradient | None:
        """What the last trace found; None before one, and after one of local steps."""
        return self._function.found  # type: ignore[no-any-return]

    @property
    def added(self) -> list[str]:
        """Names of variables of floating numbers whose changes servers add, once traced; see Changed."""
        found: Any = self.found.changed if self.found is not None else self._local and self._local.train.found
        return found.added if found is not None else []

    @functools.cached_property
    def metric_states(self) -> list[SummedState]:
        """The states of the script's own metrics, examined in their first update. Read it before `trace`."""
        return watched_states(self._trainable.flavor.name, self._model, self._others)

    def of(self, rule: AsyncAlgorithm) -> Any:
        """Return the object that computes pushes for `rule`: a kind of step. Load the job's state first."""
        if rule.micro_steps > 1:
            steps = self._micro.get(rule.micro_steps) or MicroSteps(self, self._trainable, rule.micro_steps)
            return self._micro.setdefault(rule.micro_steps, steps)
        if rule.local_steps is None:
            return self
        self._local = self._local or LocalStep(self._trainable)
        return LocalSteps(self._local)

    def trace(self, batch: Any, owned: Sequence[Ownership]) -> None:
        """Compile before the first batch: a worker that traces during training pushes stale gradients.

        Args:
            batch: Tree of tf.TypeSpec that the source's batches match.
            owned: Variables of each shard.
        """
        self._every_pull = [v for shard in owned for v in (*shard.part.trainable, *shard.part.scalars)]
        self._function.trace(batch, self.specs)

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """Specs of the tensors of every pull."""
        return [tf.TensorSpec(v.shape, tensor_variable(v).dtype) for v in self._every_pull]

    def run(
        self, lane: int, batches: Sequence[Any], owned: Sequence[Ownership], pulled: Sequence[Weights]
    ) -> WorkerGradient:
        """Compute the gradient of one batch.

        Args:
            lane: Number of the lane; unused.
            batches: A single batch.
            owned: Variables of each shard.
            pulled: Weights from each shard. The variables share the buffers' memory: nothing is copied.
        """
        (batch,) = batches
        return self.at(batch, self.load(owned, pulled))

    def load(self, owned: Sequence[Ownership], pulled: Sequence[Weights]) -> list[Tensor]:
        """Return the tensors of every pull, for `at`; write those that only some pulls contain."""
        weights, others = self._sort(owned, pulled)
        if others:
            self._assign([variable for variable, _ in others], [tensor for _, tensor in others])
        return weights

    def at(self, batch: Any, weights: list[Tensor]) -> WorkerGradient:
        """Compute the gradient of `batch` at the weights that `load` returned."""
        return self.push_of(*self._function(batch, weights))

    def push_of(self, computed: Computed, found: TracedGradient, steps: int = 1) -> WorkerGradient:
        """Return the push of what `compute` returned, or of `steps` of it along a path."""
        gradients, changes, logs, finite = computed
        whole: list[Tensor | None] = [None] * len(self._trainable.trainable)
        for position, gradient in zip(found.present, gradients, strict=True):
            whole[position] = gradient
        if not finite:
            return WorkerGradient(whole, finite=False, logs=logs)
        left = {i: decay**steps for i, decay in found.changed.left.items()}
        return WorkerGradient(whole, changes=changes, changed=list(left), decays=list(left.values()), logs=logs)

    def descend(
        self, weights: list[Tensor], gradients: Sequence[Tensor], present: Sequence[int], scale: float
    ) -> list[Tensor]:
        """Return `weights` after a step of eta / (1 - mu) times `scale`, clipped as the optimizer clips.

        Args:
            weights: The tensors of every pull.
            gradients: The gradients that `compute` has found.
            present: Positions of their weights.
            scale: Factor on the rate.
        """
        optimizer, place = self._model.optimizer, {id(tensor_variable(v)): i for i, v in enumerate(self._every_pull)}
        rate, moved = scale * current_rate(optimizer) / max(1.0 - momentum_of(optimizer), 0.01), list(weights)
        for position, g in zip(present, clipped(optimizer, gradients), strict=True):
            index = place[id(tensor_variable(self._trainable.trainable[position]))]
            moved[index] -= tf.cast(rate, g.dtype) * g
        return moved

    def _sort(
        self, owned: Sequence[Ownership], pulled: Sequence[Weights]
    ) -> tuple[list[Tensor], list[tuple[Any, Tensor]]]:
        """Return the tensors of every pull, and (variable, value) of those that only some pulls contain."""
        weights, others = [], []
        self._every_pull = []
        for shard, weights_of in zip(owned, pulled, strict=True):
            part = shard.part
            first, behind = len(part.trainable), len(part.trainable) + len(part.others)
            self._every_pull += [*part.trainable, *part.scalars]
            for position, tensor in zip(weights_of.positions, weights_of.tensors, strict=True):
                if first <= position < behind:
                    others.append((part.others[position - first], tensor))
                else:
                    weights.append(tensor)
        return weights, others

    def compute(self, batch: Any, weights: list[Tensor]) -> tuple[Computed, TracedGradient]:
        """Return gradients, changes of other variables, logs, and whether all is finite. It is traced."""
        assign([tensor_variable(v) for v in self._every_pull], weights)
        others = [tensor_variable(v) for v in self._others]
        before = [v.read_value() for v in others]
        applied: list[tuple[list[Any], list[Any]]] = []
        graph, before_update, within = tf.compat.v1.get_default_graph(), 0, False

        def note(apply: Any, gradients: list[Any], variables: list[Any]) -> None:
            nonlocal before_update, within
            applied.append((list(gradients), list(variables)))
            within = within or tf.compat.v1.get_default_graph() is not graph
            before_update = len(graph.get_operations())

        with self._trainable.flavor.replace_apply(self._model.optimizer, note), assignments() as assigned:
            logs = self._model.train_step(batch)
        logs = tf.nest.map_structure(_value, logs)  # a variable would be read when this function returns
        check_logs(self._trainable, logs)
        if len(applied) != 1 or within:
            count = f"train_step applies gradients {len(applied)} times, and a server applies those of one optimizer"
            reason = WITHIN if within else count
            raise needs_replica(reason)
        reads = self._read_behind(graph, before_update)
        self._refuse_own_updates(assigned)
        present, gradients, adds_rows = self._in_order(*applied[0])
        changed = Changed.by(assigned, self._others, self._averages)
        if is_loss_scaled(self._model.optimizer):  # the optimizer handles overflow itself
            finite = tf.constant(True)
        else:
            finite = all_finite(gradients)
            for i in changed.left:  # a NaN moving mean would stay until another worker's push replaces it
                others[i].assign(tf.where(finite, others[i], before[i]))
        changes = [change_of(others[i].read_value(), before[i], decay) for i, decay in changed.left.items()]
        return (gradients, changes, logs, finite), TracedGradient(present, changed, adds_rows, reads)

    def _read_behind(self, graph: Any, count: int) -> list[str]:
        """Return the names of weights and optimizer's variables that operations behind the first `count` read."""
        if not hasattr(graph, "captures"):  # the model runs eagerly
            return []
        read = read_behind(graph, [*self._trainable.trainable, *self._trainable.optimizer], count)
        names = [str(getattr(v, "path", v.name)) for v in read]
        return [name for name in names if not name.endswith("learning_rate")]  # no update writes it

    def _refuse_own_updates(self, assigned: Mapping[Any, int]) -> None:
        """Raise NeedsReplica where the step itself assigned a weight or a variable of the optimizer."""
        updated = [*self._trainable.trainable, *self._trainable.optimizer]
        own = [getattr(v, "path", v.name) for v in updated if tensor_variable(v).ref() in assigned]
        if own:
            reason = f"train_step assigns {own[0]!r} itself, and only a server updates it"
            raise needs_replica(reason)

    def _in_order(self, gradients: list[Any], variables: list[Any]) -> tuple[list[int], list[Tensor], bool]:
        """Return the positions of the weights that have a gradient, the gradients, and TracedGradient.adds_rows."""
        position = {id(tensor_variable(v)): i for i, v in enumerate(self._trainable.trainable)}
        pairs = list(zip(variables, gradients, strict=True))
        foreign = [v.name for v, g in pairs if g is not None and id(tensor_variable(v)) not in position]
        if foreign:
            reason = f"train_step trains {foreign[0]!r}, which is no weight of the model"
            raise needs_replica(reason)
        by_position = {position[id(tensor_variable(v))]: g for v, g in pairs if g is not None}
        present = sorted(by_position)
        alone = takes_rows_alone(self._model.optimizer, self._trainable.flavor.name)
        adds_rows = alone and any(isinstance(g, tf.IndexedSlices) for g in by_position.values())
        gradients = unscaled(self._model.optimizer, [tf.convert_to_tensor(by_position[i]) for i in present])
        return present, gradients, adds_rows


@tf.autograph.experimental.do_not_convert
def _value(log: Any) -> Any:
    variable = tensor_variable(log)
    return variable.read_value() if isinstance(variable, tf.Variable) else log  # an element of one has `assign`, too


def samples_of(batch: Any) -> int:
    """Return the number of samples of a batch."""
    return int(leading(batch).shape[0])


def ownerships(trainable: Trainable, shards: int) -> list[Ownership]:
    """Return the variables of each shard."""
    return [own(trainable, shard, shards) for shard in range(shards)]
