"""Only this user's processes reach the ports of mpirun and of Gloo's rendezvous on one host."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fdt import security
from fdt.errors import UserError
from fdt.launch import hosts_mpirun, local_mpirun, mpirun
from hfdt import collectives
from hfdt.engine import rendezvous
from tests.namespaces import until

# Listens, prints its port, and prints the first byte of the first connection.
SERVER = """
import socket
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
print(listening.accept()[0].recv(1).decode(), flush=True)
"""

# The same, and prints its port once its socket has a filter (SO_GET_FILTER).
WAITS = """import time
while not listening.getsockopt(socket.SOL_SOCKET, 26, 1024):
    time.sleep(0.001)
"""
FILTERED_SERVER = SERVER.replace("print(listening.g", f"{WAITS}print(listening.g")

STRANGER = """
import os, socket, sys
os.setuid(65534)
called = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
called.sendall(b"s")
print(flush=True)
called.recv(1)
"""


@contextlib.contextmanager
def server(argv=(sys.executable, "-c", SERVER), **words):
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, **words)
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def filtered(pid):
    """Filters of a child, or a skip where the system does not let a parent take its sockets, as in a container."""
    filters = local_mpirun.PortFilters(pid, 1)
    try:
        filters.update()
    except OSError as error:
        filters.close()
        pytest.skip(f"no pidfd_getfd: {error}")
    return filters


def is_accepted(port):
    """Whether the server's kernel has a complete connection at this port."""
    return any(s.local[1] == port and s.remote[1] and not s.listens and s.inode for s in security.tcp_sockets())


def test_a_connection_is_complete_once_its_owner_is_known(monkeypatch):
    with server() as (process, port), contextlib.closing(filtered(process.pid)) as filters:
        with socket.create_connection(("127.0.0.1", port)) as called:
            called.sendall(b"x")
            with monkeypatch.context() as patch:
                patch.setattr(os, "geteuid", lambda: 12345)  # then the caller is another user
                filters.update()
            assert not is_accepted(port) and not filters.done
            filters.update()
            assert filters.done and process.stdout.readline() == "x\n"
        filters.end()
        with socket.socket() as late:
            late.settimeout(0.05)
            with pytest.raises(OSError):
                late.connect(("127.0.0.1", port))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_is_not_served():
    """The stranger calls first; mpirun's stand-in gets the byte of this user's process all the same."""
    with server() as (process, _):
        filtered(process.pid).close()
    argv = (sys.executable, "-I", "-S", local_mpirun.__file__, sys.executable, "-c", FILTERED_SERVER, "-np", "1")
    with server(argv) as (process, port):
        words = (sys.executable, "-I", "-S", "-c", STRANGER, str(port))
        with subprocess.Popen(words, stdout=subprocess.PIPE) as stranger:
            stranger.stdout.readline()
            said = ""
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as called:
                called.sendall(b"o")
                said = process.stdout.readline()
            stranger.kill()
        assert said == "o\n", "the stranger was served"


def test_a_process_that_listens_to_a_stranger_already_is_ended(monkeypatch, capfd):
    with server() as (process, port), socket.create_connection(("127.0.0.1", port)):
        contextlib.closing(filtered(process.pid)).__exit__(None, None, None)
    with server() as (process, port), socket.create_connection(("127.0.0.1", port)):
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        local_mpirun.watch(process, 1)
        assert process.wait() == -9 and local_mpirun.STRANGER in capfd.readouterr().err


@pytest.mark.parametrize("nat", [False, True])
def test_a_call_that_arrives_from_another_address_than_reported_ends_mpirun(monkeypatch, capfd, nat):
    """And one that arrives from the reported address is let through."""
    with server() as (process, port), contextlib.ExitStack() as ends:
        filtered(process.pid).close()
        monkeypatch.setattr(os, "geteuid", lambda: 12345)  # then the caller's owner is not known here
        monkeypatch.setattr(hosts_mpirun, "HELD_S", 0.2)
        calls, called = hosts_mpirun.Calls(), []

        def reported(filters):
            if called or not filters.begun:
                return calls.check((), filters)
            called.append(ends.enter_context(socket.create_connection(("127.0.0.1", port))))
            called[0].sendall(b"x")
            address = "10.77.0.3" if nat else "127.0.0.1"
            return calls.check([("host2", security._hexadecimal(address, called[0].getsockname()[1]))], filters)

        local_mpirun.watch(process, hosts_mpirun.ANY if nat else 1, reported)
        if nat:
            assert process.wait() == -9
            facts = "host2 has the address 10.77.0.3, and a connection arrives from 127.0.0.1"
            expected = f"{local_mpirun.HELD}: {facts}; {hosts_mpirun.REMEDY}"
            assert mpirun.reason_in(capfd.readouterr().err) == expected
        else:
            assert process.stdout.readline() == "x\n"


@pytest.mark.parametrize(("code", "ends"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 15)", -15)])
def test_it_ends_as_mpirun_does(code, ends):
    argv = [sys.executable, "-I", "-S", local_mpirun.__file__, sys.executable, "-I", "-S", "-c", code, "-np", "2"]
    assert subprocess.run(argv, check=False, timeout=300).returncode == ends


@pytest.fixture
def gloo(monkeypatch):
    pytest.importorskip("horovod")
    served = rendezvous.start_rendezvous("localhost:2", 2)
    yield served.server_address
    served.shutdown()
    served.server_close()


def put(address):
    with socket.create_connection(address) as called:
        called.sendall(b"PUT /global/0 HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
        try:
            return called.recv(100)
        except ConnectionResetError:
            return b""


def test_gloos_rendezvous_answers_this_user_alone(gloo, monkeypatch):
    assert b" 200 " in put(gloo)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert put(gloo) == b""


def test_a_rank_of_gloo_checks_who_is_at_the_other_end(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        before = security.own_sockets()
        with socket.create_connection(listening.getsockname()), listening.accept()[0]:
            opened = security.own_sockets().keys() - before
            collectives._check_peers(opened)
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
            with pytest.raises(UserError, match="another user"):
                collectives._check_peers(opened)


def test_over_hosts_mpirun_has_filters_where_the_user_asks_for_them(monkeypatch):
    version = ["mpirun (Open MPI) 5.0.11"]
    monkeypatch.setattr(mpirun, "_version", lambda _: version[0])
    for name in filter(mpirun._STARTS_DAEMONS.search, list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.delenv(local_mpirun.FILTER_PORTS, raising=False)
    assert local_mpirun.__file__ in mpirun.wrapper_of("mpirun", 0)
    assert mpirun.wrapper_of("mpirun", 2) == ()
    monkeypatch.setenv(local_mpirun.FILTER_PORTS, "1")
    for name in ("SLURM_JOB_ID", "PBS_JOBID"):
        monkeypatch.setenv(name, "7")
    assert hosts_mpirun.__file__ in mpirun.wrapper_of("mpirun", 2)
    with pytest.raises(UserError, match="HFDT_FILTER_PORTS=1 needs at most 64 hosts. Received: 65"):
        mpirun.wrapper_of("mpirun", 65)
    for name in (hosts_mpirun.AGENT, "OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "7")
            with pytest.raises(UserError, match=f"own way to start daemons, and {name} is set: unset it"):
                mpirun.wrapper_of("mpirun", 2)
    for version[0] in ("mpirun (Open MPI) 4.1.6", "mpirun (Open MPI) 6.0.0", "HYDRA build details:"):
        with pytest.raises(UserError, match="needs Open MPI 5. Received: "):
            mpirun.wrapper_of("mpirun", 2)


NOT_PERMITTED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv.pop(1))
from fdt.launch import hosts_mpirun, local_mpirun
def not_permitted(*_):
    raise OSError("not permitted")
local_mpirun.PortFilters = hosts_mpirun.PortFilters = not_permitted
module, name = sys.argv[1].split(".")
print(getattr(globals()[module], name)(*sys.argv[2:]))
"""


def run_without_permission(*words):
    """Run a function of one of the modules in a process: `start_child` forks, which gRPC's threads do not survive."""
    root = Path(local_mpirun.__file__).parents[2]
    argv = [sys.executable, "-I", "-S", "-c", NOT_PERMITTED, root, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)


def test_where_sockets_cannot_be_taken_it_is_said_and_mpirun_runs(monkeypatch):
    monkeypatch.delenv(local_mpirun.FILTER_PORTS, raising=False)
    ended = run_without_permission("local_mpirun.main", sys.executable, "-I", "-S", "-c", "print('ran')", "-np", "1")
    assert ended.returncode == 0 and ended.stdout == "ran\n" and "not filtered" in ended.stderr


@pytest.mark.parametrize("run", ["run_mpirun", "run_daemon"])
def test_where_filters_are_asked_for_and_not_permitted_mpirun_ends(run):
    waits = (sys.executable, "-I", "-S", "-c", SERVER)
    given = waits if run == "run_mpirun" else (f"exec {shlex.join(waits)}",)
    ended = run_without_permission(f"hosts_mpirun.{run}", *given)
    assert ended.stdout.split()[-1:] == ["-9"], ended
    assert mpirun.reason_in(ended.stderr) == f"{local_mpirun.REFUSED}: not permitted"


def test_filters_that_cannot_be_updated_are_removed():
    """A filter of an earlier state would hold ranks that connect later, without end and without a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        filters = local_mpirun.PortFilters.__new__(local_mpirun.PortFilters)
        filters._filtered = {1: listening}
        local_mpirun.attach(listening, local_mpirun.program([], more=False))
        with socket.socket() as caller:
            caller.settimeout(0.3)
            with pytest.raises(TimeoutError):
                caller.connect(listening.getsockname())
        filters.release()
        with socket.create_connection(listening.getsockname(), timeout=60):
            pass


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_a_part_of_an_address_of_ipv6_does_not_stand_for_one_of_ipv4():
    """The filter's word for the source has zeros for ::1, and the sender's choice for an address of another host."""
    try:
        listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"no IPv6: {error}")
    with listening, socket.socket(socket.AF_INET6) as caller:
        caller.bind(("::1", 0))
        local_mpirun.attach(listening, local_mpirun.program([("00000000", caller.getsockname()[1])], more=True))
        caller.settimeout(60)
        caller.connect(listening.getsockname())
        caller.sendall(b"x")
        listening.settimeout(0.3)
        with pytest.raises(TimeoutError):
            listening.accept()


def test_a_daemon_is_started_once_mpiruns_ports_are_filtered(tmp_path):
    """Else its call is taken for a stranger's where mpirun's wrapper is slow. And it is not where mpirun has ended."""
    started = tmp_path / "started"
    argv = [sys.executable, "-I", "-S", hosts_mpirun.__file__, "agent", f"{tmp_path}/s", "-x", "localhost"]
    for runs in (True, False):
        (tmp_path / "s").touch()
        with subprocess.Popen([*argv, "touch", started]) as agent, contextlib.ExitStack() as ends:
            ends.callback(agent.kill)
            until(lambda agent=agent: (tmp_path / f"agent-{agent.pid}").exists(), 300)
            assert not started.exists()
            if not runs:
                (tmp_path / "s").unlink()
            (tmp_path / f"agent-{agent.pid}").unlink()
            assert agent.wait(300) == (0 if runs else 1)
        assert started.exists() == runs
        started.unlink(missing_ok=True)


def test_slurms_signal_does_not_end_the_agent_before_its_daemon(tmp_path):
    (tmp_path / "s").touch()
    kills = "kill -TERM $(cut -d' ' -f4 /proc/$PPID/stat); exit 3"  # the agent: the parent of the process around it
    argv = [sys.executable, "-I", "-S", hosts_mpirun.__file__, "agent", f"{tmp_path}/s", "-x", "localhost", kills]
    with subprocess.Popen(argv) as agent, contextlib.ExitStack() as ends:
        ends.callback(agent.kill)
        waits = tmp_path / f"agent-{agent.pid}"
        until(waits.exists, 300)
        waits.unlink()
        assert agent.wait(300) == 3


def test_a_signal_in_the_interpreters_last_moments_does_not_change_the_exit_code():
    with pytest.raises(SystemExit, match="^3$"):
        local_mpirun.end_as(3)
    assert {signal.getsignal(number) for number in local_mpirun.ENDINGS} == {signal.SIG_IGN}


def test_a_daemon_says_from_where_it_calls_and_its_end_is_the_wrappers(capfd):
    """Its stand-in calls a port that its command names, as prted's names mpirun's."""
    with socket.create_server(("127.0.0.1", 0)) as mpirun:
        mpirun.settimeout(60)
        port = mpirun.getsockname()[1]
        code = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); " + (
            f"c = socket.create_connection(('127.0.0.1', {port})); c.recv(1); sys.exit(3)"
        )
        argv = (sys.executable, "-I", "-S", hosts_mpirun.__file__, "daemon")
        command = f"exec {sys.executable} -I -S -c {shlex.quote(code)} 'x.0;tcp://10.0.0.1,127.0.0.1:{port}:24'"
        with subprocess.Popen((*argv, command), stdout=subprocess.PIPE, text=True) as running:
            called, (_, caller) = mpirun.accept()
            assert running.stdout.readline() == "\n", "a shell's own words may stand before, without an end"
            assert running.stdout.readline() == f"{hosts_mpirun.CALLS_FROM}0100007F:{caller}\n"
            called.close()
            assert running.wait(60) == 3
