from fdt.rpc import session_pb2 as _session_pb2
from fdt.rpc import tensor_pb2 as _tensor_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

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
