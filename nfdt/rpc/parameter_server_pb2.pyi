from fdt.rpc import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("job", "worker", "steps", "push_file", "pull_file", "incarnation", "heard")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PUSH_FILE_FIELD_NUMBER: _ClassVar[int]
    PULL_FILE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    steps: int
    push_file: str
    pull_file: str
    incarnation: int
    heard: int
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., steps: _Optional[int] = ..., push_file: _Optional[str] = ..., pull_file: _Optional[str] = ..., incarnation: _Optional[int] = ..., heard: _Optional[int] = ...) -> None: ...

class Next(_message.Message):
    __slots__ = ("pull",)
    PULL_FIELD_NUMBER: _ClassVar[int]
    pull: int
    def __init__(self, pull: _Optional[int] = ...) -> None: ...

class Push(_message.Message):
    __slots__ = ("push", "batches", "samples", "seconds", "absent", "changed", "nbytes", "logs", "metrics", "not_finite", "log_names", "decays")
    class LogsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PUSH_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    NOT_FINITE_FIELD_NUMBER: _ClassVar[int]
    LOG_NAMES_FIELD_NUMBER: _ClassVar[int]
    DECAYS_FIELD_NUMBER: _ClassVar[int]
    push: int
    batches: _containers.RepeatedScalarFieldContainer[int]
    samples: int
    seconds: float
    absent: _containers.RepeatedScalarFieldContainer[int]
    changed: _containers.RepeatedScalarFieldContainer[int]
    nbytes: int
    logs: _containers.ScalarMap[str, float]
    metrics: _tensor_pb2.BlobRef
    not_finite: bool
    log_names: _containers.RepeatedScalarFieldContainer[str]
    decays: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, push: _Optional[int] = ..., batches: _Optional[_Iterable[int]] = ..., samples: _Optional[int] = ..., seconds: _Optional[float] = ..., absent: _Optional[_Iterable[int]] = ..., changed: _Optional[_Iterable[int]] = ..., nbytes: _Optional[int] = ..., logs: _Optional[_Mapping[str, float]] = ..., metrics: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., not_finite: bool = ..., log_names: _Optional[_Iterable[str]] = ..., decays: _Optional[_Iterable[float]] = ...) -> None: ...

class EndOfData(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: int
    def __init__(self, batch: _Optional[int] = ...) -> None: ...

class ToServer(_message.Message):
    __slots__ = ("hello", "next", "push", "end")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    next: Next
    push: Push
    end: EndOfData
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., next: _Optional[_Union[Next, _Mapping]] = ..., push: _Optional[_Union[Push, _Mapping]] = ..., end: _Optional[_Union[EndOfData, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("shared_memory", "generation")
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    shared_memory: bool
    generation: int
    def __init__(self, shared_memory: bool = ..., generation: _Optional[int] = ...) -> None: ...

class Weights(_message.Message):
    __slots__ = ("epoch", "batches", "positions", "nbytes", "ahead", "pull", "staleness")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    batches: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    nbytes: int
    ahead: _containers.RepeatedScalarFieldContainer[int]
    pull: int
    staleness: int
    def __init__(self, epoch: _Optional[int] = ..., batches: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., nbytes: _Optional[int] = ..., ahead: _Optional[_Iterable[int]] = ..., pull: _Optional[int] = ..., staleness: _Optional[int] = ...) -> None: ...

class EpochOver(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Staged(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ToWorker(_message.Message):
    __slots__ = ("welcome", "weights", "epoch_over", "released", "staged")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_OVER_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    weights: Weights
    epoch_over: EpochOver
    released: Released
    staged: Staged
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., weights: _Optional[_Union[Weights, _Mapping]] = ..., epoch_over: _Optional[_Union[EpochOver, _Mapping]] = ..., released: _Optional[_Union[Released, _Mapping]] = ..., staged: _Optional[_Union[Staged, _Mapping]] = ...) -> None: ...

class Logged(_message.Message):
    __slots__ = ("kind", "worker", "push", "tau", "samples", "seconds", "epoch")
    KIND_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    TAU_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    kind: str
    worker: int
    push: int
    tau: int
    samples: int
    seconds: float
    epoch: int
    def __init__(self, kind: _Optional[str] = ..., worker: _Optional[int] = ..., push: _Optional[int] = ..., tau: _Optional[int] = ..., samples: _Optional[int] = ..., seconds: _Optional[float] = ..., epoch: _Optional[int] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("job", "generation", "position")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    job: str
    generation: int
    position: int
    def __init__(self, job: _Optional[str] = ..., generation: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...
