"""Runs preempted by a signal at a random moment: does each end with code 75 in time, and resume to equal numbers?

    python benchmarks/preemptions.py --runs 50 --out preemptions.jsonl          # of each engine

The moment lies between the start of the command and its end. A third of the runs get SIGTERM, a third SIGUSR1, and a
third SIGTERM in all their processes at once, as Slurm sends it. A run that ended with code 75 is resumed. Under HFDT
weights and history must then equal those of an undisturbed run to the bit; under NFDT each row must be trained as often
as asked (scripts/counts.py). A finished run is one line of --out; the same command goes on behind the last one.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import psutil
from aftermath import Aftermath

ENGINES = {"hfdt": ("preempted.py", "4"), "nfdt": ("counts.py", "12")}
HOW = ("SIGTERM", "SIGUSR1", "SIGTERM to all")
GRACE_S, END_S, GONE_S, LAST_S = 25.0, 5.0, 10.0, 600.0
TOO_EARLY = (-signal.SIGTERM, -signal.SIGUSR1, 128 + signal.SIGTERM)  # before there is a run to resume


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50, help="of each engine")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no run after so many seconds")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def command(engine: str, *options: str) -> list[str]:
    return [sys.executable, "-m", engine, "run", *options]


def undisturbed(engine: str) -> tuple[str, float]:
    """Return the last line and the seconds of a run that no signal interrupts."""
    script, *words = ENGINES[engine]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as where:
        argv = command(engine, "--run-dir", f"{where}/run", "-np", "2", str(harness.SCRIPTS / script), *words)
        done = subprocess.run(argv, env={**os.environ, **harness.QUIET}, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1], time.monotonic() - start


def preempted(engine: str, number: int, expected: str, whole_s: float) -> dict[str, Any]:
    """Start a run, signal it, resume it if it asks for that, and return how both ended."""
    script, *words = ENGINES[engine]
    how, after = HOW[number % len(HOW)], Aftermath()
    at_s = random.Random(f"{engine} {number}").uniform(0.5, whole_s)
    env = {**os.environ, **harness.QUIET, **after.env}
    with tempfile.TemporaryDirectory() as where, after:
        run = Path(where) / "run"
        argv = command(engine, "--run-dir", str(run), "-np", "2", str(harness.SCRIPTS / script), *words)
        popen = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            popen.wait(at_s)
        for process in (
            after.processes() if how.endswith("all") else [psutil.Process(popen.pid)] if popen.poll() is None else []
        ):
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGUSR1 if "USR1" in how else signal.SIGTERM)
        sent = time.monotonic()
        out, said = ended(popen)
        end_s = time.monotonic() - sent
        after.wait(GONE_S)
        found: dict[str, Any] = {"engine": engine, "number": number, "how": how, "at_s": round(at_s, 2)}
        found |= {"code": popen.returncode, "end_s": round(end_s, 2), "left": after.left(), "said": said[-1:]}
        found |= {"to_resume": (run / "run.json").exists(), "complete": out[-1:] == [expected], "resumed": None}
        if popen.returncode == 75:
            again = subprocess.Popen(
                command(engine, "--resume", str(run)),
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            out, said = ended(again)
            found |= {"resumed": again.returncode, "equal": out[-1:] == [expected]}
            found["from"] = [line for line in said if "continues from" in line]
            if not found["equal"]:
                found["said"] += said[-3:] + out[-1:]
    found["right"] = is_right(found)
    return found


def ended(popen: "subprocess.Popen[str]") -> tuple[list[str], list[str]]:
    out, said = harness.outcome(popen, LAST_S)
    return out.splitlines(), said.splitlines()


def is_right(run: dict[str, Any]) -> bool:
    """Return whether a run ended as promised."""
    if run["left"] or run["end_s"] > GRACE_S + END_S:
        return False
    if run["code"] == 75:
        return run["resumed"] == 0 and bool(run["equal"])
    if run["code"] == 0:
        return bool(run["complete"])
    return run["code"] in TOO_EARLY and (run["complete"] or not run["to_resume"])


def table(runs: Sequence[dict[str, Any]]) -> None:
    rows = []
    for engine in ENGINES:
        own = [run for run in runs if run["engine"] == engine]
        if own:
            again = [run for run in own if run["code"] == 75]
            equal = sum(bool(run["equal"]) for run in again)
            ends = [f"{sum(run['code'] == code for run in own)} x {code}" for code in sorted({r["code"] for r in own})]
            slowest = f"{max(run['end_s'] for run in again):.1f} s" if again else ""
            right = f"{sum(run['right'] for run in own)} of {len(own)}"
            rows.append([engine, right, ", ".join(ends), f"{equal} of {len(again)}", slowest])
    columns = ["", "as promised", "exit codes", "resumed to equal numbers", "slowest end with 75"]
    harness.table(f"preempted at a random moment; {harness.machine()}", columns, rows)


def main() -> int:
    args = arguments()
    runs, until = harness.kept(args.out), time.monotonic() + args.budget_s
    alone = {engine: undisturbed(engine) for engine in args.engines.split(",")}
    done = {(run["engine"], run["number"]) for run in runs}
    for engine, number in ((e, n) for n in range(args.runs) for e in alone if (e, n) not in done):
        if time.monotonic() > until:
            break
        runs.append(preempted(engine, number, *alone[engine]))
        if not runs[-1]["right"]:
            harness.console.print(json.dumps(runs[-1]))
        harness.keep(args.out, runs[-1])
    table(runs)
    return 0 if all(run["right"] for run in runs) else 1


if __name__ == "__main__":
    harness.conclude(main)
