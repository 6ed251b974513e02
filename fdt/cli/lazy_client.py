"""A client of an engine that there is only once the script trains: many a script never does."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what has no engine needs no gRPC
    from fdt.blobs import Blobs
    from fdt.rpc.training_pb2 import HelloReply
    from fdt.service.client import Conversation, TrainingClient


class LazyClient:
    """As a TrainingClient, which is made when anything is first asked of it."""

    def __init__(self, connect: "Callable[[], TrainingClient]") -> None:
        self._connect = connect

    @functools.cached_property
    def _client(self) -> "TrainingClient":
        return self._connect()

    @property
    def hello(self) -> "HelloReply":
        return self._client.hello

    @property
    def blobs(self) -> "Blobs":
        return self._client.blobs

    def train(self) -> "Conversation":
        return self._client.train()


@contextlib.contextmanager
def lazy_client(connect: "Callable[[], AbstractContextManager[TrainingClient]]") -> Iterator[LazyClient]:
    """A client by `connect`, when it is needed; what that has started is gone when the context ends."""
    with contextlib.ExitStack() as stack:
        yield LazyClient(lambda: stack.enter_context(connect()))
