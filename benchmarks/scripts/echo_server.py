"""The transport of a parameter server without a server: every push is answered with the same weights at once.

Arguments: address, blob directory, number of variables, floats in each. FDT_TOKEN has the token.
"""

import os
import queue
import sys
from types import SimpleNamespace
from typing import Any

from fdt.environment import quiet_import

with quiet_import():
    import tensorflow as tf

from fdt.blobs import LocalBlobs
from nfdt.server import Send
from nfdt.server.service import Service
from nfdt.transport.buffers import Layout, Sent


class EchoDesk:
    """A replacement of nfdt.server.shard_service.ShardService."""

    def __init__(self, count: int, size: int) -> None:
        layout = Layout([((size,), "float32")] * count, [], [])
        self.job: Any = SimpleNamespace(
            spec=SimpleNamespace(id="benchmark"), layout=layout, generation=0, loads=0, workers=1, places=1, lanes=1
        )
        self._sent = Sent([tf.fill([size], float(i)) for i in range(count)], [], [], ())
        self._replies: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def open(self, worker: int, *session: Any) -> Any:
        return self._replies

    def ask(self, worker: int, *session: Any) -> None:
        self._replies.put(Send(worker, 0, (0,), self._sent))

    def push(self, worker: int, *pushed: Any) -> bool:
        self.ask(worker)
        return True

    def end_of_data(self, worker: int, *session: Any) -> None:
        self.ask(worker)


def main(address: str, directory: str, count: str, size: str) -> None:
    def failed(error: Exception, detail: str) -> None:
        print(detail, file=sys.stderr, flush=True)

    service = Service(LocalBlobs.open(directory), os.environ["FDT_TOKEN"], address, failed)
    service.show(EchoDesk(int(count), int(size)))
    print(service.address, flush=True)
    sys.stdin.read()  # until ended


if __name__ == "__main__":
    main(*sys.argv[1:])
