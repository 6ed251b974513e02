"""A network that is cut between hosts: who notices, when, in which words. benchmarks/chaos.py cuts real links."""

import contextlib
import socket
import threading

import grpc
import pytest

from client_shim.replica.bootstrap import _ALIVE
from fdt.blobs import LocalBlobs
from fdt.errors import UserError
from fdt.launch import GRACE_S, Task
from fdt.launch.over_hosts import LEAST_REMOVE_S
from fdt.rpc.session_pb2 import Attached
from fdt.service import transport
from fdt.supervise.processes import CUT_OFF_GRACE_S, LaunchedProcesses
from fdt.supervise.supervisor import EXPLAIN_REMOTE_S
from fdt.supervise.worker_registry import WorkerRegistry
from hfdt.collectives import LOST, explained
from hfdt.engine.emulation import GLOO_S
from nfdt.transport.grpc_channel import WELCOME_S
from nfdt.worker.lane import LOST_S

STALLS_S, WITHIN_S = 20, 30  # a host may stand still so long; a lost one is reported within
SPARE_S = 4  # for a machine with a load above 20


@pytest.mark.parametrize(("address", "pings"), [("10.77.0.1:7077", True), ("localhost:7077", False)])
def test_connections_between_emulated_hosts_are_pinged(monkeypatch, address, pings):
    seen = []
    monkeypatch.setenv(transport.EMULATED_VARIABLE, "1")
    monkeypatch.setattr(grpc, "insecure_channel", lambda address, options: seen.append(options))
    monkeypatch.setattr(grpc, "server", lambda pool, *, options, **_: seen.append(options))
    transport.open_channel(address)
    transport.new_server("token")
    assert [set(transport.PINGS) <= set(options) for options in seen] == [pings, True]


def test_a_host_that_stands_still_is_not_lost_and_a_lost_one_is_reported_in_time():
    assert STALLS_S < GLOO_S < WITHIN_S - 4  # the rest: the end of all processes
    assert STALLS_S <= transport.PONG_S
    assert transport.PONG_S + WELCOME_S + LOST_S < WITHIN_S - 4  # before the first session
    assert transport.PING_S + transport.PONG_S + max(WELCOME_S, LOST_S) < WITHIN_S - 4
    noticed_s = transport.PING_S + transport.PONG_S
    assert noticed_s + EXPLAIN_REMOTE_S + CUT_OFF_GRACE_S + LEAST_REMOVE_S <= WITHIN_S - SPARE_S  # over ssh, by mpirun
    alive = {(level, name): value for level, name, value in _ALIVE}  # of a script's own loop
    idle_s, interval_s, patience_ms = (
        alive[socket.IPPROTO_TCP, name] for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)
    )
    assert STALLS_S + idle_s < patience_ms / 1000
    assert patience_ms / 1000 + interval_s + GRACE_S + LEAST_REMOVE_S <= WITHIN_S - SPARE_S


def test_a_launcher_may_explain_the_loss_of_a_remote_member_for_a_shorter_time(tmp_path):
    blobs = LocalBlobs.create()
    registry = WorkerRegistry("hfdt", tmp_path, blobs, {"worker": 2})
    with contextlib.closing(blobs), contextlib.closing(registry):
        registry.attached = {("worker", 0): Attached(host=socket.gethostname()), ("worker", 1): Attached(host="other")}
        assert [registry.is_remote("worker", rank) for rank in (0, 1, 2, None)] == [False, True, False, False]


@pytest.mark.parametrize("words", LOST)
def test_horovods_shutdown_is_one_line_that_names_the_rank(capsys, words):
    other = ValueError("no")
    assert explained(other, 1) is other
    said = explained(RuntimeError(f"UnknownError: {words}. This was caused by"), 1)
    assert isinstance(said, UserError) and str(said).startswith("worker 1 lost its connection to another worker")
    assert words in capsys.readouterr().err, "its own words are in the log"


class Slow:
    """Processes that end when they are allowed to."""

    def __init__(self, allowed=None):
        self.stopping, self.allowed, self.ended = threading.Event(), allowed or threading.Event(), False

    def start(self, task):
        return self

    def exits(self):
        return []

    def stop(self, grace_s=0.0):
        self.stopping.set()
        assert self.allowed.wait(60)
        self.ended = True


def test_a_second_stop_waits_for_the_first():
    """The engine's thread ends the processes of a failed job while the command's end removes their network."""
    slow = Slow()
    launched = LaunchedProcesses([(slow, Task("worker", ("nobody",), 1))], {})
    launched.start()
    first = threading.Thread(target=launched.stop)
    first.start()
    assert slow.stopping.wait(60)
    threading.Timer(0.0, slow.allowed.set).start()
    launched.stop()
    assert slow.ended
    first.join()


def test_the_tasks_of_a_run_are_ended_at_the_same_time():
    """Each may wait for a host that is cut off."""
    servers = Slow()
    workers = Slow(allowed=servers.stopping)
    servers.allowed = workers.stopping
    launched = LaunchedProcesses([(each, Task("worker", ("nobody",), 1)) for each in (workers, servers)], {})
    launched.start()
    launched.stop()
    assert workers.ended and servers.ended
