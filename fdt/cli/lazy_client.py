"""A client whose engine starts only when the script trains; many scripts never do."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a run without an engine must not import gRPC
    from fdt.blobs import Blobs
    from fdt.rpc.training_pb2 import HelloReply
    from fdt.service.client import Conversation, TrainingClient


class LazyClient:
    """A TrainingClient that is created at its first use."""

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
    """Yield a client that `connect` creates when it is needed, and ends with the context."""
    with contextlib.ExitStack() as stack:
        yield LazyClient(lambda: stack.enter_context(connect()))
