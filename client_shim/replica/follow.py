"""Process of a rank other than 0: it runs the same script, and its side effects are discarded.

`python -m client_shim.replica.follow PACKAGE`, with the package of InstalledRank.installed.
"""

import os
import shutil
import sys
import threading
from pathlib import Path

from client_shim.replica import remote_ranks
from client_shim.replica.agreement import agreed
from client_shim.replica.file_order import ordered_files
from client_shim.replica.rank import ASYNCHRONOUS, InstalledRank, RankConfig
from client_shim.replica.run import wait_for_end
from client_shim.replica.scratch import diverted, real_paths
from client_shim.replica.steps import where
from client_shim.script import run_script
from client_shim.verify.recording import recorded
from fdt.environment import bind_to_share, quiet_import
from fdt.errors import UserError
from fdt.process_group.peer import EXIT_ROOT_LOST, PeerGroup
from fdt.process_group.streams import ConnectionLost
from fdt.service.blame import one_line
from fdt.service.member import shield
from fdt.shm_reaper import outlive


def follow(package: str) -> None:
    """Run the script of this process's RankConfig to its end, as a rank of the engine's `package`."""
    if sys.path and sys.path[-1] in ("", "/", os.getcwd()):
        del sys.path[-1]  # added by `python -m` (fdt/__init__.py)
    shield()
    task, process_group = _come()
    part = InstalledRank(task.options)
    died: list[BaseException] = []
    try:
        with (
            quiet_import(),
            diverted(Path(task.scratch), Path(task.directory)),
            agreed(process_group, task.seed, clocks=ASYNCHRONOUS not in task.options),
            ordered_files(process_group, task.folders, task.scratch, part.in_line),
        ):
            with part.installed(package, process_group, task.options):
                with recorded(rank=task.rank, agrees=True):
                    code = run_script(task.script, task.script_args, task.name, part.rewrite, died.append)
                if part.rank is not None and wait_for_end(code):
                    part.rank.end()
        how = f"exit code {code}"
    except UserError as error:
        how = str(error)
    process_group.end({"how": how, "died_of": one_line(died[0]) if died else "", **part.counts()})
    sys.stdout.flush()
    sys.stderr.flush()
    threading.Event().wait()  # rank 0 ends this process when it has received the end


def _come() -> tuple[RankConfig, PeerGroup]:
    task, line = remote_ranks.attach() if remote_ranks.is_remote() else (RankConfig.take(), None)
    if task.options.get("bind_to") == "cores":
        bind_to_share(task.rank, task.size)
    if line is not None:
        # A thread of remote_ranks.attach removes this process's files and ends it.
        return task, PeerGroup(Path(task.directory), task.rank, task.size, line, threading.Event().wait, where)
    os.makedirs(task.scratch, exist_ok=True)
    threading.Thread(target=_end_with_parent, args=(task,), daemon=True).start()
    # That thread removes this process's files and ends it.
    try:
        return task, PeerGroup(Path(task.directory), task.rank, task.size, alone=threading.Event().wait, where=where)
    except (OSError, ConnectionLost):
        if os.getppid() == task.parent:
            raise
        threading.Event().wait()
        raise


def _end_with_parent(task: RankConfig) -> None:
    """Remove the scratch folder and end this process when the command's process has been killed."""
    outlive(task.parent)
    with real_paths():
        shutil.rmtree(Path(task.scratch).parent, ignore_errors=True)
    os._exit(EXIT_ROOT_LOST)


if __name__ == "__main__":
    follow(sys.argv[1])
