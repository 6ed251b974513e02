"""Process of a parameter server: `python -m nfdt.server`, started by the engine."""

import json
import os
import sys
import threading
import traceback
from typing import Any

from client_shim.surroundings import take_over
from fdt.environment import warm_up
from fdt.errors import UserError
from fdt.job import JobSpec, State
from fdt.rpc.session_pb2 import Command, Event, Failed, Finished, Ready, Setup
from fdt.service.member import Member, reach

ADDRESS_VARIABLE = "FDT_SERVERS"  # JSON: the addresses of all shards, by rank
WORKERS_VARIABLE = "FDT_WORKERS"
PLACES_VARIABLE = "FDT_PLACES"  # largest number of workers, elastic workers included


class ServerProcess:
    """One shard. It stays alive between jobs and reuses the model of the last program."""

    def __init__(self, member: Member) -> None:
        from nfdt.server.service import Service

        self._member = member
        self._peers: list[str] = json.loads(os.environ[ADDRESS_VARIABLE])
        self._workers, self._places = int(os.environ[WORKERS_VARIABLE]), int(os.environ[PLACES_VARIABLE])
        self._built: tuple[Any, Any] = (None, None)  # JobSpec.made_for, Trainable
        self._shard_service: Any = None
        self._job = ""
        self._service = Service(member.blobs, member.token, self._peers[member.rank], self._failed)

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
            self._shard_service.start_epoch(command.epoch.epoch, State.of(command.epoch.changed), command.epoch.begin)
        elif kind == "step":
            self._shard_service.step(State.of(command.step.changed))
        elif kind == "end_epoch":
            self._shard_service.stop_epoch()
        elif kind == "suspend":
            self._shard_service.suspend()
        elif kind == "leave" and command.job == self._job:
            self._shard_service.lose(command.leave.rank, command.leave.incarnation)
        elif kind == "finish":
            self._shard_service.finish()
            self._send(Event(finished=Finished()))

    def _set_up(self, spec: JobSpec, setup: Setup) -> None:
        from nfdt.server.follower import FollowerShardService
        from nfdt.server.job import ServedJob, served
        from nfdt.server.shard_service import ShardService

        self._job = spec.id
        shard, shards = self._member.rank, self._member.size
        if self._shard_service is not None:
            self._shard_service.close()
        take_over(spec.surroundings)
        program = self._build(spec)
        job = ServedJob(
            spec, program, self._member.blobs, shard, shards, self._workers, setup.generation, places=self._places
        )
        kind = FollowerShardService if shard else ShardService
        self._shard_service = shard_service = served(kind, job, self._workers, self._send)
        if setup.snapshot.id:
            shard_service.restore(setup.snapshot)
        self._service.show(shard_service)
        if shard:
            threading.Thread(target=self._follow, args=(shard_service,), daemon=True).start()
        elif job.options.checkpoint_s:
            threading.Thread(target=self._keep, args=(shard_service, job.options.checkpoint_s), daemon=True).start()
        self._send(Event(ready=Ready(address=self._service.address)))
        shard_service.resume()

    def _keep(self, shard_service: Any, every_s: float) -> None:
        while not shard_service.closed.wait(every_s):
            try:
                shard_service.checkpoint()
            except Exception as error:
                self._failed(error, traceback.format_exc())

    def _build(self, spec: JobSpec) -> Any:
        from fdt.trainable import build

        if self._built[0] != spec.made_for:
            self._built = (spec.made_for, build(spec.program, self._member.blobs))
        return self._built[1]

    def _follow(self, shard_service: Any) -> None:
        from nfdt.server.follower import follow

        try:
            follow(shard_service, reach(self._peers[0]), self._member.token)
        except Exception as error:
            self._failed(error, traceback.format_exc())

    def _send(self, event: Event) -> None:
        event.job = self._job
        self._member.send(event)

    def _failed(self, error: Exception, detail: str) -> None:
        print(detail, file=sys.stderr, flush=True)
        known = isinstance(error, UserError)
        message = str(error) if known else f"server {self._member.rank} failed: {type(error).__name__}: {error}"
        self._send(Event(failed=Failed(message=message, detail="" if known else detail)))


def main() -> None:
    """Run a parameter server until the engine ends it."""
    member = Member.attach("server")
    warm_up(member.blobs, computes=False)
    ServerProcess(member).run()


if __name__ == "__main__":
    main()
