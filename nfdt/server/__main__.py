"""A parameter server's process: `python -m nfdt.server`, started by the engine."""

import os
import sys
import threading
import traceback
from typing import Any

from fdt.errors import UserError
from fdt.job import JobSpec, Program, State
from fdt.rpc.session_pb2 import Command, Event, Failed, Finished, Ready, Setup
from fdt.service.auth import credentials
from fdt.service.member import Member
from fdt.service.transport import listening_at, open_channel
from fdt.warm import warm_up
from nfdt.rpc import parameter_server_pb2 as pb

ADDRESS_VARIABLE = "NFDT_SERVERS"  # comma-separated addresses of all shards, this one's own at its rank
WORKERS_VARIABLE = "NFDT_WORKERS"


class Server:
    """One shard, kept warm between jobs: the model of the last program is built already."""

    def __init__(self, member: Member) -> None:
        from nfdt.server.service import Service

        self._member = member
        self._peers = os.environ[ADDRESS_VARIABLE].split(",")
        self._workers = int(os.environ[WORKERS_VARIABLE])
        self._built: tuple[str, Any] = ("", None)
        self._desk: Any = None
        self._job = ""
        self._service = Service(member.blobs, member.token, listening_at(self._peers[member.rank]), self._failed)

    def run(self) -> None:
        for command in self._member.commands():
            try:
                self._obey(command)
            except Exception as error:
                self._failed(error, traceback.format_exc())
        self._service.close()

    def _obey(self, command: Command) -> None:
        kind = command.WhichOneof("kind")
        if kind == "setup":
            self._set_up(JobSpec.from_proto(command.setup.job), command.setup)
        elif kind == "epoch":
            self._desk.start_epoch(command.epoch.epoch, _state(command.epoch.changed))
        elif kind == "step":
            self._desk.step(_state(command.step.changed))
        elif kind == "end_epoch":
            self._desk.stop_epoch()
        elif kind == "leave" and command.job == self._job:
            self._desk.lose(command.leave.rank, command.leave.incarnation)
        elif kind == "finish":
            self._desk.finish()
            self._send(Event(finished=Finished()))

    def _set_up(self, spec: JobSpec, setup: Setup) -> None:
        from nfdt.server.desk import Desk
        from nfdt.server.follower import FollowingDesk
        from nfdt.server.job import ServedJob

        self._job = spec.id
        shard, shards = self._member.rank, self._member.size
        if self._desk is not None:
            self._desk.close()
        program = self._build(spec.program)
        job = ServedJob(spec, program, self._member.blobs, shard, shards, self._workers, setup.generation)
        self._desk = desk = (FollowingDesk if shard else Desk)(job, self._workers, self._send)
        if setup.snapshot.id:
            desk.restore(setup.snapshot)
        self._service.show(desk)
        if shard:
            threading.Thread(target=self._follow, args=(desk, spec.id), daemon=True).start()
        elif job.options.checkpoint_s:
            threading.Thread(target=self._keep, args=(desk, job.options.checkpoint_s), daemon=True).start()
        self._send(Event(ready=Ready(address=self._service.address)))
        desk.resume()

    def _keep(self, desk: Any, every_s: float) -> None:
        while not desk.closed.wait(every_s):
            try:
                desk.checkpoint()
            except Exception as error:
                self._failed(error, traceback.format_exc())

    def _build(self, program: Program) -> Any:
        from fdt.trainable import build

        if self._built[0] != program.digest:
            self._built = (program.digest, build(program, self._member.blobs))
        return self._built[1]

    def _follow(self, desk: Any, job: str) -> None:
        from nfdt.transport.client import Interrupted, interrupted

        try:
            channel = open_channel(self._peers[0])
            call = channel.unary_stream("/nfdt.rpc.ParameterServer/Follow", response_deserializer=pb.Logged.FromString)
            request = pb.FollowRequest(job=job, generation=desk.job.generation).SerializeToString()
            with interrupted():
                desk.replay(call(request, metadata=credentials(self._member.token), wait_for_ready=True))
        except Exception as error:
            if isinstance(error, Interrupted):
                print(f"shard 0 is gone: {error}", file=sys.stderr, flush=True)  # the engine knows why
            else:
                self._failed(error, traceback.format_exc())

    def _send(self, event: Event) -> None:
        event.job = self._job
        self._member.send(event)

    def _failed(self, error: Exception, detail: str) -> None:
        print(detail, file=sys.stderr, flush=True)
        known = isinstance(error, UserError)
        message = (
            str(error) if known else f"server {self._member.rank} failed. Received: {type(error).__name__}: {error}"
        )
        self._send(Event(failed=Failed(message=message, detail="" if known else detail)))


def _state(message: Any) -> State:
    return State(message.model, message.optimizer)


def main() -> None:
    member = Member.attach("server")
    warm_up(member.run_dir, computes=False)
    Server(member).run()


if __name__ == "__main__":
    main()
