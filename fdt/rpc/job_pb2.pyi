from fdt.rpc import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Program(_message.Message):
    __slots__ = ("flavor", "digest", "config", "objects")
    FLAVOR_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    flavor: str
    digest: str
    config: _tensor_pb2.BlobRef
    objects: _tensor_pb2.BlobRef
    def __init__(self, flavor: _Optional[str] = ..., digest: _Optional[str] = ..., config: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., objects: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("model", "optimizer", "metrics")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    model: _tensor_pb2.BlobRef
    optimizer: _tensor_pb2.BlobRef
    metrics: _tensor_pb2.BlobRef
    def __init__(self, model: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., optimizer: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., metrics: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class ArrayData(_message.Message):
    __slots__ = ("arrays", "structure", "rows")
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    arrays: _tensor_pb2.BlobRef
    structure: str
    rows: int
    def __init__(self, arrays: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., structure: _Optional[str] = ..., rows: _Optional[int] = ...) -> None: ...

class GraphData(_message.Message):
    __slots__ = ("graph", "constants", "spec", "cardinality", "seed", "divided_rows", "iterators")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CARDINALITY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DIVIDED_ROWS_FIELD_NUMBER: _ClassVar[int]
    ITERATORS_FIELD_NUMBER: _ClassVar[int]
    graph: _tensor_pb2.BlobRef
    constants: _tensor_pb2.BlobRef
    spec: _tensor_pb2.BlobRef
    cardinality: int
    seed: int
    divided_rows: int
    iterators: int
    def __init__(self, graph: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., constants: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., spec: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., cardinality: _Optional[int] = ..., seed: _Optional[int] = ..., divided_rows: _Optional[int] = ..., iterators: _Optional[int] = ...) -> None: ...

class FeedData(_message.Message):
    __slots__ = ("name", "steps", "spec", "length", "first_epoch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    FIRST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    steps: int
    spec: _tensor_pb2.BlobRef
    length: int
    first_epoch: int
    def __init__(self, name: _Optional[str] = ..., steps: _Optional[int] = ..., spec: _Optional[_Union[_tensor_pb2.BlobRef, _Mapping]] = ..., length: _Optional[int] = ..., first_epoch: _Optional[int] = ...) -> None: ...

class Data(_message.Message):
    __slots__ = ("arrays", "graph", "feed")
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    FEED_FIELD_NUMBER: _ClassVar[int]
    arrays: ArrayData
    graph: GraphData
    feed: FeedData
    def __init__(self, arrays: _Optional[_Union[ArrayData, _Mapping]] = ..., graph: _Optional[_Union[GraphData, _Mapping]] = ..., feed: _Optional[_Union[FeedData, _Mapping]] = ...) -> None: ...

class FitArguments(_message.Message):
    __slots__ = ("batch_size", "epochs", "initial_epoch", "shuffle", "steps_per_epoch", "class_weight", "validation_batch_size", "validation_steps", "batch_hooks", "order_seed")
    class BatchHooks(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[FitArguments.BatchHooks]
        LOGS: _ClassVar[FitArguments.BatchHooks]
        STATE: _ClassVar[FitArguments.BatchHooks]
    NONE: FitArguments.BatchHooks
    LOGS: FitArguments.BatchHooks
    STATE: FitArguments.BatchHooks
    class ClassWeightEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    INITIAL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLASS_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_STEPS_FIELD_NUMBER: _ClassVar[int]
    BATCH_HOOKS_FIELD_NUMBER: _ClassVar[int]
    ORDER_SEED_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    epochs: int
    initial_epoch: int
    shuffle: bool
    steps_per_epoch: int
    class_weight: _containers.ScalarMap[int, float]
    validation_batch_size: int
    validation_steps: int
    batch_hooks: FitArguments.BatchHooks
    order_seed: int
    def __init__(self, batch_size: _Optional[int] = ..., epochs: _Optional[int] = ..., initial_epoch: _Optional[int] = ..., shuffle: bool = ..., steps_per_epoch: _Optional[int] = ..., class_weight: _Optional[_Mapping[int, float]] = ..., validation_batch_size: _Optional[int] = ..., validation_steps: _Optional[int] = ..., batch_hooks: _Optional[_Union[FitArguments.BatchHooks, str]] = ..., order_seed: _Optional[int] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("id", "program", "state", "data", "validation", "fit", "seed", "options", "surroundings")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    FIT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SURROUNDINGS_FIELD_NUMBER: _ClassVar[int]
    id: str
    program: Program
    state: State
    data: Data
    validation: Data
    fit: FitArguments
    seed: int
    options: _containers.ScalarMap[str, str]
    surroundings: str
    def __init__(self, id: _Optional[str] = ..., program: _Optional[_Union[Program, _Mapping]] = ..., state: _Optional[_Union[State, _Mapping]] = ..., data: _Optional[_Union[Data, _Mapping]] = ..., validation: _Optional[_Union[Data, _Mapping]] = ..., fit: _Optional[_Union[FitArguments, _Mapping]] = ..., seed: _Optional[int] = ..., options: _Optional[_Mapping[str, str]] = ..., surroundings: _Optional[str] = ...) -> None: ...
