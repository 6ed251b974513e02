"""The build of Horovod 0.28.1 against the TensorFlow and the MPI of this environment.

Its last release does not compile with TensorFlow after 2.13 because of one file, the XLA operations for GPUs, which
includes headers that have moved. Without that file it builds and runs with TensorFlow 2.21.
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fdt import doctor
from fdt.environment import cores
from fdt.errors import UserError

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
DROPPED = "xla_mpi_ops.cc"
COMPILERS = ("c++", "g++", "clang++")
# The sources use uint8_t and std::logic_error without their headers, which other headers of GCC 13 to 16 leave out, and
# FlatBuffers has a template that is never instantiated and that GCC 15 refuses. Older GCCs ignore the last flag.
RECENT_GCC = "-include cstdint -include stdexcept -Wno-template-body"
BYTES_PER_COMPILER = 1.5 * doctor.GIB  # memory: TensorFlow's headers are large

OnProgress = Callable[[str, int], None]  # (activity, percent)


@dataclass(frozen=True)
class Mpi:
    """An MPI installation: `mpirun`, and `mpicxx` where programs can be built against it."""

    mpirun: Path
    mpicxx: Path | None
    version: str  # "Open MPI 5.0.11"

    @property
    def in_environment(self) -> bool:
        """Whether this MPI is installed in the Python environment."""
        return self.mpirun.parent == Path(sys.executable).parent


class BuildError(UserError):
    """Raised where Horovod cannot be built, with the cause."""


def build(into: Path, scratch: Path, mpi: Mpi | None, log: Path, progress: OnProgress) -> Path:
    """Build the wheel in `scratch` and return its path in `into`. Raises BuildError."""
    compiler = find_compiler()
    tools = scratch / "tools"
    run = _Runner(log, _environment(tools, mpi, compiler))
    progress("build tools", 0)
    run.pip("install", "--target", tools, "setuptools<81", "wheel", *_cmake())
    progress("download", 0)
    source = patch(unpack(download(run, scratch), scratch))
    run.pip(
        *("wheel", "-v", "--no-deps", "--no-build-isolation", "-w", into, source),
        on_line=lambda line: _percent(line, progress),
    )
    return next(into.glob("horovod-*.whl"))


def find_compiler() -> str:
    """Return the C++ compiler. Raises BuildError where the compiler or make is missing."""
    compiler = os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), "")
    missing = [] if compiler else [f"C++ compiler ({', '.join(COMPILERS)})"]
    missing += [] if shutil.which("make") else ["make"]
    if missing:
        raise BuildError(
            f"Horovod cannot be built: PATH has no {' and no '.join(missing)}. "
            "Install them (Debian: apt install g++ make) and run `hfdt doctor --install-horovod`"
        )
    return compiler


def download(run: "_Runner", scratch: Path) -> Path:
    """Download the source by pip. Its hash is checked before any of its code runs."""
    wanted = scratch / "horovod.txt"
    wanted.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    run.pip(
        *("download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"),
        *("-d", scratch / "source", "-r", wanted),
    )
    archive = next((scratch / "source").glob("horovod-*.tar.gz"))
    return verify(archive)


def verify(archive: Path) -> Path:
    """Return `archive`. Raises BuildError unless it is the tested release."""
    received = hashlib.sha256(archive.read_bytes()).hexdigest()
    if received != SHA256:
        raise BuildError(f"{archive.name} must have the SHA-256 {SHA256}. Received: {received}")
    return archive


def unpack(archive: Path, scratch: Path) -> Path:
    """Extract the source archive; return its directory."""
    with tarfile.open(archive) as file:
        if hasattr(tarfile, "data_filter"):
            file.extractall(scratch, filter="data")
        else:
            file.extractall(scratch)
    return scratch / f"horovod-{VERSION}"


def patch(source: Path) -> Path:
    """Remove the source file that TensorFlow after 2.13 cannot compile. Raises BuildError unless it is listed once."""
    path = source / "horovod" / "tensorflow" / "CMakeLists.txt"
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if DROPPED not in line]
    if len(kept) != len(lines) - 1:
        raise BuildError(f"{path.name} must name {DROPPED} on one line. Received: {len(lines) - len(kept)} lines")
    path.write_text("".join(kept))
    return source


def _environment(tools: Path, mpi: Mpi | None, compiler: str) -> dict[str, str]:
    """Return the environment variables of the build; variables that the user has set for Horovod take precedence."""
    with_mpi = mpi is not None and mpi.mpicxx is not None
    first = [str(tools / "bin"), *([str(mpi.mpirun.parent)] if mpi and with_mpi else [])]
    ours = {
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI" if with_mpi else "HOROVOD_WITHOUT_MPI": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CXX": compiler,
        **gpu_variables(),
    }
    path = os.pathsep.join([*first, os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    forced = {"PATH": path, "PYTHONPATH": str(tools), "PYTHONNOUSERSITE": "1", "MAKEFLAGS": f"-j{_jobs()}"}
    forced["CXXFLAGS"] = f"{RECENT_GCC} {os.environ.get('CXXFLAGS', '')}"
    if mpi and with_mpi and mpi.in_environment:
        # The wheel is cached for other environments, which have libmpi at the same relative path.
        forced["LDFLAGS"] = f"-Wl,-rpath,$ORIGIN/../../../.. {os.environ.get('LDFLAGS', '')}"
    return {**ours, **os.environ, **forced}


def gpu_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Enable all-reduce over NCCL where there are a GPU, the CUDA compiler and NCCL's header. Untested: no GPU here.

    A CUDA compiler alone does not suffice. HOROVOD_GPU_OPERATIONS, even empty, takes precedence.
    """
    homes = [environ.get("HOROVOD_NCCL_HOME", ""), environ.get("CUDA_HOME", "/usr/local/cuda"), "/usr"]
    header = any(home and os.path.exists(os.path.join(home, "include", "nccl.h")) for home in homes)
    return {"HOROVOD_GPU_OPERATIONS": "NCCL"} if header and shutil.which("nvcc") and doctor.gpus() else {}


def _cmake() -> list[str]:
    """Return a requirement of CMake 3 unless the machine's version fits: Horovod needs 3.13, and 4 is untested."""
    found = re.search(r"version ([\d.]+)", doctor.output(["cmake", "--version"]) or "")
    fits = found and (3, 13) <= doctor.release(found[1]) < (4,)
    return [] if fits else ["cmake>=3.13,<4"]


def _jobs() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores(), int(memory / BYTES_PER_COMPILER)))


def _percent(line: str, progress: OnProgress) -> None:
    if found := re.search(r"\[ *(\d+)%\]", line):
        progress("compile", int(found[1]))


class _Runner:
    """A runner of pip with the build's variables; the output goes to the log."""

    def __init__(self, log: Path, env: Mapping[str, str]) -> None:
        self._log, self._env = log, env
        self._begin = 0  # of the last command's output, bytes
        log.write_text("")

    def pip(self, *arguments: object, on_line: Callable[[str], None] | None = None) -> None:
        """Run pip. Raises BuildError with the end of the log."""
        argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
        if self._run(argv, on_line or (lambda line: None)):
            raise BuildError(
                f"Horovod's build failed at `pip {arguments[0]}`: {self._cause()}; the log: {self._log}\n"
                + "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            )

    def _run(self, argv: Sequence[str], on_line: Callable[[str], None]) -> int:
        self._begin = self._log.stat().st_size
        with open(self._log, "a") as log, self._start(argv) as popen:
            try:
                return _relay(popen, log.write, on_line)
            finally:
                if popen.poll() is None:
                    os.killpg(popen.pid, signal.SIGKILL)  # the compilers too

    def _start(self, argv: Sequence[str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            argv,
            env=dict(self._env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def _cause(self) -> str:
        """Return the first line of the last command's output that is an error's."""
        lines = self._log.read_bytes()[self._begin :].decode(errors="replace").splitlines()
        errors = (line.strip() for line in lines if re.search(r"\berror(:| at )", line, re.IGNORECASE))
        return next(errors, "no error message")[:200]


def _relay(popen: "subprocess.Popen[str]", write: Callable[[str], object], on_line: Callable[[str], None]) -> int:
    assert popen.stdout is not None
    for line in popen.stdout:
        write(line)
        on_line(line)
    return popen.wait()
