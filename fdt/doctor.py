"""The checks of a machine that `doctor` makes for both engines: components, their versions, and advice."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from fdt.environment import cores

GIB = 2**30
OUTPUT_S = 30.0  # seconds for a command to print its version
SHARED_MEMORY = "/dev/shm"
TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-rocm", "tf-nightly", "tensorflow-aarch64")


@dataclass(frozen=True)
class Check:
    """One component. `ok` is None where it is optional: `advice` then states its use."""

    component: str
    found: str
    ok: bool | None
    advice: str = ""

    @property
    def verdict(self) -> str:
        return {True: "ok", False: "MISSING", None: "-"}[self.ok]


def common_checks() -> list[Check]:
    """Return the checks for HFDT and NFDT. They are fast, as they do not import TensorFlow."""
    return [
        python_check(),
        tensorflow_check(),
        distribution_check("Keras", "keras", (3, 12), "pip install 'keras>=3.12,<3.16'", (3, 16)),
        distribution_check("tf_keras", "tf_keras", None, "only for scripts that use it: pip install tf_keras"),
        distribution_check("NumPy", "numpy", (1, 26), "pip install 'numpy>=1.26'"),
        distribution_check("grpcio", "grpcio", (1, 62), "pip install 'grpcio>=1.62'"),
        distribution_check("protobuf", "protobuf", (4, 25), "pip install 'protobuf>=4.25'"),
        gpu_check(),
        shared_memory_check(),
        Check("CPU cores", str(cores()), True),
    ]


def python_check() -> Check:
    """Check that this is a Python from 3.10 to 3.14."""
    version = sys.version_info
    fits = (3, 10) <= version[:2] <= (3, 14)
    return Check("Python", ".".join(map(str, version[:3])), fits, "" if fits else "use Python 3.10 to 3.14")


def tensorflow_check() -> Check:
    """Check that a TensorFlow is installed, of a version that is known to work."""
    version = tensorflow_version()
    if version is None:
        return Check("TensorFlow", "", False, "pip install 'tensorflow>=2.16,<2.23'")
    fits = (2, 16) <= release(version) < (2, 23)
    return Check("TensorFlow", version, fits, "" if fits else "only 2.16 to 2.22 are tested")


def distribution_check(
    component: str, name: str, least: tuple[int, ...] | None, advice: str, below: tuple[int, ...] = (sys.maxsize,)
) -> Check:
    """Check the installed distribution `name`; without `least` it is optional, and `advice` states its use."""
    version = distribution_version(name)
    if version is None:
        return Check(component, "", None if least is None else False, advice)
    fits = least is None or least <= release(version) < below
    return Check(component, version, fits, "" if fits else advice)


def gpu_check() -> Check:
    """List the GPUs; a machine without one passes."""
    names = gpus()
    return Check("GPUs", ", ".join(names), True if names else None, "" if names else "training runs on the CPU")


def shared_memory_check() -> Check:
    """Check /dev/shm, through which data sets and weights are shared; a container often has 64 MB of it."""
    if not os.access(SHARED_MEMORY, os.W_OK):
        return Check(SHARED_MEMORY, "", None, "not writable: a temporary directory is used, which is slower")
    usage = shutil.disk_usage(SHARED_MEMORY)
    small = usage.total < GIB
    advice = "little for large data; in a container: --shm-size=2g" if small else ""
    return Check(SHARED_MEMORY, f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free", True, advice)


def gpus() -> list[str]:
    """Return the names of the GPUs that the NVIDIA driver lists."""
    listed = output(["nvidia-smi", "-L"]) or ""
    return re.findall(r"^GPU \d+: (.*?)(?: \(UUID.*)?$", listed, re.MULTILINE)


def tensorflow_version() -> str | None:
    """Return the version of TensorFlow under any of its distribution names; None when it is not installed."""
    return next((v for v in map(distribution_version, TENSORFLOWS) if v), None)


def distribution_version(name: str) -> str | None:
    """Return the version of an installed distribution; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, ...]:
    """Return (2, 21, 0) for "2.21.0rc1"."""
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[a-z+]", version)[0]))


def output(argv: Sequence[str]) -> str | None:
    """Return the output of `argv`; None when the program is missing, fails or does not end in time."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=OUTPUT_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def report(title: str, checks: Iterable[Check], console: Console | None = None, *, as_json: bool = False) -> bool:
    """Print the table, in plain columns if not to a terminal; return whether no required component is missing.

    `as_json`: print one JSON object instead.
    """
    console = console or Console()
    rows = list(checks)
    good = all(check.ok is not False for check in rows)
    if as_json:
        print(json.dumps({"command": title, "ok": good, "checks": [asdict(row) for row in rows]}), file=console.file)
    else:
        (_rich if console.is_terminal else _plain)(title, rows, console)
    return good


def _rich(title: str, rows: Sequence[Check], console: Console) -> None:
    table = Table(title=title, title_justify="left")
    for heading in ("component", "found", "", "what to do"):
        table.add_column(heading, overflow="fold")
    colours = {True: "green", False: "bold red", None: "dim"}
    for row in rows:
        table.add_row(row.component, row.found, f"[{colours[row.ok]}]{row.verdict}[/]", row.advice)
    console.print(table)


def _plain(title: str, rows: Sequence[Check], console: Console) -> None:
    widths = [max(len(r.component) for r in rows), max(len(r.found) for r in rows)]
    lines = [f"{r.component:{widths[0]}}  {r.found:{widths[1]}}  {r.verdict:7}  {r.advice}".rstrip() for r in rows]
    print("\n".join([title, *lines]), file=console.file)
