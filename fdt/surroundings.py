"""The folder and the environment variables of a script's process, which its workers take over job by job.

A script may change both before it trains. Relative paths in its data and layers, and `os.environ` in its code, are read
in workers.
"""

import contextlib
import functools
import os
import re
import socket
from dataclasses import dataclass, field

from fdt.errors import UserError

# Variables of this project, of launchers and of libraries that compute: each process has its own.
_OWN = re.compile(r"(N?FDT|HFDT|OMPI|PMIX?|PRTE|MPI|I_MPI|HOROVOD|SLURM|OMP|GOMP|KMP|MKL|OPENBLAS|TF|CUDA|NCCL|GRPC)_")


@dataclass(frozen=True)
class Surroundings:
    """What a job's workers take over of the script's process.

    Attributes:
        directory: The working directory; "": none, it was removed.
        moved: The script changed its working directory.
        variables: The environment variables that the script set. They may be secrets: no report has them.
        removed: The names of those that it removed.
    """

    directory: str = ""
    moved: bool = False
    variables: dict[str, str] = field(default_factory=dict, repr=False)
    removed: list[str] = field(default_factory=list)

    @classmethod
    def now(cls) -> "Surroundings":
        """Return this process's working directory, and all variables that are not a process's own."""
        directory = ""
        with contextlib.suppress(OSError):
            directory = os.getcwd()
        return cls(directory, variables={name: v for name, v in os.environ.items() if not _OWN.match(name)})

    def changes(self) -> "Surroundings":
        """Return what of these, which are of an earlier time, is another now."""
        now = Surroundings.now()
        changed = {name: value for name, value in now.variables.items() if self.variables.get(name) != value}
        removed = sorted(self.variables.keys() - now.variables.keys())
        return Surroundings(now.directory, now.directory != self.directory, changed, removed)


def restore(before: Surroundings) -> None:
    """Give this process the folder and the variables that it had before."""
    present = Surroundings.now().variables
    for name in present.keys() - before.variables.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in before.variables.items() if present.get(name) != value})
    if before.directory:
        os.chdir(before.directory)


@functools.cache
def _at_first() -> Surroundings:
    return Surroundings.now()


def take_over(job: Surroundings) -> None:
    """Give this process, a worker, the surroundings of a job. What an earlier job changed is as it was at first.

    Raises:
        UserError: The script changed its folder, and this host does not have it.
    """
    first = _at_first()
    variables = {name: value for name, value in {**first.variables, **job.variables}.items() if name not in job.removed}
    restore(Surroundings(first.directory, variables=variables))
    try:
        os.chdir(job.directory or first.directory)
    except OSError as error:
        if job.moved:
            raise UserError(
                f"the script changed its folder to {job.directory}, where worker processes on {socket.gethostname()} "
                f"cannot go ({error.strerror}); make it there, or use absolute paths instead of os.chdir"
            ) from None
