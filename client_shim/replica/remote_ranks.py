"""Ranks of a replicated script on other hosts: their start by mpirun and their connection to rank 0.

Rank 0 is the command's process and takes the first slot, so mpirun's rank is one less than the run's. mpirun only
starts the processes. They receive their RankConfig and the script's code from the bootstrap listener
(client_shim/replica/bootstrap.py).
"""

import contextlib
import os
import select
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from client_shim.replica import remote_code
from client_shim.replica.bootstrap import BootstrapListener, Message, connect
from client_shim.replica.rank import RankConfig, ReplicatedScript
from client_shim.replica.run import OtherRanks, process_group_of
from client_shim.replica.scratch import real_paths
from fdt import environment
from fdt.environment import thread_variables
from fdt.errors import UserError
from fdt.launch import Launcher, Task
from fdt.launch.hosts import Host, allot, is_here
from fdt.launch.mpirun import log_name
from fdt.launch.placement import place
from fdt.process_group.peer import EXIT_ROOT_LOST
from fdt.process_group.root import RootGroup
from fdt.process_group.streams import MessageStream
from fdt.security import auth, is_private
from fdt.security.auth import TOKEN_VARIABLE, TlsIdentity, new_token
from fdt.service.host_bootstrap import DIRECTORY_VARIABLE, forget
from fdt.service.member import ENGINE_VARIABLE, RANK_VARIABLES
from fdt.shm_reaper import DISK

ROLE = "worker"
SCRATCH = Path("/tmp")  # on disk; the launcher removes leftovers below it


def ranks_by_host(hosts: Sequence[Host], size: int) -> list[Host]:
    """Return the hosts of ranks 1 to size-1: this machine's slots after the first, then those of other hosts.

    Raises UsageError where there are fewer than `size` slots.
    """
    first, *others = allot(sorted(hosts, key=lambda host: not is_here(host.name)), size)
    return [*([Host(first.name, first.slots - 1)] if first.slots > 1 else []), *others]


@contextlib.contextmanager
def host(script: ReplicatedScript, run_dir: Path, others: Sequence[Host]) -> Iterator[RootGroup]:
    """Start the other ranks on the slots of `others` and yield rank 0's process group.

    The counterpart of client_shim.replica.run.host for several hosts. Raises UserError unless the hosts are ready.
    """
    count = sum(each.slots for each in others)
    placement = place(others, count)
    os.environ.update(thread_variables(1 + sum(each.slots for each in others if is_here(each.name))))
    options = {name: value for name, value in script.options.items() if name != "bind_to"}  # a host may run others too
    script, launcher = replace(script, options=options), placement.workers(run_dir, count)
    with group_of(
        script, count + 1, placement.identity, "0.0.0.0", launcher, lambda rank: run_dir / log_name(ROLE)
    ) as made:
        yield made


@contextlib.contextmanager
def group_of(
    script: ReplicatedScript,
    size: int,
    identity: TlsIdentity,
    address: str,
    launcher: Launcher,
    log_of: Callable[[int | None], Path],
    listening_on: contextlib.AbstractContextManager[None] = contextlib.nullcontext(),  # noqa: B008  # has no state
) -> Iterator[RootGroup]:
    """Yield rank 0's process group. The other ranks connect to its bootstrap listener.

    Args:
        script: The script that all ranks run.
        size: The number of ranks.
        identity: The run's certificate, key and authority.
        address: This host's address for the other ranks; the launcher replaces 0.0.0.0.
        launcher: Starts the other ranks.
        log_of: As in OtherRanks.
        listening_on: Within, a listening socket is on the host that has this address.
    """
    token, files, folder = new_token(), remote_code.collect(script.path), str(remote_code.folder_shown(script.path))
    task = script.config(size)
    with listening_on:
        listener = BootstrapListener(
            size, identity, token, lambda rank: _task_message(replace(task, rank=rank), files, folder)
        )
    env = {ENGINE_VARIABLE: f"{address}:{listener.port}", TOKEN_VARIABLE: token, auth.TLS_VARIABLE: identity.dumps()}
    env |= {**environment.variables(), "MPLBACKEND": "Agg"}
    launched = Task(ROLE, (sys.executable, "-m", "client_shim.replica.follow", script.package), size - 1, env)
    with process_group_of(size, lambda _: OtherRanks(launcher.start(launched), log_of), listener) as made:
        yield made


def _task_message(task: RankConfig, files: remote_code.Files, folder: str) -> Message:
    sizes = {path: len(source) for path, source in files.items()}
    return {"task": asdict(task), "cwd": os.getcwd(), "folder": folder, "files": sizes}, b"".join(files.values())


# -- on the other hosts -----------------------------------------------------------------------------------------------
def is_remote() -> bool:
    """Return whether a run started this process on one of its hosts."""
    return DIRECTORY_VARIABLE in os.environ


def attach() -> tuple[RankConfig, MessageStream]:
    """Connect to rank 0; return this rank's RankConfig and the stream to rank 0, after unpacking the script's code.

    This process ends when the stream does.
    """
    rank = 1 + next(int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ)
    scratch = _folder() / str(rank)
    identity, token = auth.TlsIdentity.loads(os.environ.pop(auth.TLS_VARIABLE)), os.environ.pop(TOKEN_VARIABLE)
    line, (assigned, data) = connect(os.environ.pop(ENGINE_VARIABLE), rank, token, identity)
    scratch.mkdir()
    threading.Thread(target=_end_with, args=(line, scratch), daemon=True).start()
    task = replace(RankConfig(**assigned["task"]), scratch=str(scratch), directory=str(scratch))
    remote_code.unpack(_files(assigned["files"], data), assigned["folder"], scratch)
    _stand_in(assigned["cwd"], scratch)
    return task, line


def _folder() -> Path:
    """Return the folder of all ranks on this host, which the launcher removes.

    It must be private: another user who can write into it could put code into the run.
    """
    directory = Path(os.environ[DIRECTORY_VARIABLE])
    folder = SCRATCH / directory.name
    folder.mkdir(mode=0o700, exist_ok=True)
    if not is_private(folder):
        raise UserError(
            f"a rank's directory must be writable to its user only. Received: {folder}, which others can write to"
        )
    with contextlib.suppress(OSError):  # another rank made it, or the run is at its end
        (directory / DISK).symlink_to(folder)  # where this process cannot remove it, the shm reaper does
    return folder


def _files(sizes: Mapping[str, int], data: bytes) -> remote_code.Files:
    files, at = {}, 0
    for path, size in sizes.items():
        files[path] = data[at : at + size]
        at += size
    return files


def _stand_in(cwd: str, scratch: Path) -> None:
    """Enter rank 0's working directory, or one below the scratch folder where this host has no such directory."""
    if not os.path.isdir(cwd):
        cwd = f"{scratch}{cwd}"
        os.makedirs(cwd, exist_ok=True)
    os.chdir(cwd)


def _end_with(line: MessageStream, scratch: Path) -> None:
    """Remove this rank's files and end this process when the connection to rank 0 ends."""
    gone = select.poll()
    gone.register(line.socket, select.POLLRDHUP)
    gone.poll()
    with real_paths():
        shutil.rmtree(scratch, ignore_errors=True)
        with contextlib.suppress(OSError):  # it still has another rank's folder
            scratch.parent.rmdir()
        forget()
    os._exit(EXIT_ROOT_LOST)
