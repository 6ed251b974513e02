"""The demo: it trains examples/digits.py alone, under `hfdt run` and under `nfdt run --async`, and compares them.

Both use -np 2. The script times its own epochs and prints its own accuracy; this program only parses its output.
"""

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = "examples/digits.py"
BIN = Path(sys.executable).parent
WAYS = {
    "alone": [sys.executable, SCRIPT],
    "HFDT, 2 workers": [str(BIN / "hfdt"), "run", SCRIPT, "-np", "2"],
    "NFDT, 2 workers": [str(BIN / "nfdt"), "run", SCRIPT, "--async", "-np", "2"],
}
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}


@dataclass(frozen=True)
class Result:
    accuracy: float
    samples_per_s: float
    wall_s: float


def main() -> int:
    console = Console()
    os.chdir(ROOT)
    os.environ.update(QUIET)
    results = {}
    for way, argv in WAYS.items():
        shown = " ".join([Path(argv[0]).name, *argv[1:]])
        console.print(f"\n[bold]{way}[/]: {shown}", highlight=False)
        started = time.perf_counter()
        code, said = relay(argv)
        if code:
            console.print(f"make demo: `{shown}` ended with exit code {code}", markup=False, highlight=False)
            return code
        results[way] = read(said, time.perf_counter() - started)
    console.print()
    console.print(table(results))
    console.print(
        "samples/s: over all workers, first epoch left out. wall time: the whole command, imports and workers' start\n"
        f"included. The model is tiny, so that this is short; the machine has {len(os.sched_getaffinity(0))} cores.",
        highlight=False,
    )
    return 0


def relay(argv: Sequence[str]) -> tuple[int, str]:
    """Run `argv` and copy its output to the terminal; return its exit code and its output.

    On a terminal the command gets a pseudo-terminal, so that it draws its progress bar.
    """
    return _on_terminal(argv) if sys.stdout.isatty() and sys.stdin.isatty() else _through_pipe(argv)


def _on_terminal(argv: Sequence[str]) -> tuple[int, str]:
    said = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 4096)
        said.extend(data)
        return data

    size = os.get_terminal_size()
    os.environ.update(COLUMNS=str(size.columns), LINES=str(size.lines))
    status = pty.spawn(list(argv), read)
    return _exit_code(os.waitstatus_to_exitcode(status)), said.decode(errors="replace")


def _through_pipe(argv: Sequence[str]) -> tuple[int, str]:
    said = []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, errors="replace") as popen:
        assert popen.stdout is not None
        for line in popen.stdout:
            said.append(line)
            print(line, end="", flush=True)
    return _exit_code(popen.returncode), "".join(said)


def _exit_code(code: int) -> int:
    return 128 - code if code < 0 else code


def read(said: str, wall_s: float) -> Result:
    """Parse the script's two numbers. Raises ValueError where they are missing."""
    accuracy = re.search(r"test accuracy: ([\d.]+)", said)
    rate = re.search(r"throughput: ([\d.]+) samples/s", said)
    if accuracy is None or rate is None:
        raise ValueError(f"{SCRIPT} must print its throughput and its test accuracy. Received: {said[-200:]!r}")
    return Result(float(accuracy[1]), float(rate[1]), wall_s)


def table(results: dict[str, Result]) -> Table:
    drawn = Table()
    drawn.add_column("digits.py")
    for heading in ("test accuracy", "samples/s", "wall time"):
        drawn.add_column(heading, justify="right")
    for way, result in results.items():
        drawn.add_row(way, f"{result.accuracy:.4f}", f"{result.samples_per_s:,.0f}", f"{result.wall_s:.1f} s")
    return drawn


if __name__ == "__main__":
    sys.exit(main())
