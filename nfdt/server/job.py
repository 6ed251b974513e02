"""One job on one server: the built model, the variables that this server owns, and the algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fdt.blobs import Blobs
from fdt.errors import CaptureError, UserError
from fdt.job import FeedData, JobSpec, State
from fdt.keras.variables import inner_optimizer, tensor_variable
from fdt.rpc.session_pb2 import EpochEnd, Event
from fdt.trainable import Trainable
from nfdt import algorithm_registry
from nfdt.algorithm import AsyncAlgorithm
from nfdt.model.momentum import is_sgd
from nfdt.model.server_optimizer import server_optimizer
from nfdt.model.shards import own, partial
from nfdt.options import Options, lanes_of
from nfdt.server.applier import ModelApplier
from nfdt.transport.buffers import Layout, spec_of


def rule_of(options: Options, optimizer: Any, trainable: Sequence[Any]) -> AsyncAlgorithm:
    """Return the requested algorithm, or the default one.

    Args:
        options: The job's options.
        optimizer: The captured optimizer.
        trainable: The trainable variables of the whole model.

    Raises:
        UserError: If the algorithm does not work with the optimizer.
    """
    inner = inner_optimizer(optimizer)
    name = options.rule or algorithm_registry.default_for(optimizer, trainable)
    rule = algorithm_registry.make(name)
    if rule.needs_sgd and not is_sgd(optimizer):
        raise UserError(
            f"rule {name} needs SGD, because it predicts the optimizer's steps. Received: {type(inner).__name__}"
        )
    if rule.local_steps is not None:
        _check_local(inner)
    return rule


def _check_local(inner: Any) -> None:
    """Check that each worker can have its own copy of the optimizer. Raises UserError if not."""
    if getattr(inner, "use_ema", False):
        raise UserError("local steps do not support an optimizer's use_ema. Received: use_ema=True")
    if not hasattr(inner, "update_step"):
        raise UserError(f"local steps need an optimizer that is not a legacy one. Received: {type(inner).__name__}")


def layout_of(part: Any) -> Layout:
    """Return the layout of the tensors between a worker and the server that holds `part`."""
    groups = (part.trainable, part.others, part.scalars)
    return Layout(*([spec_of(tensor_variable(v)) for v in group] for group in groups))


@dataclass
class ServedJob:
    """One job on one server.

    `loads` counts how often the client's weights were written. After each load, the next pull contains all variables.
    """

    spec: JobSpec
    trainable: Trainable
    blobs: Blobs
    shard: int
    shards: int
    workers: int
    generation: int = 0  # number of restorations of the servers in this job
    loads: int = 1
    places: int = 0  # largest number of workers, elastic ones included; 0: `workers`
    options: Options = field(init=False)

    def __post_init__(self) -> None:
        self.options = Options.read(self.spec.options)
        if len(self.trainable.flavor.optimizers(self.trainable.model)) > 1:
            raise CaptureError("NFDT needs a model with one optimizer. Received: several; use --capture replica")
        self.ownership = own(self.trainable, self.shard, self.shards)
        self.rule = rule_of(self.options, self.trainable.model.optimizer, self.trainable.trainable)
        self.lanes = lanes_of(self.options, self.rule, self.workers, fed=isinstance(self.spec.data, FeedData))
        self.trainable.load(self.spec.state, self.blobs)
        part, own_optimizer = self.ownership.part, None
        if self.rule.optimizer is not None:
            own_optimizer = server_optimizer(
                self.trainable.flavor.name, self.rule.optimizer, part.trainable, self.shards
            )
        self.applier = ModelApplier(part, own_optimizer)
        self.layout = layout_of(part)

    def load(self, changed: State) -> None:
        """Write the state that the client's callbacks changed, and drop the blob if this server reads it last."""
        if changed.model.id or changed.optimizer.id:
            self.trainable.load(changed, self.blobs)
            self.applier.refresh()
            self.loads += 1

    @property
    def groups(self) -> list[list[Any]]:
        """All variables of this server by group: the model's, the captured optimizer's, the algorithm's optimizer's."""
        own = [] if self.applier.optimizer is None else list(self.applier.optimizer.variables)
        return [[*self.trainable.trainable, *self.trainable.non_trainable], self.trainable.optimizer, own]

    def snapshot(self) -> State:
        """Return all current variables, or with several shards those that this one owns (shards.merge)."""
        model, optimizer = self.trainable.model_arrays(), self.trainable.optimizer_arrays()
        if self.shards > 1:
            model = partial(self._model_positions(), model)
            optimizer = partial(self.ownership.optimizer, optimizer)
        return State(self.blobs.put_arrays(model), self.blobs.put_arrays(optimizer))

    def epoch_end(self, end: EpochEnd) -> Event:
        """Return the event `end` with a snapshot of the variables that this server owns."""
        state = self.snapshot()
        end.state.model.CopyFrom(state.model)
        end.state.optimizer.CopyFrom(state.optimizer)
        return Event(job=self.spec.id, epoch_end=end)

    def _model_positions(self) -> list[int]:
        """Return the positions of this shard's variables; shard 0 adds the unowned ones: generator seeds and flags."""
        if self.shard:
            return self.ownership.model
        owned = {i for shard in range(1, self.shards) for i in own(self.trainable, shard, self.shards).model}
        count = len(self.trainable.trainable) + len(self.trainable.non_trainable)
        return [i for i in range(count) if i not in owned]
