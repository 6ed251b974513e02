"""Strangers of the tests: other users, and root of another host, who call the ports of mpirun and of its daemons."""

import contextlib
import json
import subprocess
from collections.abc import Iterator

from tests.namespaces import PYTHON, NamespaceHosts

STRANGER = 65534
DAEMONS = """
import json, glob
from fdt.security import own_sockets, tcp_sockets
pids = [path.split("/")[2] for path in glob.glob("/proc/[0-9]*/comm")
        if open(path).read().strip() in ("mpirun", "prterun", "prted")]
own = {inode: pid for pid in pids for inode in own_sockets(pid)}
print(json.dumps(sorted([own[s.inode], s.listens, *s.local, *s.remote] for s in tcp_sockets() if s.inode in own)))
"""
CALLS = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
calls = []
for host, port in (word.split(":") for word in sys.argv[2:]):
    calls.append(socket.socket())
    calls[-1].settimeout(3)
    try:
        calls[-1].connect((host, int(port)))
        calls[-1].sendall(bytes(100))
    except OSError:
        pass
print(flush=True)
sys.stdin.read()
"""


def _sockets(hosts: NamespaceHosts, name: str) -> list[list]:
    return json.loads(hosts.output(name, *PYTHON, "-c", DAEMONS))


@contextlib.contextmanager
def no_stranger_is_connected(hosts: NamespaceHosts, names: tuple[str, ...], third: str) -> Iterator[None]:
    """Call all IPv4 ports of the daemons on these hosts: as another user of each of them, and as root of a third.

    The callers wait for the end of the context.
    """
    found = {name: _sockets(hosts, name) for name in names}
    ports: dict[str, list[int]] = {}
    for name, sockets in found.items():
        listening = [(pid, port) for pid, listens, host, port, *_ in sockets if listens and len(host) == 8]
        assert listening and len(listening) == 2 * len(dict(listening)), f"PMIx and the daemons' own: {found}"
        ports[name] = [port for _, port in listening]
    remote = [f"{name}:{port}" for name in names for port in ports[name]]
    callers = []
    try:
        for name, user in (*((name, STRANGER) for name in names), (third, 0)):
            local = [f"127.0.0.1:{port}" for port in ports.get(name, ())]
            argv = hosts.on(name, PYTHON[-1], "-I", "-c", CALLS, user, *local, *remote)
            callers.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for caller in callers:
            assert caller.stdout is not None and caller.stdout.readline()
        assert {name: _sockets(hosts, name) for name in names} == found, "no connection is new"
        yield
    finally:
        for caller in callers:
            caller.communicate()
