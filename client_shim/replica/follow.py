"""A rank other than 0: the same script in a process of its own, whose side effects go nowhere."""

import os
import shutil
import sys
import threading
from pathlib import Path

from client_shim.replica import far
from client_shim.replica.agreement import agreed
from client_shim.replica.run import ASYNCHRONOUS, MakeRank, Part, Task, came_to_end
from client_shim.replica.scratch import diverted, real_paths
from client_shim.replica.steps import where
from client_shim.script import run_script
from client_shim.verify.recording import recorded
from fdt.caretaker import outlive
from fdt.environment import bind_to_share
from fdt.errors import UserError
from fdt.quiet import quiet_import
from fdt.service.blame import one_line
from fdt.service.guest import LEFT_ALONE, Guest
from fdt.service.lines import Gone


def follow(make: MakeRank) -> None:
    """Run the script of this process's Task to its end."""
    if sys.path and sys.path[0] in ("", "/", os.getcwd()):
        del sys.path[0]  # `-m` put it there
    task, meeting = _come()
    part = Part(task.options)
    died: list[BaseException] = []
    try:
        with (
            quiet_import(),
            diverted(Path(task.scratch), Path(task.directory)),
            agreed(meeting, task.seed, clocks=ASYNCHRONOUS not in task.options),
        ):
            with part.installed(make, meeting, task.options):
                with recorded(rank=task.rank, agrees=True):
                    code = run_script(task.script, task.words, task.name, part.rewrite, died.append)
                if part.rank is not None and came_to_end(code):
                    part.rank.end()
        how = f"exit code {code}"
    except UserError as error:
        how = str(error)
    meeting.end({"how": how, "died_of": one_line(died[0]) if died else "", **part.counts()})
    sys.stdout.flush()
    sys.stderr.flush()
    threading.Event().wait()  # rank 0 ends us, once it has heard of it


def _come() -> tuple[Task, Guest]:
    if far.is_far():
        task, line = far.arrive()
        # far.arrive's thread ends this process, once it has removed what is here.
        return task, Guest(Path(task.directory), task.rank, task.size, line, threading.Event().wait, where)
    task = Task.take()
    if task.options.get("bind_to") == "cores":
        bind_to_share(task.rank, task.size)
    os.makedirs(task.scratch, exist_ok=True)
    threading.Thread(target=_end_with_parent, args=(task,), daemon=True).start()
    # That thread ends this process, once it has removed what is here.
    try:
        return task, Guest(Path(task.directory), task.rank, task.size, alone=threading.Event().wait, where=where)
    except (OSError, Gone):
        if os.getppid() == task.parent:
            raise
        threading.Event().wait()
        raise


def _end_with_parent(task: Task) -> None:
    """Nobody is left to work for when the command was killed."""
    outlive(task.parent)
    with real_paths():
        shutil.rmtree(Path(task.scratch).parent, ignore_errors=True)
    os._exit(LEFT_ALONE)
