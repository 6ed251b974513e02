"""The environment of a member process: threads, GPUs, TensorFlow's messages at import, and the early start.

TensorFlow's C++ code writes to file descriptor 2 before it reads any setting, so the descriptor is redirected during
the import, and known messages are suppressed. A member starts early: it prepares itself while the script still loads,
so that the first job need not wait.
"""

import contextlib
import functools
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from fdt import rpc
from fdt.security import without_links

if TYPE_CHECKING:
    from fdt.blobs import Blobs


SCRATCH_VARIABLE = "FDT_SCRATCH"  # a directory of the engine's members, in shared memory


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def thread_variables(local_size: int) -> dict[str, str]:
    """Return variables with thread counts that divide this host's cores among `local_size` processes."""
    share = str(max(1, cores() // max(1, local_size)))
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
    return {name: os.environ.get(name, share) for name in names}


def bind_to_share(local_rank: int, local_size: int) -> None:
    """Bind this process, its threads and its later children to its part of the host's cores.

    Ranks in lock step lose up to half their speed when the scheduler puts two of them on one core, misled by threads
    that poll for messages (measured; benchmarks/README.md). A part is a range of neighboring cores, so ranks share as
    few physical cores and sockets as possible. Nothing is done where there are more ranks than cores, or where binding
    is forbidden.
    """
    cpus = sorted(os.sched_getaffinity(0), key=_place)
    if 1 < local_size <= len(cpus):
        first, end = (len(cpus) * n // local_size for n in (local_rank, local_rank + 1))
        _keep_to(cpus[first:end])


@contextlib.contextmanager
def bound_to_share(local_rank: int, local_size: int) -> Iterator[None]:
    """Apply `bind_to_share` until the end of the context."""
    before = os.sched_getaffinity(0)
    bind_to_share(local_rank, local_size)
    try:
        yield
    finally:
        _keep_to(before)


def _keep_to(cpus: Iterable[int]) -> None:
    """Bind all threads, because NumPy's thread pool exists since its import."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(thread), cpus)


def _place(cpu: int) -> tuple[int, int, int]:
    """Return (socket, physical core, cpu); socket 0 and core `cpu` where Linux does not list them."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        socket, core = (int((topology / name).read_text()) for name in ("physical_package_id", "core_id"))
    except (OSError, ValueError):
        socket, core = 0, cpu
    return socket, core, cpu


def share_gpus(tf: Any, local_rank: int) -> str:
    """Give this process one of the host's GPUs, with memory growth; return its name, or "" where there are none.

    This is untested: the project's machines have no GPU.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return ""
    mine = gpus[local_rank % len(gpus)]
    tf.config.set_visible_devices(mine, "GPU")
    tf.config.experimental.set_memory_growth(mine, True)
    return str(mine.name)


def local_rank() -> int:
    """Return this process's rank within its host."""
    return _number("FDT_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", default=0)


def local_size() -> int:
    """Return the number of processes of this process's role on its host."""
    return _number("FDT_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", default=1)


def _number(*names: str, default: int) -> int:
    return next((int(os.environ[name]) for name in names if name in os.environ), default)


def log_to(path: Path) -> None:
    """Redirect this process's stdout and stderr, also those of C++, to the file `path`; a full disk loses output."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = without_links(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    sys.stdout, sys.stderr = Lossy(sys.stdout), Lossy(sys.stderr)


class Lossy:
    """A text stream to a file whose disk may be full, which must not end the writer."""

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


_CHATTER = re.compile(
    r"WARNING: All log messages before absl::InitializeLog"
    r"|[IWE]\d{4} .*(port|cudart_stub|cpu_feature_guard|cuda_\w+|computation_placer)\.cc:"
    r"|To enable the following instructions:"
    r"|.*(port|cpu_feature_guard|cudart_stub)\.cc:\d+\]"
)


def variables() -> dict[str, str]:
    """Return environment variables that silence TensorFlow and set up gRPC; values that the user has set remain."""
    return {"TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"), **rpc.settings()}


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Exclude the objects made within, which live as long as the process, from garbage collection (gc.freeze).

    Otherwise TensorFlow's 400,000 objects would be scanned eight times during the import, one second in all (measured).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Silence the first import of TensorFlow within the context, and keep garbage collection from it."""
    finder = _QuietFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(finder)


def silence_import() -> None:
    """Do as `quiet_import` for the rest of the process."""
    sys.meta_path.insert(0, _QuietFinder())


class _QuietFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _quietly(spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


def _quietly(exec_module: Any) -> Any:
    def wrapper(module: ModuleType) -> None:
        with without_chatter(), lasting():
            exec_module(module)
            module.config.list_physical_devices()  # searches for CUDA, and prints messages where there is none

    return wrapper


@contextlib.contextmanager
def without_chatter() -> Iterator[None]:
    """Hold back output to file descriptor 2 within the context; print the unknown messages at its end."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        real = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(real, 2)
            os.close(real)
            held.seek(0)
            for line in held:
                if not is_chatter(line.decode(errors="replace")):
                    os.write(2, line)


def is_chatter(line: str) -> bool:
    """Return whether this is a message that TensorFlow prints at every import."""
    return _CHATTER.match(line) is not None


ROOM_BYTES = 64 << 10  # more than AutoGraph writes into one file
# TensorFlow and Keras import them if they are installed: for plots, notebooks, scikit-learn's interface, arguments of
# `fit`, which the client converts. They take two fifths of the import's time.
UNUSED = ("IPython", "matplotlib", "pandas", "scipy", "sklearn")


def warm_up(blobs: "Blobs", *, computes: bool) -> None:
    """Import TensorFlow and Keras, select the GPU, and start the runtime, which TensorFlow starts at first use.

    Args:
        blobs: The engine's store. On its host, AutoGraph's generated files are written into the engine's directory
            (SCRATCH_VARIABLE) and removed with it.
        computes: Whether this is a worker, which uses a GPU of its host if there are any; a server uses none.

    Raises:
        ImportError: TensorFlow or Keras is missing.
    """
    from fdt.blobs import LocalBlobs  # imports NumPy, which --help does not need

    with lasting(), hidden(UNUSED):
        import tensorflow as tf

        if isinstance(blobs, LocalBlobs):  # else this member is on another host
            keep_generated_code(Path(os.environ.get(SCRATCH_VARIABLE, blobs.directory)))
        if computes:
            share_gpus(tf, local_rank())
        else:
            tf.config.set_visible_devices([], "GPU")
        importlib.import_module("tf_keras" if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else "keras")
        tf.function(lambda x: x + 1)(tf.constant(1.0))


@contextlib.contextmanager
def hidden(packages: Sequence[str]) -> Iterator[None]:
    """Make an import of any of `packages` within raise ImportError; those that are imported already stay."""
    absent = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: as if it were not installed
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def keep_generated_code(directory: Path) -> None:
    """Make AutoGraph write its files into `directory`. It removes them at a normal exit, but members are killed."""
    from fdt.compat.tensorflow import loader

    loader.tempfile = SimpleNamespace(NamedTemporaryFile=functools.partial(_file_with_room, directory))


def _file_with_room(directory: Path, **options: Any) -> Any:
    """Return a named temporary file in `directory`, or in the default directory if `directory` has no room."""
    file: Any = tempfile.NamedTemporaryFile(**{**options, "dir": directory})  # noqa: SIM115
    try:
        os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
        os.ftruncate(file.fileno(), 0)
        return file
    except OSError:
        file.close()
        Path(file.name).unlink(missing_ok=True)
        return tempfile.NamedTemporaryFile(**options)  # noqa: SIM115
