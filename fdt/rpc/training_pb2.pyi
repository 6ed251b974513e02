from fdt.rpc import session_pb2 as _session_pb2
from fdt.rpc import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HelloRequest(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: str
    def __init__(self, version: _Optional[str] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("engine", "version", "workers", "blobs", "nonce", "run_dir")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    RUN_DIR_FIELD_NUMBER: _ClassVar[int]
    engine: str
    version: str
    workers: int
    blobs: str
    nonce: str
    run_dir: str
    def __init__(self, engine: _Optional[str] = ..., version: _Optional[str] = ..., workers: _Optional[int] = ..., blobs: _Optional[str] = ..., nonce: _Optional[str] = ..., run_dir: _Optional[str] = ...) -> None: ...

class QueueRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QueuedJob(_message.Message):
    __slots__ = ("number", "user", "state", "priority", "slots", "seconds", "name", "reason")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    number: int
    user: str
    state: str
    priority: int
    slots: int
    seconds: float
    name: str
    reason: str
    def __init__(self, number: _Optional[int] = ..., user: _Optional[str] = ..., state: _Optional[str] = ..., priority: _Optional[int] = ..., slots: _Optional[int] = ..., seconds: _Optional[float] = ..., name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class QueueReply(_message.Message):
    __slots__ = ("engine", "slots", "free", "user", "jobs")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    engine: str
    slots: int
    free: int
    user: str
    jobs: _containers.RepeatedCompositeFieldContainer[QueuedJob]
    def __init__(self, engine: _Optional[str] = ..., slots: _Optional[int] = ..., free: _Optional[int] = ..., user: _Optional[str] = ..., jobs: _Optional[_Iterable[_Union[QueuedJob, _Mapping]]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
