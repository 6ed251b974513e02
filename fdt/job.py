"""The job: the captured model, data and arguments, as one frozen value that round-trips through protobuf."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import isfinite
from typing import Any

from fdt.errors import UsageError
from fdt.rpc import job_pb2 as pb
from fdt.rpc.tensor_pb2 import BlobRef

FEED_WINDOW = 8  # batches that a client may draw ahead of the slowest worker


class BatchHooks(IntEnum):
    """What the client's callbacks need after each step: nothing, the logs, or the logs and the state."""

    NONE = 0
    LOGS = 1
    STATE = 2


@dataclass(frozen=True)
class Program:
    """The captured model. A worker whose last program has the same `digest` does not build it again."""

    flavor: str  # "keras" | "tf_keras"
    digest: str
    config: BlobRef  # JSON: global settings, the layout of the variables
    objects: BlobRef  # the model's Python objects, pickled (fdt/keras/pickling.py)


@dataclass(frozen=True)
class State:
    """Values of a program's variables, in the order of fdt/trainable.py. An empty reference: not sent."""

    model: BlobRef = field(default_factory=BlobRef)
    optimizer: BlobRef = field(default_factory=BlobRef)
    metrics: BlobRef = field(default_factory=BlobRef)

    @classmethod
    def of(cls, message: Any) -> "State":
        """Return the values in a message."""
        return cls(message.model, message.optimizer, message.metrics)


@dataclass(frozen=True)
class ArrayData:
    """Whole arrays, of which ranks gather rows.

    Attributes:
        arrays: The arrays.
        structure: The skeleton of (x, y, sample_weight), for fdt/tensors.py.
        rows: The number of samples, the arrays' first dimension.
    """

    arrays: BlobRef
    structure: str
    rows: int


@dataclass(frozen=True)
class GraphData:
    """A tf.data pipeline that every rank rebuilds (fdt/data/pipeline.py).

    Attributes:
        graph: The serialized GraphDef.
        constants: The arrays taken out of the graph.
        spec: The pickled `element_spec`.
        cardinality: Batches of one pass; negative values as tf.data's (infinite, unknown).
        seed: The seed of unseeded operations; 0: the job's.
        divided_rows: Rows of a full batch of a divided pipeline (fdt/data/division.py); 0: it is not divided.
        iterators: Iterators of the pipeline that the script made before, each of which drew an order of its shuffles.
    """

    graph: BlobRef
    constants: BlobRef
    spec: BlobRef
    cardinality: int
    seed: int
    divided_rows: int = 0
    iterators: int = 0


@dataclass(frozen=True)
class FeedData:
    """Batches that the client draws and sends.

    Attributes:
        name: The feed's name.
        steps: Batches of an epoch; -1: until the data end.
        spec: The pickled `element_spec`.
        length: Batches of a pass, at whose end Keras ends the epoch; 0: Keras does not know them.
        first_epoch: The epoch with which the first pass begins.
    """

    name: str
    steps: int
    spec: BlobRef = field(default_factory=BlobRef)
    length: int = 0
    first_epoch: int = 0


Data = ArrayData | GraphData | FeedData


@dataclass(frozen=True)
class FitArguments:
    """The arguments of the script's call of `fit` that workers need. 0 stands for `None`.

    Attributes:
        order_seed: 1 + the seed by which Keras itself shuffles the rows of arrays; 0: the job's seed orders them.
    """

    batch_size: int = 0
    epochs: int = 1
    initial_epoch: int = 0
    shuffle: bool = True
    steps_per_epoch: int = 0
    class_weight: dict[int, float] = field(default_factory=dict)
    validation_batch_size: int = 0
    validation_steps: int = 0
    batch_hooks: BatchHooks = BatchHooks.NONE
    order_seed: int = 0


@dataclass(frozen=True)
class JobSpec:
    """One call of `fit`, ready to be trained by an engine.

    Attributes:
        id: The job's name.
        program: The captured model.
        state: The initial values of the variables.
        data: The training data.
        fit: The arguments of `fit`.
        validation: The validation data, or None.
        seed: The seed of shuffles and of unseeded operations.
        options: The engine's options for this job.
        surroundings: What workers take over of the script's process (client_shim/surroundings.py); no report has it.
    """

    id: str
    program: Program
    state: State
    data: Data
    fit: FitArguments
    validation: Data | None = None
    seed: int = 0
    options: dict[str, str] = field(default_factory=dict)
    surroundings: str = field(default="", repr=False)

    @property
    def made_for(self) -> tuple[str, str]:
        """What a process builds the model for; jobs of which it is equal may share a built one."""
        return self.program.digest, self.surroundings

    def to_proto(self) -> pb.JobSpec:
        """Return the job as a protobuf message."""
        return pb.JobSpec(
            id=self.id,
            program=pb.Program(**vars(self.program)),
            state=pb.State(**vars(self.state)),
            data=_data_to_proto(self.data),
            validation=_data_to_proto(self.validation),
            fit=pb.FitArguments(**vars(self.fit)),
            seed=self.seed,
            options=self.options,
            surroundings=self.surroundings,
        )

    @classmethod
    def from_proto(cls, message: pb.JobSpec) -> "JobSpec":
        """Return the job of a protobuf message. Raises ValueError when the message names no data."""
        data = _data_from_proto(message.data)
        if data is None:
            raise ValueError("a job must name its data")
        return cls(
            id=message.id,
            program=Program(**_fields(message.program)),
            state=State(**_fields(message.state)),
            data=data,
            validation=_data_from_proto(message.validation),
            fit=_fit_from_proto(message.fit),
            seed=message.seed,
            options=dict(message.options),
            surroundings=message.surroundings,
        )


_KINDS: dict[str, type[Data]] = {"arrays": ArrayData, "graph": GraphData, "feed": FeedData}  # by field of pb.Data


def _fields(message: Any) -> dict[str, Any]:
    return {f.name: getattr(message, f.name) for f in message.DESCRIPTOR.fields}


def _data_to_proto(data: Data | None) -> pb.Data | None:
    for name, kind in _KINDS.items():
        if isinstance(data, kind):
            return pb.Data(**{name: getattr(pb, kind.__name__)(**vars(data))})
    return None


def _data_from_proto(message: pb.Data) -> Data | None:
    name = message.WhichOneof("kind")
    return _KINDS[name](**_fields(getattr(message, name))) if name else None


def _fit_from_proto(message: pb.FitArguments) -> FitArguments:
    fields = _fields(message)
    fields["class_weight"] = dict(message.class_weight)
    fields["batch_hooks"] = BatchHooks(message.batch_hooks)
    return FitArguments(**fields)


def is_on(options: Mapping[str, str], name: str) -> bool:
    """Return whether the flag `name` is set."""
    return options.get(name, "") in ("1", "on", "true", "True")


def number_of(options: Mapping[str, str], name: str, default: float = 0) -> float:
    """Return the option `name` as a number of 0 or more. Raises UsageError if it is none."""
    try:
        number = float(options.get(name, default))
        if number >= 0 and isfinite(number):
            return number
    except ValueError:
        pass
    raise UsageError(f"the option {name} of a job must be a number of 0 or more. Received: {options[name]!r}")
