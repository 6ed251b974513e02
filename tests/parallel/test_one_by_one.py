"""Members that are started one by one, on a host that is this machine."""

import json
import os
import signal
import sys
import time

import pytest

from fdt.errors import UserError
from fdt.launch import Task
from fdt.launch.hosts import Host
from fdt.launch.over_hosts import OneByOneLauncher
from fdt.service.member import ENGINE_VARIABLE
from tests.namespaces import until

MEMBER = """
import json, os, signal
names = ("FDT_RANK", "FDT_LOCAL_RANK", "FDT_LOCAL_SIZE", "FDT_ENGINE", "FDT_TOKEN")
said = {name: os.environ[name] for name in names} | {"pid": os.getpid(), "there": os.environ["FDT_HOST_DIRECTORY"]}
path = os.environ["FDT_RANK"] + ".json"
with open(path + ".new", "w") as file:
    json.dump(said, file)
os.rename(path + ".new", path)
signal.pause()
"""


def said_by(directory, rank, before=0):
    """What the member of that rank says of itself, once it is another process than `before`."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        try:
            said = json.loads((directory / f"{rank}.json").read_text())
        except FileNotFoundError:
            said = {"pid": before}
        if said["pid"] != before:
            return said
        time.sleep(0.02)
    raise AssertionError(f"no member {rank}")


def fail():
    raise UserError("no route to host")


@pytest.fixture
def running(tmp_path, monkeypatch):
    (tmp_path / "sitting.py").write_text(MEMBER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    launcher = OneByOneLauncher(tmp_path, [Host("localhost", 3)], {"localhost": "127.0.0.2"})
    env = {ENGINE_VARIABLE: "unix:/x,0.0.0.0:7", "FDT_TOKEN": "secret"}
    running = launcher.start(Task("worker", (sys.executable, "-m", "sitting"), 3, env))
    yield running
    running.stop()


def test_each_has_its_place_and_one_that_is_lost_is_replaced(running, tmp_path, monkeypatch):
    members = [said_by(tmp_path, rank) for rank in range(3)]
    names = ("FDT_RANK", "FDT_LOCAL_RANK", "FDT_LOCAL_SIZE", "FDT_TOKEN", "FDT_ENGINE")
    assert [[m[name] for name in names] for m in members] == [
        [str(rank), str(rank), "3", "secret", "unix:/x,127.0.0.2:7"] for rank in range(3)
    ]
    os.kill(members[2]["pid"], signal.SIGKILL)
    until(running.exits)
    (lost,) = running.exits()
    assert (lost.rank, lost.cause) == (2, "signal 9 (SIGKILL)")

    running._where[2], running._names = "gone", ["gone", "localhost"]  # where it was is out of reach now
    bring = running._over.bring
    monkeypatch.setattr(running._over, "bring", lambda task, hosts: bring(task, hosts) if hosts != ["gone"] else fail())
    running.restart(2)
    again = said_by(tmp_path, 2, members[2]["pid"])
    assert again["there"] != members[0]["there"], "what a member must know is brought anew"
    assert running.exits() == []
    running.stop()
    for member in (*members[:2], again):
        until(lambda there=member["there"]: not os.path.exists(there))  # where rm is slow, by its own process
        with pytest.raises(ProcessLookupError):
            os.kill(member["pid"], 0)
