"""Start of a member process on another host: `python -m fdt.service.host_bootstrap NAME TASK MODULE [ARGUMENT...]`.

The launcher copies the member's settings (the engine's addresses, the token, its certificate, the user's environment)
by ssh into a directory NAME that only its user can read (fdt/launch/over_hosts.py). So no secret is in a command line,
in mpirun's messages, or in the process's initial environment, which /proc shows.
"""

import contextlib
import json
import os
import runpy
import shutil
import sys
from pathlib import Path

from fdt.blobs import start_reaper
from fdt.environment import local_rank, local_size, thread_variables
from fdt.security import is_private

ROOTS = ("/dev/shm", "/tmp")  # a file system in memory where there is one
DIRECTORY_VARIABLE = "FDT_HOST_DIRECTORY"


def directory_of(name: str) -> Path:
    """Return the directory that the launcher made. One that another user owns is ignored, whatever it holds."""
    found = next((path for root in ROOTS if is_private(path := Path(root, name))), None)
    if found is None:
        raise SystemExit(f"the run's directory is missing: {' and '.join(ROOTS)} hold no {name} of this user")
    return found


def prepare(directory: Path, task: str) -> None:
    """Set this process's environment as the engine's local members have it from their start."""
    given = json.loads((directory / f"{task}.json").read_text())
    for name, value in given["user"].items():
        os.environ.setdefault(name, value)  # a host's own setting takes precedence
    os.environ.update(given["task"])
    os.environ[DIRECTORY_VARIABLE] = str(directory)
    os.environ["OMPI_MCA_btl_sm_backing_directory"] = str(directory)  # removed with the directory when a rank is killed
    os.environ.update(thread_variables(local_size()))
    if given["first"] is not None:
        os.environ["FDT_RANK"] = str(given["first"] + local_rank())
    with contextlib.suppress(OSError):  # the user's directory may not exist on this host
        os.chdir(given["cwd"])


def forget() -> None:
    """Remove this host's directory after the engine is lost: no other process removes it."""
    if DIRECTORY_VARIABLE in os.environ:
        shutil.rmtree(os.environ[DIRECTORY_VARIABLE], ignore_errors=True)


def main() -> None:
    """Prepare this process by the copied settings, then run the member's module as `__main__`."""
    name, task, module, *argv = sys.argv[1:]
    directory = directory_of(name)
    if local_rank() == 0:  # the launcher may be unable to remove it: a job of Slurm that ends can start nothing
        start_reaper(directory)  # before it has the secrets in its environment
    prepare(directory, task)
    sys.argv = [module, *argv]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
