"""The hosts of a run, from the command line, a host file, or the scheduler's environment; and commands on them.

A command runs by ssh, by srun inside a Slurm allocation, or directly on this host. Secrets are sent to its stdin:
its arguments are public.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from fdt.errors import UsageError, UserError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# As Open MPI's host files have them; what limits or describes a host otherwise is not needed.
_SLOTS = re.compile(r"(?:slots|cpu|count)=([1-9]\d*)")
_NOT_NEEDED = re.compile(r"(?:max[_-](?:slots|cpu|count)|(?:slots|cpu|count)[_-]max|boards|sockets|cores)=[1-9]\d*")
_INTERACTIVE = "4294967290"  # number of the step in which salloc runs a shell; it has the job's variables
_STEP_ENDED = re.compile(r"srun: error: \S+: task 0: Exited with exit code \d+")
HOSTFILES = ("PRTE_MCA_prte_default_hostfile", "OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE")  # Kubernetes MPIJob
EXPORTED = ("PYTHONPATH", "PYTHONHASHSEED", "LD_LIBRARY_PATH")  # variables that a rank's Python reads at its start
MACHINES_OWN = (  # variables that describe the user's machine and session, not a setting
    *("HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "TMPDIR", "USER", "_"),
    *("DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "LS_COLORS", "VIRTUAL_ENV", "PATH"),
)
PREFIXES = ("SSH_", "XDG_", "SLURM_", "OMPI_", "PRTE_", "PMIX_", "KUBERNETES_")


@dataclass(frozen=True)
class Host:
    """A machine of a run. `slots`: the number of processes that it takes."""

    name: str
    slots: int


def parse(text: str, where: str = "-H") -> list[Host]:
    """Parse `host1:4,host2:4`, which `where` gave; a host without a number has one slot. Raises UsageError."""
    return _unique([_host(*entry.partition(":")[::2]) for entry in text.split(",")], where)


def read_hostfile(path: Path) -> list[Host]:
    """Read a host file. Raises UsageError.

    Each line has one host: `host1 slots=4`, as Open MPI has it, or `host1:4`. A # or // begins a comment.
    """
    try:
        lines = [re.sub(r"\s*=\s*", "=", re.split("#|//", line)[0]).split() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile cannot be read: {error}") from None
    hosts = []
    for number, fields in enumerate(lines, 1):
        name, _, slots = fields[0].partition(":") if fields else ("", "", "")
        for field in fields[1:]:
            if found := _SLOTS.fullmatch(field):
                slots = found[1]
            elif not _NOT_NEEDED.fullmatch(field):
                raise UsageError(f"{path}:{number}: a host's setting must be slots=N or max_slots=N. Received: {field}")
        if fields:
            hosts.append(_host(name, slots))
    if not hosts:
        raise UsageError(f"--hostfile must name a host on each line: host1 slots=4. Received: {path}, which names none")
    return _unique(hosts, "--hostfile")


def from_environment(environ: Mapping[str, str] = os.environ) -> list[Host]:
    """Return the hosts of the Slurm allocation or Kubernetes MPIJob that this process runs in; none elsewhere."""
    if "SLURM_JOB_NODELIST" in environ:
        names = list(expand(environ["SLURM_JOB_NODELIST"]))
        _check_step(environ, len(names))
        slots = [*_tasks_per_node(environ.get("SLURM_TASKS_PER_NODE", ""))]
        return [Host(name, n or 1) for name, n in zip_longest(names, slots[: len(names)])]
    for variable in HOSTFILES:
        if variable in environ:
            return read_hostfile(Path(environ[variable]))
    return []


def _check_step(environ: Mapping[str, str], nodes: int) -> None:
    """Raise UsageError in a step of several tasks, each of which is this command, or of fewer nodes than the job's.

    Open MPI cannot start daemons on the other nodes from such a step. A shell on a terminal (--pty) is the first task's
    alone, but srun starts any other command in all tasks.
    """
    if environ.get("SLURM_STEP_ID") == _INTERACTIVE:
        return
    tasks, on = environ.get("SLURM_STEP_NUM_TASKS", "1"), environ.get("SLURM_STEP_NUM_NODES", str(nodes))
    first_of_terminal = "SLURM_PTY_PORT" in environ and environ.get("SLURM_PROCID") == "0"
    if on != str(nodes) or (tasks != "1" and not first_of_terminal):
        raise UsageError(
            "the command starts all workers itself, so srun must start it once and on all nodes, or not at all: batch "
            f"scripts and salloc need no srun. Received: a step of --ntasks={tasks} on {on} of {nodes} nodes"
        )


def chosen(hosts: str | None, hostfile: Path | None) -> list[Host]:
    """Return the hosts of -H, --hostfile or the environment; none where the environment names only this machine.

    Raises:
        UsageError: The options are wrong, or name this machine "localhost" beside other hosts.
    """
    if hosts and hostfile:
        raise UsageError("-H and --hostfile both name hosts. Received: both; give one of them")
    found = parse(hosts) if hosts else read_hostfile(hostfile) if hostfile else from_environment()
    local = [host for host in found if is_here(host.name)]
    if len(local) == len(found) and not (hosts or hostfile):
        return []
    for host in local:
        if len(found) > 1 and host.name in ("localhost", "127.0.0.1"):
            raise UsageError(f"this machine must have a name by which other hosts reach it. Received: {host.name}")
    return found


def allot(hosts: Sequence[Host], count: int) -> list[Host]:
    """Return the first `count` slots, host by host. Raises UsageError when there are fewer."""
    if count > (slots := sum(host.slots for host in hosts)):
        raise UsageError(f"-np must be at most the sum of the hosts' slots (-H host:slots), {slots}. Received: {count}")
    allotted = []
    for host in hosts:
        slots = min(host.slots, count)
        count -= slots
        if slots:
            allotted.append(Host(host.name, slots))
    return allotted


def behind(hosts: Sequence[Host], workers: int, count: int) -> list[Host]:
    """Return hosts for `count` servers: the slots that `workers` workers leave free, then the hosts in turn."""
    taken = {host.name: host.slots for host in allot(hosts, workers)}
    free = [host.name for host in hosts for _ in range(host.slots - taken.get(host.name, 0))]
    names = [*free, *(hosts[n % len(hosts)].name for n in range(count))][:count]
    return [Host(host.name, count) for host in hosts if (count := names.count(host.name))]


def ranks(hosts: Sequence[Host]) -> list[str]:
    """Return the host name of each rank."""
    return [host.name for host in hosts for _ in range(host.slots)]


def is_here(name: str) -> bool:
    """Return whether the name resolves to this machine; False where it does not resolve."""
    try:
        family, _, _, _, address = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)  # works for this machine's addresses only
        return True
    except OSError:
        return False


def expand(nodes: str) -> Iterator[str]:
    """Expand Slurm's `a[01-03,7],b` to a01 a02 a03 a7 b."""
    for prefix, inside, suffix in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,]*)", nodes):
        if "[" in suffix:  # rack[1-2]node[1-2]: each of the first with each of the second
            yield from (n for part in expand(f"{prefix}[{inside}]") for n in expand(part + suffix))
            continue
        for part in inside.split(",") if inside else [""]:
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last) + 1) if last else [part]
            for number in numbers:
                yield f"{prefix}{str(number).zfill(len(first))}{suffix}"


def _tasks_per_node(text: str) -> Iterator[int]:
    """Expand Slurm's `4(x2),1` to 4 4 1."""
    for slots, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        yield from [int(slots)] * int(times or 1)


def _host(name: str, slots: str) -> Host:
    if not _NAME.fullmatch(name):
        raise UsageError(f"a host must be a name or an IPv4 address. Received: {name!r}")
    if slots and not (slots.isdecimal() and int(slots)):
        raise UsageError(f"a host's slots must be a number, 1 or more. Received: {name}:{slots}")
    return Host(name, int(slots or 1))


def _unique(hosts: list[Host], where: str) -> list[Host]:
    names = [host.name.lower() for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{where} must name each host once, with its slots after a colon. Received: {name} twice")
    return hosts


CONNECT_S = 10


def argv_on(host: str, argv: Sequence[str]) -> list[str]:
    """Return the local command that runs `argv` on `host`. It never asks for a password."""
    if is_here(host):
        return list(argv)
    if _by_srun(host):
        return [*"srun --overlap --cpu-bind=none --mpi=none --nodes=1 --ntasks=1".split(), f"--nodelist={host}", *argv]
    # By IPv4, as all other connections: the hosts call this machine at the address that this ssh comes from.
    options = ["-T", "-o", "AddressFamily=inet", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"]
    return ["ssh", *options, host, shlex.join(argv)]


def _by_srun(host: str) -> bool:
    return "SLURM_JOB_ID" in os.environ and not is_here(host)


def is_wish(name: str) -> bool:
    """Return whether this variable is a setting of the user's, which the members on all hosts get."""
    return name not in MACHINES_OWN and not name.startswith(PREFIXES)


def launch_environment() -> dict[str, str]:
    """Return the environment of a command that starts processes on hosts.

    Inside a Slurm allocation it has none of the user's settings: they travel sealed, and srun sends it in the clear.
    mpirun starts its daemons by srun, and each of these steps must not wait for the end of another one.
    """
    if "SLURM_JOB_ID" not in os.environ:
        return dict(os.environ)
    kept = {name: value for name, value in os.environ.items() if name in EXPORTED or not is_wish(name)}
    return {**kept, "SLURM_OVERLAP": "1", "SLURM_EXPORT_ENV": "ALL"}


def start(host: str, argv: Sequence[str]) -> "subprocess.Popen[str]":
    """Start `argv` on `host`, its three streams as pipes. Raises UserError where ssh or srun is missing."""
    command = argv_on(host, argv)
    try:
        return subprocess.Popen(
            command,
            env=launch_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise UserError(f"{command[0]}, which starts processes on other hosts, is not on PATH") from None


def everywhere(texts: dict[str, str], argv: Sequence[str], timeout_s: float) -> dict[str, str]:
    """Run `argv` on each host of `texts` in parallel.

    Args:
        texts: For each host, the text for the command's stdin.
        argv: The command.
        timeout_s: How long it may take, in seconds.

    Returns:
        For each host where it failed, the error.
    """
    with ThreadPoolExecutor(max(1, len(texts))) as pool:
        ends = pool.map(lambda host: _complain(host, argv, texts[host], timeout_s), texts)
        return {host: end for host, end in zip(texts, ends, strict=True) if end}


def _complain(host: str, argv: Sequence[str], text: str, timeout_s: float) -> str:
    sealed = bool(text) and _by_srun(host)
    running = start(host, [sys.executable, "-m", "fdt.launch.sealed", *argv] if sealed else argv)
    try:
        if sealed:
            text = _sealed(running, text, timeout_s)
        _, errors = running.communicate(text, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        running.kill()
        running.communicate()
        return f"no answer within {timeout_s:g} s"
    return last_line(errors) or f"exit code {running.returncode}" if running.returncode else ""


def _sealed(running: "subprocess.Popen[str]", text: str, timeout_s: float) -> str:
    """Encrypt `text` for the process; "" where it has sent no key (its stderr then has the reason)."""
    from fdt.launch.sealed import seal

    assert running.stdout is not None
    patience = threading.Timer(timeout_s, running.kill)
    patience.start()
    try:
        return seal(running.stdout.readline().strip(), text) + "\n"
    except ValueError:
        return ""
    finally:
        patience.cancel()


def last_line(text: str) -> str:
    """Return the last line that is not empty; the reason stands before srun's own line about the exit code."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ([line for line in lines if not _STEP_ENDED.match(line)] or lines or [""])[-1]
