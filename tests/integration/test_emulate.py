"""Emulated hosts: the bytes cross the interfaces, and a step takes as long as on the simulated clock."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from client_shim.replica.emulated_ranks import entered
from fdt.errors import UsageError, UserError
from fdt.launch import Task, stat_of
from fdt.launch.emulated import (
    INTERFACES,
    EmulatedHost,
    EmulatedLauncher,
    EmulatedNetwork,
    address_of,
    host_on,
)
from fdt.launch.namespaces import check_privilege, inside, network_of
from fdt.network import Cluster, NetworkLink, NodeGroup
from fdt.network.reading import parse_cluster
from fdt.network.topology import topology_of
from fdt.service.member import ENGINE_VARIABLE
from hfdt.cli import main as hfdt_main
from nfdt.cli import main

CONTROL = Path(__file__).parents[2] / "examples" / "control"
SCRIPT = Path(__file__).parent / "scripts" / "wide.py"
LOOP = Path(__file__).parent / "scripts" / "wide_loop.py"
READY_S = 100.0
CLUSTER = """
step: 100 ms
link: {bandwidth: 8 Mbit/s}
server: {bandwidth: unlimited}  # two workers in step would share it exactly in the model, and never quite so here
nodes: [{name: node, count: 2}]
"""


def nfdt(*words, engine="nfdt"):
    argv = [sys.executable, "-m", engine, *map(str, words)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def privilege():
    try:
        check_privilege()
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.exclusive
@pytest.mark.timeout(400)
def test_bytes_cross_the_links_and_steps_take_the_simulated_time(tmp_path, privilege):
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    nfdt("run", "--emulate", cluster, "--algorithm", "asgd", "--overlap", "off", "--log-dir", tmp_path / "logs", SCRIPT)
    nfdt("simulate", SCRIPT, "--cluster", cluster, "--algorithm", "asgd", "--data", tmp_path / "data")
    records = [json.loads(line) for line in (tmp_path / "logs" / "records.jsonl").read_text().splitlines()]
    ends = [record for record in records if record["kind"] == "epoch_end"]
    crossed = json.loads((tmp_path / "logs" / INTERFACES).read_text())
    assert sorted(crossed) == ["node-0", "node-1", "server"]
    for here, there in (("sent", "received"), ("received", "sent")):
        reported = sum(end[f"bytes_{here}"] for end in ends)
        counted = crossed["node-0"][here] + crossed["node-1"][here]
        assert reported <= counted <= 1.2 * reported, f"{here}: {reported:,} reported, {counted:,} counted"
        assert reported <= crossed["server"][there]
    simulated = json.loads((tmp_path / "data" / "run.json").read_text())["fits"][0]["epochs"]
    expected_s = simulated[1]["simulated_s"] - simulated[0]["simulated_s"]
    fastest_s = min(end["seconds"] for end in ends[1:])  # the first compiles; others may be slowed down
    assert fastest_s == pytest.approx(expected_s, rel=0.25)


@pytest.mark.exclusive
@pytest.mark.timeout(400)
def test_ranks_add_gradients_over_the_links(tmp_path, privilege):
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER.replace("8 Mbit/s", "1 Gbit/s, latency: 1 ms"))
    options = ("--compress", "auto", "--bucket-mb", "auto", "--shard-optimizer=auto", "--partition", "random-sampling")
    nfdt("run", "--emulate", cluster, *options, "--log-dir", tmp_path / "logs", SCRIPT, engine="hfdt")
    records = [json.loads(line) for line in (tmp_path / "logs" / "records.jsonl").read_text().splitlines()]
    reported = sum(record["bytes_sent"] for record in records if record["kind"] == "epoch_end")
    (ready,) = [record for record in records if record["kind"] == "ready"]
    assert (ready["chosen"]["shard_optimizer"], ready["chosen"]["bucket_mb"]) == (0, 4)
    step_ms, _, computing_ms = map(float, re.findall(r"([\d.e+]+) ms", ready["why_chosen"])[-3:])
    assert step_ms - computing_ms >= 3.9  # two messages of an exchange, each over two links
    of_a_step = 4 * 76_810 // (2 if ready["chosen"]["compress"] == "fp16" else 1)  # to the only other rank, and back
    assert reported == pytest.approx(2 * 40 * of_a_step, rel=0.01)
    crossed = json.loads((tmp_path / "logs" / INTERFACES).read_text())
    assert sorted(crossed) == ["node-0", "node-1", "rendezvous"]
    for node in ("node-0", "node-1"):  # a ring of two sends each byte once; Horovod's negotiations come on top
        assert reported / 2 <= crossed[node]["sent"] <= 2 * reported / 2
    assert crossed["rendezvous"]["sent"] < reported / 10


@pytest.mark.exclusive
@pytest.mark.timeout(400)
def test_ranks_of_a_loop_of_the_scripts_own_add_gradients_over_the_links(tmp_path, privilege):
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER.replace("8 Mbit/s", "200 Mbit/s, latency: 1 ms"))
    said = nfdt("run", "--emulate", cluster, "--quiet", "--log-dir", tmp_path / "logs", LOOP, engine="hfdt")
    assert said == "[-31.0]\n"
    crossed = json.loads((tmp_path / "logs" / INTERFACES).read_text())
    assert sorted(crossed) == ["node-0", "node-1"]
    vector = 4 * 76_810
    for node, other, vectors in (("node-0", "node-1", 5), ("node-1", "node-0", 4)):  # rank 0 sends the variable, too
        for bytes_crossed in (crossed[node]["sent"], crossed[other]["received"]):
            assert vectors * vector <= bytes_crossed <= 1.1 * vectors * vector
    assert (tmp_path / "logs" / "worker-1.log").exists()


ANSWERS = """
import os, socket, time

if os.environ["FDT_RANK"] == "0":
    with socket.create_server(("", 5000)) as listening:
        peer = listening.accept()[0]
        with peer:
            peer.sendall(peer.recv(1))
else:
    while True:
        try:
            peer = socket.create_connection(("10.77.0.1", 5000))
            break
        except OSError:
            time.sleep(0.05)
    with peer:
        began = time.monotonic()
        peer.sendall(b"?")
        peer.recv(1)
        print("took", time.monotonic() - began)
"""


def test_an_answer_takes_the_latency_of_its_links(tmp_path, privilege):
    (tmp_path / "engine").touch()
    network = EmulatedNetwork(topology_of(Cluster((NodeGroup("node", 2),), link=NetworkLink(latency_s=0.02))))
    launcher = EmulatedLauncher(
        tmp_path, network, lambda role, rank: EmulatedHost(rank, f"node-{rank}", address_of(rank))
    )
    task = Task("worker", [sys.executable, "-c", ANSWERS], 2, {ENGINE_VARIABLE: f"unix:{tmp_path / 'engine'}"})
    processes = launcher.start(task)
    try:
        deadline = time.monotonic() + READY_S
        while len(processes.exits()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        processes.stop(0.0)
        network.close()
    took_s = float((tmp_path / "worker-1.log").read_text().split("took")[1])
    assert took_s >= 0.08  # two links there, two back


def test_a_process_has_some_of_its_sockets_on_a_host(tmp_path, privilege):
    cluster = Cluster((NodeGroup("node", 2),))
    network, before = EmulatedNetwork(topology_of(cluster)), socket.if_nameindex()
    launcher = EmulatedLauncher(tmp_path, network, lambda role, rank: host_on(cluster, rank), first=1)
    try:
        with entered(network, host_on(cluster, 0)), pytest.raises(ZeroDivisionError):
            listening = socket.create_server(("", 5000))
            assert [name for _, name in socket.if_nameindex()] == ["lo", "eth0"]
            raise ZeroDivisionError
        assert socket.if_nameindex() == before
        call = "import socket; socket.create_connection(('10.77.0.2', 5000)).sendall(b'here')"
        processes = launcher.start(Task("rank", [sys.executable, "-c", call], 1, {ENGINE_VARIABLE: "10.77.0.2:5000"}))
        with listening:
            listening.settimeout(READY_S)
            caller, (address, _) = listening.accept()
        with caller:
            assert (address, caller.recv(4)) == (host_on(cluster, 1).address, b"here")
        processes.stop(0.0)
    finally:
        network.close()
    assert (tmp_path / "rank-1.log").exists()
    assert sorted(json.loads((tmp_path / INTERFACES).read_text())) == ["node-0", "node-1"]


SENDS = """
import os, socket, time

if os.environ["FDT_RANK"] == "1":
    with socket.create_server(("", 5000)) as listening, listening.accept()[0] as peer:
        while peer.recv(65536):
            pass
else:
    while True:
        try:
            peer = socket.create_connection(("10.77.0.3", 5000))
            break
        except OSError:
            time.sleep(0.05)
    with peer:
        peer.sendall(bytes(300_000))
"""
ROUND = """
switches: [hub]
nodes: [{name: a, count: 1}, {name: b, count: 1}]
links:
  - [a, b, {latency: 20 ms}]
  - [a, hub, {latency: 1 ms}]
  - [hub, b]
"""


@pytest.mark.exclusive
def test_in_a_cycle_bytes_take_the_route_of_least_latency_and_nothing_circulates(tmp_path, privilege):
    (tmp_path / "engine").touch()
    cluster = parse_cluster(ROUND)
    network = EmulatedNetwork(topology_of(cluster))
    launcher = EmulatedLauncher(tmp_path, network, lambda role, rank: host_on(cluster, rank))
    processes = launcher.start(
        Task("worker", [sys.executable, "-c", SENDS], 2, {ENGINE_VARIABLE: f"unix:{tmp_path / 'engine'}"})
    )
    try:
        deadline = time.monotonic() + READY_S
        while len(processes.exits()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [each.cause for each in processes.exits()] == ["exit code 0"] * 2
        links = json.loads(inside(network_of(network._switch.pid), ["ip", "-s", "-j", "link"]))
    finally:
        processes.stop(0.0)
        network.close()
    sent = {link["ifname"]: link["stats64"]["tx"]["bytes"] for link in links}
    assert sent["l0a"] < 30_000 and 300_000 < min(sent["l1a"], sent["l2a"])
    assert max(sent.values()) < 400_000


def test_what_crossed_is_known_of_a_host_whose_process_has_ended(tmp_path, privilege):
    (tmp_path / "engine").touch()
    network = EmulatedNetwork(topology_of(Cluster((NodeGroup("node", 2),))))
    launcher = EmulatedLauncher(
        tmp_path, network, lambda role, rank: EmulatedHost(rank, f"node-{rank}", address_of(rank))
    )
    processes = launcher.start(Task("worker", ["true"], 2, {ENGINE_VARIABLE: f"unix:{tmp_path / 'engine'}"}))
    try:
        deadline = time.monotonic() + READY_S
        while len(processes.exits()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [each.cause for each in processes.exits()] == ["exit code 0"] * 2
    finally:
        processes.stop(0.0)
        network.close()
    assert sorted(json.loads((tmp_path / INTERFACES).read_text())) == ["node-0", "node-1"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "cluster"),
    [("ring", "links"), ("tree", "tree"), pytest.param("hierarchy", "hierarchy", marks=pytest.mark.exclusive)],
)
def test_programs_of_peers_compute_the_same_on_emulated_hosts(name, cluster, privilege):
    pytest.importorskip("sklearn")
    words = ("control", CONTROL / f"{name}.py", "--cluster", CONTROL / f"{cluster}.yaml")
    short = ("--", "--rounds", "2") if name == "hierarchy" else ("--", "--steps", "3")
    simulated, emulated = nfdt(*words, *short), nfdt(*words, "--emulate", *short)
    assert re.findall(r"accuracy [\d.]+", simulated) == re.findall(r"accuracy [\d.]+", emulated) != []


PROGRAM = """
import gc, os, pickle, signal, socket, sys, threading, time
import numpy as np
import nfdt.control.emulated
from nfdt.control import peers

a, b = peers
a.compute("pid", os.getpid)


def host():
    import __main__
    return next(each for each in gc.get_objects() if isinstance(each, __main__.PeerHost))


class Unreadable:
    def __init__(self, function=int, *arguments):
        self.reduced = function, arguments or ("x",)

    def __reduce__(self):
        return self.reduced


def is_unlocked(_):
    from nfdt.control import peers
    acquired = []

    def acquire():
        acquired.append(peers._changed.acquire(timeout=20))
        if acquired[0]:
            peers._changed.release()

    other = threading.Thread(target=acquire)
    other.start()
    other.join()
    return acquired


def close():
    socket.socket(fileno=os.dup(host()._control.fileno())).shutdown(socket.SHUT_WR)
    time.sleep(600)


def closed():
    nfdt.control.emulated.END_S = 0.5
    a.compute("t", close)
    peers.wait()


def interrupted():
    release = peers._changed._release_save
    peers._changed._release_save = lambda: (release(), signal.raise_signal(signal.SIGINT))[0]
    a.compute("t", lambda: time.sleep(600))
    peers.wait()


def stopped(size):
    nfdt.control.emulated.STOPPED_S = 0.5
    os.kill(int(a.read("pid")), signal.SIGSTOP)
    payload = bytes(size)
    a.compute("t", lambda: payload)
    peers.wait()


def killed():
    os.kill(pid := int(a.read("pid")), signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def unpicklable():
    try:
        a.compute("t", threading.Lock().acquire)
    except TypeError:
        print("caught")


def newline():
    a.compute("t\\nx", lambda: np.ones(3))
    a.send(b, "t\\nx")
    b.wait("t\\nx")
    print(b.read("t\\nx").sum())


def late():
    def slow():
        this, reply, pauses = host(), host()._reply, iter((0, 6, 0))
        this._reply = lambda *given: (time.sleep(next(pauses)), reply(*given))
        return np.ones(3)

    b.compute("u", slow)
    a.compute("t", lambda: np.ones(3))
    a.send(b, "t")
    b.wait("t")  # the tensor has come, and b stands still
    print(b.read("t").sum())


"""
HOSTILE = {
    "killed()": "peer n-0 was lost: signal 9 (SIGKILL)\n",
    "killed(); a.compute('t', lambda: 1)": "peer n-0 was lost: signal 9 (SIGKILL)\n",
    "stopped(1)": "peer n-0 has been stopped for 0.5 s, by SIGSTOP or a debugger\n",
    "stopped(1_000_000)": "peer n-0 has been stopped for 0.5 s, by SIGSTOP or a debugger\n",  # more than a socket takes
    "closed()": "peer n-0 has closed its connection to the program, and has not ended\n",
    "a.compute('t', lambda: Unreadable(sys.exit, 3)); a.read('t')": "`n-0: read t` failed: SystemExit: 3\n",
    "a.compute('t', lambda: Unreadable()); a.read('t')": "`n-0: read t` failed: ValueError: invalid literal",
    "a.compute('t', lambda: host()._reply(999)); peers.wait()": "peer n-0 sent an answer that cannot be read: KeyError",
    "a.compute('t', lambda: host()._control.send_bytes(b'x')); peers.wait()": "sent an answer that cannot be read",
    "a.compute('t', lambda: os._exit(3)); peers.wait()": "peer n-0 was lost: exit code 3\n",
    "a.send(b, 'none')\ntry: peers.wait()\nexcept Exception: pass": "`n-0: send none` failed: the peer has no tensor",
}
RIGHT = {
    "unpicklable()": "caught\n",
    "newline()": "3.0\n",
    "late()": "3.0\n",
    "a.compute('t', lambda: Unreadable(is_unlocked, 0)); print(a.read('t'))": "[True]\n",
}


def started(tmp_path, line, **variables):
    """The process of a control program that ends with `line`."""
    program, cluster = tmp_path / "program.py", tmp_path / "cluster.yaml"
    program.write_text(PROGRAM + line)
    cluster.write_text("nodes: [{name: n, count: 2}]")
    argv = [sys.executable, "-m", "nfdt", "control", str(program), "--cluster", str(cluster), "--emulate"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(argv, env={**os.environ, **variables}, **pipes)


def run_to_end(tmp_path, line):
    """(exit code, stdout, stderr) of a control program that ends with `line`."""
    with started(tmp_path, line) as process:
        try:
            output, errors = process.communicate(timeout=180)
        finally:
            process.kill()
    return process.returncode, output, errors


@pytest.mark.timeout(200)
@pytest.mark.parametrize("line", HOSTILE)
def test_a_peer_that_misbehaves_ends_the_program_by_name(line, tmp_path, privilege):
    code, _, errors = run_to_end(tmp_path, line)
    assert code == 1 and HOSTILE[line] in errors and "nfdt: error: " in errors, errors


@pytest.mark.timeout(200)
@pytest.mark.parametrize("line", RIGHT)
def test_what_is_no_fault_of_a_peer_ends_well(line, tmp_path, privilege):
    code, output, errors = run_to_end(tmp_path, line)
    assert (code, output) == (0, RIGHT[line]), errors


@pytest.mark.timeout(200)
def test_ctrl_c_while_a_wait_has_released_its_lock_is_one_line(tmp_path, privilege):
    code, _, errors = run_to_end(tmp_path, "interrupted()")
    assert (code, errors.strip()) == (130, "nfdt: interrupted")


@pytest.mark.timeout(200)
def test_sigkill(tmp_path, privilege):
    """A killed command leaves no process, no namespace and no file. `run --emulate` has the same launcher."""
    scratch = tmp_path / "t"
    scratch.mkdir()
    line = "b.compute('pid', os.getpid); print(a.read('pid'), b.read('pid'), peers._network._switch.pid, flush=True)"
    with started(
        tmp_path, f"{line}; a.compute('t', lambda: time.sleep(600)); peers.wait()", TMPDIR=str(scratch)
    ) as run:
        pids = [int(pid) for pid in run.stdout.readline().split()]
        networks = {os.readlink(f"/proc/{pid}/ns/net") for pid in pids}
        assert len(networks) == 3 and list(scratch.iterdir())
        run.kill()
    deadline = time.monotonic() + 60
    while (list(scratch.iterdir()) or any(map(is_running, pids))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(scratch.iterdir()) == [] and [pid for pid in pids if is_running(pid)] == []
    assert networks.isdisjoint(network_of_process(path) for path in Path("/proc").glob("[0-9]*/ns/net"))


def is_running(pid):
    fields = stat_of(pid)
    return bool(fields) and fields[0] != "Z"


def network_of_process(path):
    with contextlib.suppress(OSError):
        return os.readlink(path)


@pytest.mark.parametrize("name", ["a_b", "-x", "a b", "a..b", "x" * 65])
def test_a_host_needs_a_name_of_a_host(name):
    with pytest.raises(UsageError, match="--emulate needs names of nodes that can be names of hosts: .* Received: "):
        EmulatedHost(0, name, address_of(1))


def test_what_cannot_be_emulated(tmp_path):
    script, cluster = tmp_path / "train.py", tmp_path / "cluster.yaml"
    script.write_text("")
    cluster.write_text("medium: {}\nnodes: [{count: 3}]")
    for words in (["run", "--emulate", str(cluster)], ["control", "--emulate", "--cluster", str(cluster)]):
        result = CliRunner().invoke(main, [*words, str(script)])
        assert "--emulate needs links between two nodes each" in result.output and result.exit_code == 2
    for command in (main, hfdt_main):
        result = CliRunner().invoke(command, ["run", "--emulate", str(cluster), "-np", "3", str(script)])
        assert "--emulate takes the workers from its file. Received: -np 3 too" in result.output
