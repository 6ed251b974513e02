"""What a member's process sets before and after TensorFlow is imported: threads, GPUs, its log."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def thread_variables(local_size: int) -> dict[str, str]:
    """Thread counts that share this host's cores out among `local_size` processes."""
    share = str(max(1, cores() // max(1, local_size)))
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
    return {name: os.environ.get(name, share) for name in names}


def bind_to_share(local_rank: int, local_size: int) -> None:
    """Keep this process, all its threads and what they start from now on, on its part of the host's cores.

    Ranks in lock step lose up to half their speed when the scheduler, misled by threads that poll for messages, puts
    two of them on one core (measured; benchmarks/README.md). Parts are neighbours in the machine: as few physical cores
    and sockets as can be are shared. Nothing is done where there are more ranks than cores, or where it is forbidden.
    """
    cpus = sorted(os.sched_getaffinity(0), key=_place)
    if 1 < local_size <= len(cpus):
        first, end = (len(cpus) * n // local_size for n in (local_rank, local_rank + 1))
        _keep_to(cpus[first:end])


@contextlib.contextmanager
def bound_to_share(local_rank: int, local_size: int) -> Iterator[None]:
    """`bind_to_share` until the end of the context."""
    before = os.sched_getaffinity(0)
    bind_to_share(local_rank, local_size)
    try:
        yield
    finally:
        _keep_to(before)


def _keep_to(cpus: Iterable[int]) -> None:
    """All threads: NumPy's pool is there since its import."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(thread), cpus)


def _place(cpu: int) -> tuple[int, int, int]:
    """(socket, physical core, cpu), as far as Linux says."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        socket, core = (int((topology / name).read_text()) for name in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        socket, core = 0, cpu
    return socket, core, cpu


def share_gpus(tf: Any, local_rank: int) -> str:
    """Give this process one GPU of the host's, with memory growth; return its name, or "" where there are none.

    Written with care and not run: the project's machines have no GPU.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return ""
    mine = gpus[local_rank % len(gpus)]
    tf.config.set_visible_devices(mine, "GPU")
    tf.config.experimental.set_memory_growth(mine, True)
    return str(mine.name)


def local_rank() -> int:
    """This process's number among those of its host."""
    return _number("FDT_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", default=0)


def local_size() -> int:
    """How many of this process's kind are on its host."""
    return _number("FDT_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", default=1)


def _number(*names: str, default: int) -> int:
    return next((int(os.environ[name]) for name in names if name in os.environ), default)


def log_to(path: Path) -> None:
    """Send this process's stdout and stderr, those of C++ included, to the file `path`; what has no room is lost."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    sys.stdout, sys.stderr = Lossy(sys.stdout), Lossy(sys.stderr)


class Lossy:
    """A text stream to a file whose disk may be full: no reason to end what writes there."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
