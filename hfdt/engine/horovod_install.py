"""The installation of Horovod: an existing one, else the cached wheel, else a new build; one at a time on a machine."""

import contextlib
import fcntl
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fdt import doctor
from fdt.launch.mpirun import find_mpirun
from fdt.security import replacing
from hfdt.engine import horovod_build
from hfdt.engine.horovod_build import BuildError, Mpi, OnProgress

_PROBE = "import tensorflow, horovod.tensorflow as h; print('built', int(h.mpi_built()), int(h.gloo_built()))"


def install(progress: OnProgress) -> str:
    """Make Horovod work in this environment.

    Returns:
        "already installed", "from the cache" or "built".

    Raises:
        BuildError: Horovod cannot be built or imported.
    """
    mpi = find_mpi()
    if fits(probe(), mpi):
        return "already installed"
    cache = cache_directory(key(mpi))
    with _lock(cache / "lock", progress):
        if _install_cached(cache, mpi):
            return "from the cache"
        _build_into(cache, mpi, progress)
        progress("install", 100)
        if not _install_cached(cache, mpi):
            raise BuildError(f"the Horovod that was built cannot be imported; see {cache / 'import.log'}")
        return "built"


def find_mpi() -> Mpi | None:
    """Return the MPI that HFDT runs under (fdt/launch), so that Horovod is built against it; None if there is none."""
    mpirun = find_mpirun()
    if mpirun is None:
        return None
    mpicxx = Path(mpirun).with_name("mpicxx")
    shown = doctor.output([mpirun, "--version"]) or ""
    return Mpi(Path(mpirun), mpicxx if mpicxx.exists() else None, mpi_version(shown))


def mpi_version(shown: str) -> str:
    """Return name and version from the output of `mpirun --version`."""
    if found := re.search(r"\(Open ?MPI\) (\S+)", shown):
        return f"Open MPI {found[1]}"
    if found := re.search(r"Version: +(\S+)", shown):
        return f"MPICH {found[1]}"
    return shown.strip().splitlines()[0][:40] if shown.strip() else "unknown"


def probe(log: Path | None = None) -> tuple[bool, bool] | None:
    """Return (built with MPI, built with Gloo) of the Horovod that can be imported; None where none can.

    It runs in a process of its own: a Horovod built for another TensorFlow fails at import or crashes.
    """
    argv = [sys.executable, "-c", _PROBE]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return None
    if log:
        log.write_text(done.stdout + done.stderr)
    found = re.search(r"built (\d) (\d)", done.stdout)
    return (found[1] == "1", found[2] == "1") if found else None


def fits(built: tuple[bool, bool] | None, mpi: Mpi | None) -> bool:
    """Return whether the installed Horovod has everything that could be built here."""
    return built is not None and (built[0] or mpi is None or mpi.mpicxx is None)


def key(mpi: Mpi | None) -> str:
    """Return a name of everything that a compiled Horovod depends on."""
    tensorflow = doctor.tensorflow_version()
    if tensorflow is None:
        raise BuildError("Horovod needs TensorFlow, which is not installed; pip install tensorflow")
    place = "" if mpi is None or mpi.in_environment else "-system"
    parts = [
        f"tensorflow-{tensorflow}",
        f"cp{sys.version_info[0]}{sys.version_info[1]}",
        "gloo" if mpi is None or mpi.mpicxx is None else re.sub(r"\W*Open MPI\W*", "openmpi-", mpi.version) + place,
        sysconfig.get_platform(),
        *(["nccl"] if horovod_build.gpu_variables() else []),
    ]
    return "_".join(re.sub(r"[^\w.+-]", "-", part) for part in parts)


def cache_directory(name: str) -> Path:
    """Return the directory of cached wheels with the key `name`; create it."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = root / "hfdt" / "wheels" / name
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextlib.contextmanager
def _lock(path: Path, progress: OnProgress) -> Iterator[None]:
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another build", 0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install_cached(cache: Path, mpi: Mpi | None) -> bool:
    """Install the cached wheel; return False where there is none or it does not work here."""
    wheel = next(cache.glob("horovod-*.whl"), None)
    if wheel is None:
        return False
    _pip_install("--force-reinstall", "--no-deps", wheel)
    _pip_install(wheel)  # its missing dependencies
    return fits(probe(cache / "import.log"), mpi)


def _pip_install(*arguments: object) -> None:
    argv = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "-q", *map(str, arguments)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"pip cannot install {arguments[-1]}: {done.stderr.strip()}")


def _build_into(cache: Path, mpi: Mpi | None, progress: OnProgress) -> None:
    """Build in a scratch directory, then add the wheel to the cache by an atomic rename."""
    with tempfile.TemporaryDirectory(prefix="hfdt-horovod-") as scratch:
        built = Path(scratch) / "wheel"
        built.mkdir()
        wheel = horovod_build.build(built, Path(scratch), mpi, cache / "build.log", progress)
        with replacing(cache / wheel.name) as staged:
            staged.write_bytes(wheel.read_bytes())  # the scratch directory is often on another file system
