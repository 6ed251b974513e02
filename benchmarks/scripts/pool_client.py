"""A client of benchmarks/pool.py: does jobs in turn, as they are to go. `pool_client.py ADDRESS DIRECTORY USER JOBS`.

JOBS is JSON. The recorded job is in DIRECTORY/job, the user's certificate in DIRECTORY/certs, the token in FDT_TOKEN.
"""

import json
import os
import pickle
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # so that it runs from a checkout that is not installed
from fdt.errors import UserError
from fdt.rpc.session_pb2 import Command, Epoch, Finish, JobRequest, Setup
from fdt.security.auth import TlsIdentity
from fdt.service.client import TrainingClient
from fdt.supervise import blobs_in

faults = 0  # losses of the current job that were made good


def client(address: str, directory: str, user: str, jobs: str) -> int:
    """Do the jobs in turn, and print a JSON line for each that ends."""
    global faults
    setup, contents = pickle.loads(Path(directory, "job").read_bytes())
    identity = identity_of(Path(directory), user)
    for job in json.loads(jobs):
        started, faults = time.monotonic(), 0
        print(json.dumps({"job": job["id"], "begins": True}), flush=True)
        try:
            loss = do((address, identity), Setup.FromString(setup), contents, job, random.Random(job["id"]))
            said = {"loss": loss}
        except UserError as error:
            said = {"error": str(error)}
        print(
            json.dumps({"job": job["id"], **said, "faults": faults, "seconds": time.monotonic() - started}), flush=True
        )
    return 0


def identity_of(directory: Path, user: str) -> TlsIdentity:
    certs = directory / "certs"
    return TlsIdentity.read(certs / f"{user}.pem", certs / f"{user}.key", certs / "ca.pem")


def do(
    server: tuple[str, TlsIdentity],
    setup: Setup,
    contents: dict[str, bytes],
    job: dict[str, Any],
    chance: random.Random,
) -> float:
    """Do one job; return its last loss. Raises UserError where it fails."""
    how, (address, identity) = job["how"], server
    request = JobRequest(workers=job["slots"], name=f"{job['id']} {how}", priority=job["priority"])
    if how == "too many slots":
        request.workers = 99
    if how == "no such priority":
        request.priority = 77
    token = "wrong" if how == "wrong token" else os.environ["FDT_TOKEN"]
    talk = TrainingClient(address, token, identity, request)
    if how == "not a program":
        contents = {name: chance.randbytes(len(data)) for name, data in contents.items()}
    put = [(ref, talk.blobs.put(contents[ref.id])) for ref in blobs_in(setup) if ref.id]
    for ref, new in put if how != "no blobs" else ():
        ref.CopyFrom(new)
    setup.job.id = str(job["id"])
    setup.job.options["restarts"] = str(job["restarts"])
    conversation = talk.train()
    try:
        return converse(conversation, talk, setup, how, chance)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # a job that ended before its kill: the next one is not killed
        conversation.cancel()
        for _, new in put:
            talk.blobs.drop(new)
        talk.close()


def converse(conversation: Any, talk: TrainingClient, setup: Setup, how: str, chance: random.Random) -> float:
    def send(**kind: Any) -> None:
        if how == "slow":
            time.sleep(chance.uniform(0, 3))
        conversation.send(Command(job=setup.job.id, **kind))

    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    in_training = chance.random() < 0.5
    if how == "killed" and not in_training:  # most of these still wait
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.01, 20))
    send(epoch=Epoch()) if how == "an epoch first" else send(setup=setup)
    global faults
    loss, epoch = float("nan"), 0
    for event in conversation.events():
        kind = event.WhichOneof("kind")
        faults += kind == "fault"
        if kind == "failed":
            raise UserError(event.failed.message)
        if kind == "finished":
            conversation.close()
            return loss
        if kind == "epoch_end":
            loss, epoch = event.epoch_end.logs["loss"], epoch + 1
            for ref in blobs_in(event.epoch_end):
                talk.blobs.drop(ref)
        if kind == "ready" and how == "killed" and in_training:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.01, 2))
        if kind in ("ready", "epoch_end"):
            if how == "cancelled by the client" and epoch == 1:
                raise UserError("cancelled by the client")
            send(epoch=Epoch(epoch=epoch)) if epoch < setup.job.fit.epochs else send(finish=Finish())
    raise UserError("the server ended the call")


if __name__ == "__main__":
    sys.exit(client(*sys.argv[1:]))
