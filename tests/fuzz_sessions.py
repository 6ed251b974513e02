"""Sessions of a parameter server as handlers of messages, in process, for tests/fuzz.py."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from fdt.blobs import LocalBlobs
from fdt.job import BatchHooks, State
from fdt.rpc.session_pb2 import Event
from fdt.rpc.tensor_pb2 import BlobRef
from fdt.service.handlers import StreamBroken
from nfdt.algorithms import asgd, ssgd
from nfdt.options import Options
from nfdt.rpc import parameter_server_pb2 as pb
from nfdt.server.follower import FollowerShardService
from nfdt.server.service import WorkerStream
from nfdt.server.shard_service import ShardService
from nfdt.transport.buffers import Layout, Sent
from tests.fuzz_handlers import JOB, JOB_ENDS, WORKERS, Errors, Filled, Handler, Store, framed, frames, known_blob
from tests.single.numpy_applier import PlainApplier

RUN_ENDS = (*JOB_ENDS, DecodeError, IndexError, RuntimeError, StreamBroken)  # the run ends with it


class NumpyApplier(PlainApplier):
    """The applier of a model of three weights; what it sends are tensors."""

    def pull(self, rule: Any, shared: Any, mine: Any, worker: int) -> tuple[Any, Any, Any]:
        sent, shared, mine = super().pull(rule, shared, mine, worker)
        return (None if sent is None else Sent([tf.constant(p) for p in self.params], [], [], ())), shared, mine

    def push(self, rule: Any, shared: Any, mine: Any, worker: int, gradient: Any, tau: int) -> tuple[bool, Any, Any]:
        arrays = [np.zeros(3, np.float32) if g is None else np.asarray(g) for g in gradient.gradient]
        with np.errstate(all="ignore"):
            return super().push(rule, shared, mine, worker, replace(gradient, gradient=arrays), tau)


def session_conversation(rng: Any, filled: Filled, known: BlobRef) -> bytes:
    """Return what a worker may send on its stream."""
    hello = filled(rng, pb.Hello) if rng.random() < 0.1 else pb.Hello(worker=rng.randrange(WORKERS), steps=4)
    messages = [(0, pb.ToServer(hello=hello).SerializeToString())]
    for number in range(1, rng.randrange(1, 8)):
        message = filled(rng, pb.ToServer)
        if rng.random() < 0.5:
            message = pb.ToServer(next=pb.Next())
        elif rng.random() < 0.6:
            push = pb.Push(push=number, batches=[rng.randrange(4)], samples=1, nbytes=rng.choice([0, 12]))
            push.MergeFrom(filled(rng, pb.Push)) if rng.random() < 0.3 else None
            message = pb.ToServer(push=push)
        if message.push.HasField("metrics"):
            message.push.metrics.CopyFrom(known)
        messages.append((0, message.SerializeToString()))
        if message.push.nbytes == 12:
            messages.append((0, rng.randbytes(12)))
    return framed(messages)


def answered(kind: type, hooks: BatchHooks, rule: Any, blobs: LocalBlobs) -> Handler:
    """Return a handler of sessions, each with a new shard service of class `kind` on which an epoch has begun."""

    class Answers(kind):  # type: ignore[misc, valid-type]
        """A shard service whose sessions end where they would have to wait for another message."""

        def _after(self, session: Any, result: Any) -> Any:
            session.put(None)
            return result

        def ask(self, worker: int, session: Any = None) -> None:
            self._after(session, super().ask(worker, session))

        def push(self, worker: int, number: int, gradient: Any, session: Any = None) -> bool:
            return bool(self._after(session, super().push(worker, number, gradient, session)))

        def end_of_data(self, worker: int, batch: int, session: Any = None) -> None:
            self._after(session, super().end_of_data(worker, batch, session))

    def handle(data: bytes) -> None:
        known_blob(blobs.directory)  # the case before may have dropped it
        job = _served_job(rule, hooks, blobs)
        service = Answers(job, WORKERS, lambda event: None, applier=NumpyApplier([np.zeros(3, np.float32)]))
        service.start_epoch(0, State())
        raws = [raw for _, raw in frames(data)]
        hello = pb.ToServer.FromString(raws[0] if raws else b"").hello
        stream = WorkerStream(service, hello, blobs.directory)
        for _ in stream.run(_without_ends(raws[1:], stream)):
            pass

    return handle


def _without_ends(raws: list[bytes], stream: WorkerStream) -> Iterator[bytes]:
    """Yield the messages; before each, take the unused end of the answer before it away."""
    for raw in raws:
        left = [stream._replies.get() for _ in range(stream._replies.qsize())]
        for reply in left:
            if reply is not None:
                stream._replies.put(reply)
        yield raw


def _served_job(rule: Any, hooks: BatchHooks, blobs: LocalBlobs) -> Any:
    spec = SimpleNamespace(id=JOB, fit=SimpleNamespace(batch_hooks=hooks, epochs=2))
    layout = Layout([((3,), "float32")], [], [])
    return SimpleNamespace(
        spec=spec,
        options=Options.read({}),
        rule=rule,
        blobs=blobs,
        layout=layout,
        lanes=1,
        places=0,
        workers=WORKERS,
        shard=0,
        shards=1,
        generation=0,
        loads=1,
        applier=None,
        trainable=None,
        load=lambda changed: None,
        put_snapshot=lambda end: None,
        epoch_end=lambda end: Event(job=JOB, epoch_end=end),
    )


def sessions(folder: Path, filled: Filled) -> Iterator[tuple[str, Callable[[Any], bytes], Handler, Errors]]:
    """Yield for each kind of session its name, a maker of conversations, its handler, and the errors it may raise."""
    blobs, known = Store(folder), known_blob(folder)
    for name, kind, hooks, rule in (
        ("sessions", ShardService, BatchHooks.NONE, asgd.rule()),
        ("sessions with a barrier", ShardService, BatchHooks.NONE, ssgd.rule()),
        ("sessions in lock step", ShardService, BatchHooks.LOGS, asgd.rule()),
        ("sessions of a further shard", FollowerShardService, BatchHooks.NONE, asgd.rule()),
    ):
        service = answered(kind, hooks, rule, blobs)
        yield name, lambda rng: session_conversation(rng, filled, known), service, RUN_ENDS
