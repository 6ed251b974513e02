"""The folder and the environment variables of a script's process, which its workers take over job by job.

A script may change both before it trains. Relative paths in its data and layers, and `os.environ` in its code, are read
in workers.
"""

import contextlib
import functools
import json
import os
import re
import socket
import tempfile
from dataclasses import dataclass, field

from fdt.environment import SCRATCH_VARIABLE

# Variables of this project, of launchers and of libraries that compute: each process has its own.
_OWN = re.compile(
    r"(N?FDT|HFDT|OMPI|PMIX?|PRTE|MPI|I_MPI|MPICH|UCX|FI|HOROVOD|SLURM|GRPC|OMP|GOMP|KMP|MKL|OPENBLAS|TF2?|XLA|CUDA|"
    r"NCCL|HIP|ROCR|MIOPEN)_"
)


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

    def changes(self, names: set[str]) -> "Surroundings":
        """Return what of these, which are of an earlier time, is another now.

        Args:
            names: Variables that were others once: workers may have begun with these. Receives those that are now.
        """
        now = Surroundings.now()
        names |= {name for name, _ in self.variables.items() ^ now.variables.items()}
        values = {name: now.variables[name] for name in sorted(names) if name in now.variables}
        return Surroundings(now.directory, now.directory != self.directory, values, sorted(names - values.keys()))

    def text(self) -> str:
        """Return them as ASCII text, also a path that is not UTF-8."""
        return json.dumps(vars(self))

    @classmethod
    def read(cls, text: str) -> "Surroundings":
        """Return those of a message's text. Raises ValueError if it is another's."""
        found = json.loads(text or "{}")
        kinds = {"directory": str, "moved": bool, "variables": dict, "removed": list}
        if not isinstance(found, dict) or any(type(value) is not kinds.get(name) for name, value in found.items()):
            raise ValueError("the surroundings of a job have another form")
        read = cls(**found)
        if not all(isinstance(each, str) for each in (*read.variables.values(), *read.removed)):
            raise ValueError("environment variables of a job are not text")
        return read


def restore(before: Surroundings) -> None:
    """Give this process the folder and the variables that it had before; a folder that was removed is left out."""
    present = Surroundings.now().variables
    for name in present.keys() - before.variables.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in before.variables.items() if present.get(name) != value})
    with contextlib.suppress(OSError):
        os.chdir(before.directory)


@functools.cache
def _at_first() -> Surroundings:
    return Surroundings.now()


def take_over(text: str) -> list[str]:
    """Give this process, a worker, the surroundings of a job; what an earlier job changed is as it was at first.

    Where the script changed its folder, and this host lacks it, the process goes to an empty one: it must not read
    other files of the same names.

    Args:
        text: JobSpec.surroundings.

    Returns:
        A line for the user, if this process is in an empty folder.

    Raises:
        ValueError: The text is none of Surroundings.
    """
    first, job = _at_first(), Surroundings.read(text)
    variables = {name: value for name, value in {**first.variables, **job.variables}.items() if name not in job.removed}
    restore(Surroundings(first.directory, variables=variables))
    try:
        os.chdir(job.directory or first.directory)
    except OSError as error:
        if job.moved or not os.path.isdir(first.directory):
            os.chdir(tempfile.mkdtemp(prefix="empty-", dir=os.environ.get(SCRATCH_VARIABLE)))
            return [f"workers on {socket.gethostname()} run in an empty folder: {error}"]
    return []
