"""An engine of one worker in the test's own process: it takes commands, sends events and trains a rebuilt model."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from fdt.blobs import LocalBlobs
from fdt.data import open_source
from fdt.job import BatchHooks, JobSpec
from fdt.rpc import job_pb2
from fdt.rpc import session_pb2 as pb
from fdt.tensors import numbers, put_logs
from fdt.trainable import build


class FakeClient:
    """Stands for a TrainingClient. `jobs`: every job set up; `commands`: every command's kind.

    `sent`: the same, with those whose answer the client did not wait for.
    """

    def __init__(self, blobs: LocalBlobs, engine: str = "hfdt") -> None:
        self.blobs = blobs
        self.hello = SimpleNamespace(engine=engine, workers=1)
        self.jobs: list[JobSpec] = []
        self.commands: list[str] = []
        self.sent: list[str] = []
        self.changed: list[tuple[bool, bool]] = []  # (model, optimizer) of each Epoch
        self.extra: dict[str, float] = {}
        self.fail: pb.Failed | None = None
        self.cancelled = 0
        self.warm: dict[str, Any] = {}

    def train(self) -> "FakeConversation":
        return FakeConversation(self)


@dataclass
class FakeConversation:
    """Answers each command when the client waits for its events."""

    client: FakeClient
    pending: deque[pb.Command] = field(default_factory=deque)

    def send(self, command: pb.Command) -> None:
        self.client.sent.append(command.WhichOneof("kind"))
        self.pending.append(command)

    def close(self) -> None: ...

    def interrupt(self) -> None: ...

    def cancel(self) -> None:
        self.client.cancelled += 1

    def events(self) -> Iterator[pb.Event]:
        while True:
            command = self.pending.popleft()
            kind = command.WhichOneof("kind")
            self.client.commands.append(kind)
            if kind == "setup":
                self.worker = Worker(JobSpec.from_proto(command.setup.job), self.client)
                yield pb.Event(ready=pb.Ready(steps_per_epoch=self.worker.source.steps or 0))
            elif kind == "epoch":
                yield pb.Event(output=pb.Output(text=f"epoch {command.epoch.epoch}\n"))
                if self.client.fail is not None:
                    yield pb.Event(failed=self.client.fail)
                self.client.changed.append(
                    (bool(command.epoch.changed.model.id), bool(command.epoch.changed.optimizer.id))
                )
                yield from self.worker.epoch(command.epoch, self.pending, self.client.commands)
            elif kind == "evaluate":
                yield self.worker.evaluate(command.evaluate)
            elif kind == "finish":
                yield pb.Event(finished=pb.Finished())


class Worker:
    """Trains one job with Keras's own train function."""

    def __init__(self, job: JobSpec, client: FakeClient) -> None:
        client.jobs.append(job)
        self.job, self.client, self.blobs = job, client, client.blobs
        if job.program.digest not in client.warm:
            client.warm[job.program.digest] = build(job.program, client.blobs)
        self.trainable = client.warm[job.program.digest]
        self.trainable.load(job.state, client.blobs)
        self.model = self.trainable.model
        flavor = job.program.flavor
        if job.fit.batch_hooks is not BatchHooks.NONE:  # lock step is one step at a time
            one_by_one = getattr(self.model, "_configure_steps_per_execution", None)
            one_by_one(1) if one_by_one else setattr(self.model, "steps_per_execution", 1)
            self.model.train_function = None
        self.source = open_source(job.data, job.fit, client.blobs, job.seed, training=True, flavor=flavor)
        self.model.train_function = self.model.make_train_function() or self.model.train_function

    def epoch(self, command: pb.Epoch, pending: deque[pb.Command], kinds: list[str]) -> Iterator[pb.Event]:
        self._load(command.changed)
        self.model.reset_metrics()
        batches = iter(self.source.slices(command.epoch, 0, 1).map(lambda batch, share: batch))
        hooks, step, logs = self.job.fit.batch_hooks, 0, {}
        total = self.source.count(command.epoch)
        while step != total:  # a step that finds no batch would count in optimizer.iterations
            try:
                logs = self.model.train_function(batches)
            except (StopIteration, tf.errors.OutOfRangeError):
                break
            step += 1
            if hooks is not BatchHooks.NONE:
                yield self._step_end(step, logs, step == total)
                if step != total:
                    answer = pending.popleft()
                    kinds.append(answer.WhichOneof("kind"))
                    if answer.WhichOneof("kind") == "end_epoch":
                        break
                    self._load(answer.step.changed)
        yield self._epoch_end(command.epoch, step, logs)

    def evaluate(self, command: pb.Evaluate) -> pb.Event:
        data = open_source(self.job.validation, self.job.fit, self.blobs, 0, training=False)
        logs = self.model.evaluate(data.slices(0, 0, 1).map(lambda batch, share: batch), return_dict=True, verbose=0)
        metrics = self.blobs.put_arrays(self.trainable.metric_arrays())
        done = pb.Evaluated(epoch=command.epoch, metrics=metrics)
        put_logs(done, numbers(logs))
        return pb.Event(evaluated=done)

    def _load(self, changed: job_pb2.State) -> None:
        self.trainable.load(changed, self.blobs)
        self.blobs.drop(changed.model)
        self.blobs.drop(changed.optimizer)

    def _step_end(self, step: int, logs: Any, last: bool) -> pb.Event:
        state = self._state() if self.job.fit.batch_hooks is BatchHooks.STATE else None
        metrics = self.blobs.put_arrays(self.trainable.metric_arrays())
        done = pb.StepEnd(step=step, state=state, metrics=metrics, last=last)
        put_logs(done, numbers(logs))
        return pb.Event(step_end=done)

    def _epoch_end(self, epoch: int, steps: int, logs: Any) -> pb.Event:
        metrics = self.blobs.put_arrays(self.trainable.metric_arrays())
        done = pb.EpochEnd(epoch=epoch, steps=steps, state=self._state(), metrics=metrics)
        put_logs(done, numbers(logs))
        done.extra.update(self.client.extra)
        return pb.Event(epoch_end=done)

    def _state(self) -> job_pb2.State:
        model = self.blobs.put_arrays(self.trainable.model_arrays())
        return job_pb2.State(model=model, optimizer=self.blobs.put_arrays(self.trainable.optimizer_arrays()))
