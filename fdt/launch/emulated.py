"""A launcher of members on emulated hosts of this machine, with a network of limited bandwidth between them.

A host is a network, UTS and IPC namespace with a /dev/shm of its own. A cluster's links are veth pairs between bridges,
one bridge for each node of its topology, in a separate network namespace that is connected to nothing else. A token
bucket (tc-tbf) limits each direction of a link to its bandwidth. A link with latency is a pair of TAP interfaces with a
relay between them (fdt/launch/delay.py). Where links form a cycle, bridges learn nothing: their forwarding tables have
the topology's routes, and broadcasts (ARP) take a spanning tree. The engine and its members use a Unix socket, which is
on no link, for commands, data and snapshots. A process without an engine, such as the client of a replicated script,
stays in this machine's network and has only some of its sockets on an emulated host.

The kernel removes a namespace with its last process and socket. The engine's own end closes the pipe on which the
process of the network's namespace waits.
"""

import json
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fdt.blobs import LocalBlobs
from fdt.environment import thread_variables
from fdt.errors import UsageError
from fdt.launch import GRACE_S, Exit, Task, delay, describe, stop_all
from fdt.launch.namespaces import await_namespace, check_privilege, crossed, inside, ip, is_stopped, mac_of, network_of
from fdt.network import Cluster, NetworkLink
from fdt.network.topology import SERVER, Topology
from fdt.security import without_links
from fdt.service.member import ENGINE_VARIABLE
from fdt.service.transport import EMULATED_SUBNET
from fdt.signals import shielded

INTERFACES = "interfaces.json"  # in the run's directory: bytes sent and received by each host
BURST_S = 0.004  # seconds of a link's bandwidth that may pass at once
LEAST_BURST = 32_000  # bytes: a few full packets
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST_NAME = re.compile(rf"(?=.{{1,64}}$){_LABEL}([.]{_LABEL})*")

# Runs in the new namespaces: keep the engine's socket reachable, hide this machine's shared memory, let the host's name
# be its address (Gloo looks it up), wait for the link.
_HOST = """
set -e
hostname "$1"; mount --make-rprivate /
[ -z "$3" ] || { : > "$4"; mount --bind "$3" "$4"; }
mount -t tmpfs tmpfs /dev/shm
printf '127.0.0.1 localhost\n%s %s\n' "$2" "$1" > "$4.hosts"; mount --bind "$4.hosts" /etc/hosts
shift 4; read _; exec "$@"
"""


@dataclass(frozen=True)
class EmulatedHost:
    """An emulated host. `place`: its node in the topology. `address`: its IPv4 address.

    Raises:
        UsageError: A host cannot have that name.
    """

    place: int
    name: str
    address: str

    def __post_init__(self) -> None:
        if not _HOST_NAME.fullmatch(self.name):
            raise UsageError(
                "--emulate needs names of nodes that can be names of hosts: 64 characters at most, of a-z, A-Z, 0-9, "
                f". and -, from a letter or digit to a letter or digit. Received: {self.name}"
            )


def address_of(number: int) -> str:
    """Return the IPv4 address of host `number`."""
    return f"{EMULATED_SUBNET}{number // 250}.{number % 250 + 1}"


def host_on(cluster: Cluster, rank: int) -> EmulatedHost:
    """Return the host of worker `rank` of a cluster."""
    node = cluster.workers[rank]
    return EmulatedHost(node.index, node.name, address_of(node.index + 1))


def host_at_server(name: str) -> EmulatedHost:
    """Return the host `name` at the place of a cluster's parameter server."""
    return EmulatedHost(SERVER, name, address_of(0))


class EmulatedNetwork:
    """The bridges and links of `topology`.

    Raises:
        UsageError: The topology has a shared medium.
        UserError: Hosts cannot be emulated here.
    """

    def __init__(self, topology: Topology) -> None:
        if topology.medium.channels:
            raise UsageError("--emulate needs links between two nodes each. Received: a medium that all nodes share")
        check_privilege()
        self._topology = topology
        self._off_tree = _off_spanning_tree(topology)  # numbers of links; without any, bridges find routes themselves
        self._switch = subprocess.Popen(
            ["unshare", "--net", "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # the terminal's Ctrl-C must not end the network before the members
        )
        self._networks: dict[str, int] = {}  # by host: a descriptor of its namespace, to read counters after its end
        self._relay: subprocess.Popen[bytes] | None = None
        try:
            await_namespace(self._switch)
            self._bridges = self._build(topology)
        except BaseException:
            self.close()
            raise

    def attach(self, pid: int, host: EmulatedHost) -> None:
        """Give the namespace of thread or process `pid` its interface, eth0."""
        port, path = f"h{len(self._networks)}", network_of(pid)
        ip(
            network_of(self._switch.pid),
            f"link add {port} type veth peer name eth0 netns {path}",
            f"link set {port} master {self._bridges[host.place]} up",
        )
        ip(path, f"address add {host.address}/16 dev eth0", "link set eth0 up", "link set lo up")
        if self._off_tree:
            self._add_routes(port, mac_of(path), host.place)
        self._networks[host.name] = os.open(path, os.O_RDONLY)

    def counters(self) -> dict[str, dict[str, int]]:
        """Return the bytes that each host has sent and received, also of hosts whose processes have ended."""
        return {host: crossed(f"/proc/{os.getpid()}/fd/{network}") for host, network in self._networks.items()}

    def close(self) -> None:
        """Remove the network."""
        for popen in (self._relay, self._switch):
            if popen is not None:
                popen.kill()  # a forked child may keep the pipe open, so closing it is not enough
                for pipe in (popen.stdin, popen.stdout, popen.stderr):
                    if pipe is not None:
                        pipe.close()
                popen.wait()
        while self._networks:
            os.close(self._networks.popitem()[1])

    def _build(self, topology: Topology) -> dict[int, str]:
        bridges = {place: f"b{number}" for number, place in enumerate(_places(topology))}
        commands = [f"link {verb}" for b in bridges.values() for verb in (f"add {b} type bridge", f"set {b} up")]
        late = {n: latency_s for n in range(len(topology.ends)) if (latency_s := topology.channels[2 * n].latency_s)}
        if late:
            links = [f"l{number}a:l{number}b:{latency_s!r}" for number, latency_s in late.items()]
            self._relay = delay.start(network_of(self._switch.pid), links)
        for number, (a, b) in enumerate(topology.ends):
            made = [] if number in late else [f"link add l{number}a type veth peer name l{number}b"]
            commands += [*made, f"link set l{number}a master {bridges[a]}", f"link set l{number}b master {bridges[b]}"]
        ip(network_of(self._switch.pid), *commands)
        if self._off_tree:
            self._fix_routes()  # before a link is up: a broadcast in a cycle never ends
        ends = [f"l{number}{end}" for number in range(len(topology.ends)) for end in "ab"]
        ip(network_of(self._switch.pid), *(f"link set {end} up" for end in ends))
        for number in range(len(topology.ends)):
            for end, link in zip("ab", topology.channels[2 * number : 2 * number + 2], strict=True):
                self._shape(f"l{number}{end}", link)
        return bridges

    def _fix_routes(self) -> None:
        """Stop all bridges from learning and flooding, so that frames in a cycle end."""
        commands = []
        for number in range(len(self._topology.ends)):
            quiet = "learning off flood off" + (" mcast_flood off bcast_flood off" if number in self._off_tree else "")
            commands += [f"link set dev l{number}{end} {quiet}" for end in "ab"]
        self._bridge(*commands)

    def _add_routes(self, port: str, mac: str, place: int) -> None:
        """Let frames to the host at `place` take the topology's routes. `port`: its own at its bridge."""
        ports = [port]
        for other in self._bridges.keys() - {place}:
            channel = self._topology.route(other, place).channels[0]
            ports.append(f"l{channel // 2}{'ab'[channel % 2]}")
        self._bridge(*(f"fdb replace {mac} dev {each} master static" for each in ports))

    def _bridge(self, *commands: str) -> None:
        inside(network_of(self._switch.pid), ["bridge", "-batch", "-"], "\n".join(commands) + "\n")

    def _shape(self, interface: str, link: NetworkLink) -> None:
        if math.isinf(link.bandwidth):
            return
        burst = max(LEAST_BURST, int(link.bandwidth * BURST_S))
        rate = f"rate {int(link.bandwidth * 8)}bit burst {burst} latency 400ms"
        inside(network_of(self._switch.pid), ["tc", *f"qdisc add dev {interface} root tbf {rate}".split()])


class EmulatedLauncher:
    """Starts each rank on an emulated host of its own, `host_of(role, rank)`; its log is `run_dir`/role-rank.log.

    `first`: the number of a task's first process in logs and for `host_of`.
    """

    def __init__(
        self,
        run_dir: Path,
        network: EmulatedNetwork,
        host_of: Callable[[str, int], EmulatedHost],
        rank_env: Callable[[int], Mapping[str, str]] = lambda rank: {},
        first: int = 0,
    ) -> None:
        self._run_dir, self._network, self._host_of, self._rank_env = run_dir, network, host_of, rank_env
        self._first = first

    def start(self, task: Task) -> "EmulatedProcesses":
        """Implement Launcher."""
        files = LocalBlobs.create(Path(tempfile.gettempdir()))  # removed after SIGKILL, too; each host has its /dev/shm
        running = EmulatedProcesses(task.role, self._run_dir, files, self._network)
        try:
            for rank in range(task.count):
                host = self._host_of(task.role, self._first + rank)
                running.add(self._spawn(task, rank, host, files.directory), host)
        except BaseException:
            running.stop(0.0)
            raise
        return running

    def _spawn(self, task: Task, rank: int, host: EmulatedHost, files: Path) -> "subprocess.Popen[bytes]":
        socket, address = files / f"{task.role}-{rank}", task.env[ENGINE_VARIABLE]
        engine = address.removeprefix("unix:") if address.startswith("unix:") else ""
        ours = {"FDT_RANK": str(rank), "FDT_LOCAL_RANK": "0"}
        if engine:
            ours[ENGINE_VARIABLE] = f"unix:{socket}"
        namespaces = ["unshare", "--net", "--uts", "--ipc", "--mount"]
        argv = [*namespaces, "sh", "-c", _HOST, "host", host.name, host.address, engine, str(socket), *task.argv]
        with (
            open(self._run_dir / f"{task.role}-{self._first + rank}.log", "ab", opener=without_links) as out,
            shielded(),
        ):
            return subprocess.Popen(
                argv,
                env={**os.environ, **thread_variables(task.count), **task.env, **ours, **self._rank_env(rank)},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )


class EmulatedProcesses:
    """The processes of a task on emulated hosts, one Popen for each rank. `stop` removes the store `files`."""

    def __init__(self, role: str, run_dir: Path, files: LocalBlobs, network: EmulatedNetwork) -> None:
        self._role, self._run_dir, self._files, self._network = role, run_dir, files, network
        self._running: list[subprocess.Popen[bytes]] = []

    def add(self, popen: "subprocess.Popen[bytes]", host: EmulatedHost) -> None:
        """Connect a process that has just been started to the network, and let it continue."""
        self._running.append(popen)
        await_namespace(popen)
        self._network.attach(popen.pid, host)
        assert popen.stdin is not None
        popen.stdin.write(b"go\n")
        popen.stdin.close()

    @property
    def pids(self) -> list[int]:
        """The process numbers, by rank."""
        return [popen.pid for popen in self._running]

    def exits(self) -> list[Exit]:
        """Implement Processes."""
        codes = [(rank, popen.poll()) for rank, popen in enumerate(self._running)]
        return [Exit(self._role, rank, describe(code)) for rank, code in codes if code is not None]

    def stopped(self) -> list[int]:
        """Return the ranks whose processes are stopped, by SIGSTOP or a debugger."""
        return [rank for rank, popen in enumerate(self._running) if is_stopped(popen.pid)]

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Implement Processes; record the byte counts of the hosts' interfaces."""
        if counters := self._network.counters():
            (self._run_dir / INTERFACES).write_text(json.dumps(counters))
        stop_all(self._running, grace_s)
        self._files.close()


def _places(topology: Topology) -> list[int]:
    return list(dict.fromkeys(place for ends in topology.ends for place in ends))


def _off_spanning_tree(topology: Topology) -> set[int]:
    """Return the numbers of the links that close a cycle."""
    part = {place: place for place in _places(topology)}  # equal numbers: connected by the links so far
    off = set()
    for number, (a, b) in enumerate(topology.ends):
        if part[a] == part[b]:
            off.add(number)
        part = {place: part[a] if of == part[b] else of for place, of in part.items()}
    return off
