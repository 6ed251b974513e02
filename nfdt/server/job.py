"""One job on one server: the built model, the variables that this server owns, and the algorithm."""

from dataclasses import dataclass, field
from typing import Any

from fdt.blobs import Blobs
from fdt.errors import CaptureError
from fdt.job import FeedData, JobSpec, State
from fdt.rpc.session_pb2 import EpochEnd, Event
from fdt.trainable import Trainable
from nfdt.model.server_optimizer import server_optimizer
from nfdt.model.settings import lanes_of, rule_of
from nfdt.model.shards import own, partial
from nfdt.options import Options
from nfdt.server.applier import ModelApplier
from nfdt.transport.buffers import Layout


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
        self.layout = Layout.of(part)

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
