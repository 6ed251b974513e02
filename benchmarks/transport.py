"""Push and pull of 100 MB of parameters over NFDT's own channel, against a plain copy of memory.

Two processes of this machine use the code of training (nfdt.transport.grpc_channel.GrpcChannel and
nfdt.server.service.Service). The worker pushes a gradient until the server has it as tensors; the server answers with
weights until the worker has them in its variables. There is no optimizer and no algorithm in between. GB/s (1e9 bytes)
are of both directions added.
"""

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import harness

WAYS = {"shared memory": 0.9, "gRPC, Unix socket": 1.5, "gRPC, TCP loopback": 1.2}  # targets
ECHO = harness.SCRIPTS / "echo_server.py"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--variables", type=int, default=25, help="parameters are that many float32 arrays")
    parser.add_argument("--rounds", type=int, default=10, help="push+pull in one measurement; the fastest half counts")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


@contextmanager
def worker(way: str, count: int, size: int) -> Iterator[Callable[[], int]]:
    """One push+pull with a server in a process of its own; it returns the number of bytes moved."""
    from fdt.environment import quiet_import

    with quiet_import():
        import tensorflow as tf

    from nfdt.rpc import parameter_server_pb2 as pb
    from nfdt.transport import Weights, WorkerGradient
    from nfdt.transport.buffers import Layout, Spec
    from nfdt.transport.grpc_channel import GrpcChannel

    specs: list[Spec] = [((size,), "float32")] * count
    with server(way, count, size) as (address, token, directory):
        hello = pb.Hello(job="benchmark", worker=0, steps=-1)
        link = GrpcChannel(address, token, hello, Layout(specs, [], []), directory if way == "shared memory" else None)
        link.open()
        gradient = WorkerGradient([tf.random.normal([size]) for _ in range(count)])
        variables = [tf.Variable(tf.zeros([size])) for _ in range(count)]

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def assign(tensors: list[Any]) -> None:
            for variable, tensor in zip(variables, tensors, strict=True):
                variable.assign(tensor, read_value=False)

        def exchange() -> int:
            before = link.bytes_sent + link.bytes_received
            link.push(1, gradient)
            weights = link.answer()
            assert isinstance(weights, Weights)
            assign(list(weights.tensors))
            moved: int = link.bytes_sent + link.bytes_received - before
            return moved

        try:
            yield exchange
            assert all(v[0] == v[-1] == i for i, v in enumerate(variables)), "weights must arrive where they belong"
        finally:
            link.close()


@contextmanager
def server(way: str, count: int, size: int) -> Iterator[tuple[str, str, Path]]:
    """Yield address, token and blob directory of a running scripts/echo_server.py."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="fdt-", dir=shm if os.access(shm, os.W_OK) else None) as name:
        address = "127.0.0.1:0" if way.endswith("loopback") else f"unix:{name}/socket"
        token = secrets.token_hex(16)
        popen = subprocess.Popen(
            [sys.executable, str(ECHO), address, name, str(count), str(size)],
            env={**os.environ, **harness.QUIET, "FDT_TOKEN": token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert popen.stdout is not None
            yield popen.stdout.readline().strip(), token, Path(name)
        finally:
            harness.end(popen)


@contextmanager
def memory(count: int, size: int) -> Iterator[Callable[[], int]]:
    """Copy the same arrays within one process, for comparison."""
    import numpy as np

    sources = [np.ones(size, np.float32) for _ in range(count)]
    targets = [np.ones(size, np.float32) for _ in range(count)]

    def copy() -> int:
        for source, target in zip(sources, targets, strict=True):
            np.copyto(target, source)
        return sum(source.nbytes for source in sources)

    yield copy


def rate(side: Any, rounds: int) -> float:
    """Return GB/s over the faster half of the rounds, after two more that touch pages and trace functions."""
    with side as once:
        for _ in range(2):
            once()
        seconds, moved = [], 0
        for _ in range(rounds):
            start = time.perf_counter()
            moved = once()
            seconds.append(time.perf_counter() - start)
    fast = sorted(seconds)[: max(1, rounds // 2)]
    return moved * len(fast) / sum(fast) / 1e9


def main() -> int:
    args = arguments()
    count, size = args.variables, args.megabytes * 1_000_000 // 4 // args.variables
    sides: dict[str, Callable[[], float]] = {"plain memory copy": lambda: rate(memory(count, size), args.rounds)}
    for way in WAYS:
        sides[way] = partial(lambda way: rate(worker(way, count, size), args.rounds), way)
    rates = harness.in_turns(sides, args.repeats)
    copy = rates["plain memory copy"]
    rows = [
        [name, harness.spread(of, ".2f"), f"{harness.median(harness.ratios(of, copy)):.2f}"]
        for name, of in rates.items()
    ]
    title = f"push+pull of {args.megabytes} MB in {args.variables} variables; {harness.machine()}"
    harness.table(title, ["", "GB/s", "of a memory copy"], rows)
    for way, target in WAYS.items():
        over_copy = way == "shared memory"
        figures = harness.ratios(rates[way], copy) if over_copy else rates[way]
        harness.verdict(f"{way} over {'plain memory copy' if over_copy else '1 GB/s'}", figures, at_least=target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
