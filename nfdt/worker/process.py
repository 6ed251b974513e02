"""Process of a worker: `python -m nfdt.worker.process`, started by the engine. It pulls, computes and pushes."""

import os
import sys
import traceback
from typing import Any

from fdt.early_start import warm_up
from fdt.job import JobSpec, State
from fdt.rpc.session_pb2 import Command, Event, Finished, Ready
from fdt.service.blame import failure
from fdt.service.member import Member, reach

HOST_VARIABLE = "NFDT_HOSTS_SERVER"  # set: this worker is the only one, and the server runs in its process


class NfdtWorker:
    """One worker. It stays alive between jobs and reuses the last program's model and compiled step."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._warm: tuple[str, Any, Any] = ("", None, None)  # digest, Trainable, Step
        self._run: Any = None
        self._job = ""
        self._incarnation = 0  # number of replacements of this rank's worker in this job
        self._moved = (0, 0)
        self._served: tuple[str, Any] = ("", None)  # digest and Trainable of the server in this process
        self._shard_service: Any = None

    def run(self) -> None:
        """Execute the engine's commands until they end."""
        for command in self._member.commands():
            try:
                self._obey(command)
            except Exception as error:
                self.failed(error)

    def send(self, event: Event) -> None:
        event.job = self._job
        self._member.send(event)

    def failed(self, error: Exception) -> None:
        """Report an error to the engine; the script's own errors with their traceback."""
        print("".join(traceback.format_exception(error)), file=sys.stderr, flush=True)
        self.send(Event(failed=failure(error)))

    def _obey(self, command: Command) -> None:
        kind = command.WhichOneof("kind")
        if kind == "setup":
            self._job = command.job
            self._incarnation = command.setup.incarnation
            self._set_up(JobSpec.from_proto(command.setup.job), [reach(peer) for peer in command.setup.peers])
        elif kind == "epoch":
            self._shard_service.start_epoch(command.epoch.epoch, state_of(command.epoch.changed))
        elif kind == "step":
            self._shard_service.step(state_of(command.step.changed))
        elif kind == "end_epoch":
            self._shard_service.stop_epoch()
        elif kind == "finish" and self._run is not None:
            self._finish()
            self._run = None
            self.send(Event(finished=Finished()))

    def _finish(self) -> None:
        if self._shard_service is not None:
            self._shard_service.finish()
        self._run.finish()
        self._moved = self._run.moved()

    def _set_up(self, spec: JobSpec, servers: list[str]) -> None:
        from nfdt.worker.run import WorkerJob

        trainable, step = self._build(spec)
        trainable.load(spec.state, self._member.blobs)
        self._shard_service = self._serve(spec) if os.environ.get(HOST_VARIABLE) else None
        self._run = WorkerJob(
            spec,
            trainable,
            step,
            servers,
            self._member,
            self.send,
            self.failed,
            moved=self._moved,
            shard_service=self._shard_service,
            incarnation=self._incarnation,
        )
        self._run.start()
        self.send(Event(ready=Ready(steps_per_epoch=self._run.steps or 0, notes="\n".join(self._run.notes))))

    def _serve(self, spec: JobSpec) -> Any:
        """Return the parameter server in this process: a single worker needs no server process."""
        from nfdt.server.shard_service import ShardService

        return ShardService(self._served_job(spec), 1, self.send)

    def _served_job(self, spec: JobSpec) -> Any:
        """Return the server's job, with a model of its own."""
        from fdt.trainable import build
        from nfdt.server.job import ServedJob

        if self._served[0] != spec.program.digest:
            self._served = (spec.program.digest, build(spec.program, self._member.blobs))
        return ServedJob(spec, self._served[1], self._member.blobs, shard=0, shards=1, workers=1)

    def _build(self, spec: JobSpec) -> tuple[Any, Any]:
        from fdt.trainable import build
        from nfdt.worker.step import GradientStep

        digest, trainable, step = self._warm
        if digest != spec.program.digest:
            trainable = build(spec.program, self._member.blobs)
            step = GradientStep(trainable)
            self._warm = (spec.program.digest, trainable, step)
        return trainable, step


def state_of(message: Any) -> State:
    """Return the state in a message that has the arrays of the model and of the optimizer."""
    return State(message.model, message.optimizer)


def main() -> None:
    """Run a worker until the engine ends it."""
    member = Member.attach("worker")
    warm_up(member.run_dir, computes=True)
    NfdtWorker(member).run()


if __name__ == "__main__":
    main()
