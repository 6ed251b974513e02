"""A member that answers without training, for the supervisor's tests."""

import importlib
import os
import signal

from fdt.rpc.session_pb2 import EpochEnd, Event, Finished, Ready
from fdt.service.member import Member

DEADLY_EPOCH = 7
ONCE_DEADLY_EPOCH = 8
MPI_EPOCH = 9

member = Member.attach("worker")


def dies(epoch):
    died = member.run_dir / "died"
    if epoch == ONCE_DEADLY_EPOCH and not died.exists():
        died.touch()
        return True
    return epoch == DEADLY_EPOCH


for command in member.commands():
    kind = command.WhichOneof("kind")
    if kind == "setup":
        print("hello from", member.rank)
        ready = Ready(steps_per_epoch=3, notes=f"note\nrank {member.rank}", suspendable=member.suspended)
        member.send(Event(job=command.job, ready=ready))
    elif kind == "epoch":
        if member.rank == 1 and dies(command.epoch.epoch):
            os.kill(os.getpid(), signal.SIGKILL)
        if command.epoch.epoch == MPI_EPOCH:
            importlib.import_module("mpi4py.MPI")  # calls MPI_Init
        member.send(Event(job=command.job, epoch_end=EpochEnd(epoch=command.epoch.epoch, samples=5 + member.rank)))
    elif kind == "finish":
        member.send(Event(job=command.job, finished=Finished()))
