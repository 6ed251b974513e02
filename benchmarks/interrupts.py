"""Runs interrupted by one Ctrl-C at a random moment: does each end as promised within 5 s, and leave nothing?

    python benchmarks/interrupts.py --runs 200          # of each engine; half an hour on two cores

The moment lies between the start of the command and some seconds of training. Every second run is started as a shell
starts a command in the background, with SIGINT ignored. Python's own start then loses the signal, so the time counts
from the command's first line. The promise is code 130, or the end by SIGINT itself, which a shell shows as 130. A
finished run is one line of --out; the same command goes on behind the last one.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import harness
from aftermath import Aftermath

SCRIPT = harness.ROOT / "tests" / "integration" / "scripts" / "endings.py"
ENGINES = ("hfdt", "nfdt")
BY_PYTHON = (1, ["Fatal Python error: init_import_site: Failed to import the site module"])  # pressed in Python's start
END_S, GONE_S, LAST_S = 5.0, 5.0, 60.0  # the target of the command and of its processes; a run is killed after LAST_S


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="of each engine")
    parser.add_argument("--latest-s", type=float, default=10.0, help="latest moment, in seconds after the start")
    parser.add_argument("--at-once", type=int, default=1, help="runs at the same time")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def interrupted(engine: str, number: int, latest_s: float) -> dict[str, Any]:
    """Run a command, interrupt it once, and return how it ended."""
    background = bool(number % 2)
    at_s = random.Random(f"{engine} {number}").uniform(0.2, latest_s)
    argv = [sys.executable, "-m", engine, "run", "-np", "2", str(SCRIPT), "1000000", "none"]
    after = Aftermath()
    env = {**os.environ, **harness.QUIET, **after.env}
    start = partial(subprocess.Popen, argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    popen = start(preexec_fn=ignore) if background else start()
    with after:
        while ignores(popen.pid):
            time.sleep(0.01)
        time.sleep(at_s)
        popen.send_signal(signal.SIGINT)
        pressed = time.monotonic()
        _, said = harness.outcome(popen, LAST_S)
        end_s = time.monotonic() - pressed
        after.wait(GONE_S)
        left, lines = after.left(), said.strip().splitlines()
    return {
        **{"engine": engine, "number": number, "at_s": round(at_s, 2), "ignored": background},
        **{"code": popen.returncode, "end_s": round(end_s, 2), "left": left},
        "said": [*lines[:1], *lines[1:][-1:]],
    }


def ignore() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def ignores(pid: int) -> bool:
    """Return whether the process ignores SIGINT."""
    (mask,) = re.findall(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)


def is_right(run: dict[str, Any]) -> bool:
    """Return whether a run ended by code 130, by SIGINT itself, or by Python's own error in its start.

    SIGINT itself ends a run before `main` of the command, and some that have printed "interrupted".
    """
    ended = run["code"] in (130, -signal.SIGINT) or (run["code"], run["said"][:1]) == BY_PYTHON
    return ended and run["end_s"] <= END_S and not run["left"]


def table(runs: Sequence[dict[str, Any]]) -> None:
    rows = []
    for engine in ENGINES:
        own = [run for run in runs if run["engine"] == engine]
        slowest = max((run["end_s"] for run in own), default=0.0)
        rows.append([engine, f"{sum(map(is_right, own))} of {len(own)}", f"{slowest:.1f} s"])
    harness.table(f"one Ctrl-C at a random moment; {harness.machine()}", ["", "ended right", "slowest end"], rows)


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the commands inherit "ignored" from this process
    runs = harness.kept(args.out)
    done = {(run["engine"], run["number"]) for run in runs}
    due = [(engine, n) for n in range(args.runs) for engine in ENGINES if (engine, n) not in done]
    with ThreadPoolExecutor(args.at_once) as pool:
        for run in pool.map(lambda case: interrupted(*case, args.latest_s), due):
            runs.append(run)
            if not is_right(run):
                harness.console.print(json.dumps(run))
            harness.keep(args.out, run)
    table(runs)
    return 0 if all(map(is_right, runs)) else 1


if __name__ == "__main__":
    harness.conclude(main)
