"""Process of a worker: `python -m nfdt.worker.process`, started by the engine. It pulls, computes and pushes."""

import pkgutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from client_shim.surroundings import take_over
from fdt.blobs import LocalBlobs
from fdt.environment import warm_up
from fdt.job import JobSpec, State
from fdt.rpc.session_pb2 import Command, Commit, Event, Finished, Ready
from fdt.service.blame import failure
from fdt.service.member import Member, reach
from nfdt.options import Options
from nfdt.transport import ChannelFactory


class HostedServer(ChannelFactory, Protocol):
    """A parameter server in the process of its only worker. It takes the engine's commands; a call makes channels."""

    def start_epoch(self, epoch: int, changed: State, begin: Commit) -> None:
        """Load the state that the client changed; start the epoch, or what remains of it after `begin`."""

    def step(self, changed: State) -> None:
        """Lock step: load the state that the client changed, and apply the next push."""

    def stop_epoch(self) -> None:
        """End the epoch at the client's request."""

    def suspend(self) -> None:
        """End the epoch after the pushes that are being computed: the run is preempted."""

    def finish(self) -> None:
        """End the job."""


ServerHost = Callable[[JobSpec, Callable[[Event], None]], HostedServer]  # of one job, and of the events it sends


class NfdtWorker:
    """One worker. It stays alive between jobs and reuses the last program's model and compiled step.

    Args:
        member: Connection to the engine.
        host: Makes the server of each job in this process; None: the servers have processes of their own.
    """

    def __init__(self, member: Member, host: ServerHost | None = None) -> None:
        self._member, self._host = member, host
        self._warm: tuple[Any, Any, Any] = (None, None, None)  # JobSpec.made_for, Trainable, Step
        self._run: Any = None
        self._job = ""
        self._incarnation = 0  # number of replacements of this rank's worker in this job
        self._moved = (0, 0)
        self._server: Any = None  # HostedServer of the job

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
            spec = JobSpec.from_proto(command.setup.job)
            notes = take_over(spec.surroundings)
            self._set_up(spec, [reach(peer) for peer in command.setup.peers], notes)
        elif kind == "epoch":
            self._server.start_epoch(command.epoch.epoch, State.of(command.epoch.changed), command.epoch.begin)
        elif kind == "step":
            self._server.step(State.of(command.step.changed))
        elif kind == "end_epoch":
            self._server.stop_epoch()
        elif kind == "suspend":
            self._server.suspend()
        elif kind == "finish" and self._run is not None:
            self._finish()
            self._run = None
            self.send(Event(finished=Finished()))

    def _finish(self) -> None:
        if self._server is not None:
            self._server.finish()
        self._run.finish()
        self._moved = self._run.moved()

    def _set_up(self, spec: JobSpec, servers: list[str], notes: list[str]) -> None:
        from nfdt.compressors import make
        from nfdt.transport.grpc_channel import GrpcChannels
        from nfdt.worker.run import WorkerJob

        trainable, step = self._build(spec)
        trainable.load(spec.state, self._member.blobs)
        self._server = self._host(spec, self.send) if self._host is not None else None
        directory = self._shared_directory(spec)
        compression = make(Options.read(spec.options).compress)
        remote = GrpcChannels(servers, self._member.token, spec.id, self._incarnation, directory, compression)
        self._run = WorkerJob(
            spec,
            trainable,
            step,
            self._server or remote,
            len(servers),
            self._member,
            self.send,
            self.failed,
            moved=self._moved,
            incarnation=self._incarnation,
        )
        self._run.start()
        notes = [*notes, *self._run.notes, *compression_notes(compression, sends=self._server is None)]
        ready = Ready(steps_per_epoch=self._run.steps or 0, notes="\n".join(notes), algorithm=self._run.algorithm)
        self.send(Event(ready=ready))

    def _shared_directory(self, spec: JobSpec) -> Path | None:
        """Return the directory of files that are shared with servers of this host; None: tensors use streams."""
        blobs, streams = self._member.blobs, Options.read(spec.options).channel == "grpc"
        return blobs.directory if isinstance(blobs, LocalBlobs) and not streams else None

    def _build(self, spec: JobSpec) -> tuple[Any, Any]:
        from fdt.trainable import build
        from nfdt.worker.step import GradientStep

        made_for, trainable, step = self._warm
        if made_for != spec.made_for:
            trainable = build(spec.program, self._member.blobs)
            step = GradientStep(trainable)
            self._warm = (spec.made_for, trainable, step)
        return trainable, step


def compression_notes(compression: Any, *, sends: bool) -> list[str]:
    """Return the line for users of --compress, if any. `sends`: whether the worker sends anything."""
    if compression.push is None and compression.pull is None:
        return []
    if sends:
        return ["--compress rounds tensors, or leaves out a part of them: numbers are not those of one machine"]
    return ["--compress is not used: the server is in its only worker's process, and nothing is sent"]


def main() -> None:
    """Run a worker until the engine ends it. The command line may name the class of the server that it hosts."""
    member = Member.attach("worker")
    warm_up(member.blobs, computes=True)
    hosts = [pkgutil.resolve_name(name)(member.blobs).serve for name in sys.argv[1:]]  # imports TensorFlow
    NfdtWorker(member, *hosts).run()


if __name__ == "__main__":
    main()
