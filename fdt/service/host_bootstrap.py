"""A member's process on a host of a run: `python -m fdt.service.host_bootstrap NAME TASK MODULE`.

What it has to know (the engine's addresses, the token, its certificate, the user's environment) lies in a directory
NAME that only its user can read, brought there by ssh (fdt/launch/over_hosts.py). So nothing secret is in a command
line or in what mpirun sends; nor in the environment that the process began with, which /proc shows.
"""

import contextlib
import json
import os
import runpy
import shutil
import sys
from pathlib import Path

from fdt.environment import local_rank, local_size, thread_variables
from fdt.private import is_private

ROOTS = ("/dev/shm", "/tmp")  # memory where there is some
DIRECTORY_VARIABLE = "FDT_HOST_DIRECTORY"


def directory_of(name: str) -> Path:
    """Where the launcher put it. One that another user made, whatever it holds, is passed over."""
    found = next((path for root in ROOTS if is_private(path := Path(root, name))), None)
    if found is None:
        raise SystemExit(f"the run's directory must be there. Received: no {name} of ours in {' or '.join(ROOTS)}")
    return found


def prepare(directory: Path, task: str) -> None:
    """Make this process what the engine's own members are from their start."""
    given = json.loads((directory / f"{task}.json").read_text())
    for name, value in given["user"].items():
        os.environ.setdefault(name, value)  # what a host sets itself is how it wants it
    os.environ.update(given["task"])
    os.environ[DIRECTORY_VARIABLE] = str(directory)
    os.environ["OMPI_MCA_btl_sm_backing_directory"] = str(directory)  # so that a killed rank's segments go too
    os.environ.update(thread_variables(local_size()))
    if given["first"] is not None:
        os.environ["FDT_RANK"] = str(given["first"] + local_rank())
    with contextlib.suppress(OSError):  # not every host has the user's directory
        os.chdir(given["cwd"])


def forget() -> None:
    """The engine is gone: nobody else will remove what it brought here."""
    if DIRECTORY_VARIABLE in os.environ:
        shutil.rmtree(os.environ[DIRECTORY_VARIABLE], ignore_errors=True)


def main() -> None:
    name, task, module = sys.argv[1:]
    prepare(directory_of(name), task)
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
