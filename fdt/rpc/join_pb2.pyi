from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("version", "workers", "host", "engine")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    version: str
    workers: int
    host: str
    engine: str
    def __init__(self, version: _Optional[str] = ..., workers: _Optional[int] = ..., host: _Optional[str] = ..., engine: _Optional[str] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("ranks", "size", "addresses", "token", "identity")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    size: int
    addresses: str
    token: str
    identity: str
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., size: _Optional[int] = ..., addresses: _Optional[str] = ..., token: _Optional[str] = ..., identity: _Optional[str] = ...) -> None: ...
