"""The spans of a server's pushes (--timeline): queue, from a push's arrival to its turn, and apply."""

import time
from collections.abc import Callable
from typing import Any

from fdt.rpc.session_pb2 import Event
from fdt.timeline import SpanRecorder
from nfdt.server.job import ServedJob


def served(kind: Callable[..., Any], job: ServedJob, workers: int, send: Callable[[Event], None]) -> Any:
    """Return a new shard service of class `kind`, which adds spans if the job's options ask for them."""
    if not job.options.timeline:
        return kind(job, workers, send)
    recorder = SpanRecorder(f"server {job.shard}", send)
    shard_service = kind(job, workers, recorder.send)
    _time_pushes(shard_service, job.applier, recorder)
    return shard_service


def _time_pushes(shard_service: Any, applier: Any, recorder: SpanRecorder) -> None:
    push, apply = shard_service.push, applier.push
    arrived: dict[int, float] = {}

    def timed_push(worker: int, *arguments: Any) -> Any:
        arrived[worker] = time.time()
        return push(worker, *arguments)

    def timed_apply(rule: Any, shared: Any, mine: Any, worker: int, *arguments: Any) -> Any:
        start = time.time()
        applied = apply(rule, shared, mine, worker, *arguments)
        thread = f"pushes of lane {worker}"
        recorder.add(thread, "queue", arrived.pop(worker, start), start)
        recorder.add(thread, "apply", start, time.time())
        return applied

    shard_service.push, applier.push = timed_push, timed_apply
