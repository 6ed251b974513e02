"""Runs that get a signal at a random moment: does each end as promised, and a `fit` resume to equal numbers?

    python benchmarks/preemptions.py --runs 50 --out preemptions.jsonl                    # of each engine
    python benchmarks/preemptions.py --runs 25 --moments epochs --out preemptions.jsonl   # once the first epoch begins
    python benchmarks/preemptions.py --runs 50 --kind replica --out preemptions.jsonl     # a script with its own loop
    python benchmarks/preemptions.py --runs 50 --kind traced --out preemptions.jsonl      # and long traces

The moment lies between the start of the command (or of its first epoch) and its end. A third of the runs get SIGTERM,
a third SIGUSR1, and a third SIGTERM in all their processes at once, as Slurm sends it. A `fit` has --run-dir: a run
that ended with code 75 is resumed. Under HFDT weights and history must then equal those of an undisturbed run to the
bit; under NFDT each row must be trained as often as asked (scripts/counts.py). A script with its own loop cannot be
resumed: SIGTERM ends it within 5 s, and SIGUSR1 leaves it alone. A finished run is one line of --out; the same command
goes on behind the last one.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
import psutil
from aftermath import Aftermath

ENGINES = ("hfdt", "nfdt")
SCRIPTS = {
    ("fit", "hfdt"): ("preempted.py", "4"),
    ("fit", "nfdt"): ("counts.py", "12"),
    ("replica", "hfdt"): ("counts_loop.py", "12"),
    ("replica", "nfdt"): ("counts_loop.py", "12"),
    ("traced", "hfdt"): ("counts_loop.py", "4", "1000"),
    ("traced", "nfdt"): ("counts_loop.py", "4", "1000"),
}
MOMENTS = ("any", "epochs")
HOW = ("SIGTERM", "SIGUSR1", "SIGTERM to all")
BEGINS = "epoch 0 begins\n"
GRACE_S, END_S, GONE_S, LAST_S = 25.0, 5.0, 10.0, 600.0
KILLED = (-signal.SIGTERM, -signal.SIGUSR1)  # before the command can handle signals
ENDED = 128 + signal.SIGTERM


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50, help="of each engine")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--kind", default="fit", choices=sorted({kind for kind, _ in SCRIPTS}))
    parser.add_argument("--moments", default="any", choices=MOMENTS, help="epochs: from the first epoch's beginning on")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no run after so many seconds")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


class Run:
    """A command that runs, with its output in files of `folder`."""

    def __init__(self, engine: str, options: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        argv = [sys.executable, "-m", engine, "run", *options]
        self._out, self._err, self.began = folder / "out.said", folder / "err.said", time.monotonic()
        with open(self._out, "w") as out, open(self._err, "w") as err:
            self.process = subprocess.Popen(argv, env={**os.environ, **harness.QUIET, **env}, stdout=out, stderr=err)

    def await_epoch(self) -> float:
        """Wait until the first epoch begins, or the command ends; return the seconds since its start."""
        while self.process.poll() is None and BEGINS not in self._out.read_text():
            time.sleep(0.02)
        return time.monotonic() - self.began

    def ended(self) -> tuple[list[str], list[str]]:
        """Wait for the end; return the lines of both outputs."""
        try:
            self.process.wait(LAST_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return self._out.read_text().splitlines(), self._err.read_text().splitlines()


def options_of(kind: str, engine: str, folder: Path) -> list[str]:
    """Return the options, the script and its arguments."""
    script, *words = SCRIPTS[kind, engine]
    how = ["--run-dir", f"{folder}/run"] if kind == "fit" else ["--capture", "replica"]
    return [*how, "-np", "2", str(harness.SCRIPTS / script), *words]


def undisturbed(kind: str, engine: str) -> tuple[str, float, float]:
    """Return the last line of a run that no signal interrupts, and the seconds to its first epoch and to its end."""
    with tempfile.TemporaryDirectory() as where, Aftermath() as after:
        run = Run(engine, options_of(kind, engine, Path(where)), Path(where), after.env)
        first_s = run.await_epoch()
        out, said = run.ended()
        if run.process.returncode:
            raise harness.Failed(f"the undisturbed run failed: {said[-3:]}")
    return out[-1], first_s, time.monotonic() - run.began


def preempted(
    kind: str, moments: str, engine: str, number: int, expected: str, first_s: float, whole_s: float
) -> dict[str, Any]:
    """Start a run, signal it, resume it if it asks for that, and return how both ended."""
    how, after = HOW[number % len(HOW)], Aftermath()
    named = "" if (kind, moments) == ("fit", "any") else f"{kind} {moments} "
    chance = random.Random(f"{named}{engine} {number}")
    with tempfile.TemporaryDirectory() as where, after:
        folder = Path(where)
        run = Run(engine, options_of(kind, engine, folder), folder, after.env)
        passed_s = run.await_epoch() if moments == "epochs" else 0.0
        at_s = chance.uniform(0.0, whole_s - first_s) if moments == "epochs" else chance.uniform(0.5, whole_s)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.process.wait(at_s)
        send(how, run.process, after)
        sent = time.monotonic()
        out, said = run.ended()
        end_s = time.monotonic() - sent
        after.wait(GONE_S)
        found: dict[str, Any] = {"engine": engine, "number": number, "kind": kind, "moments": moments, "how": how}
        found |= {"at_s": round(passed_s + at_s, 2), "code": run.process.returncode, "end_s": round(end_s, 2)}
        found |= {"left": after.left(), "said": said[-1:], "to_resume": (folder / "run" / "run.json").exists()}
        found |= {"complete": out[-1:] == [expected], "resumed": None}
        if run.process.returncode == 75:
            again = Run(engine, ["--resume", f"{folder}/run"], folder, after.env)
            out, said = again.ended()
            found |= {"resumed": again.process.returncode, "equal": out[-1:] == [expected]}
            found["from"] = [line for line in said if "continues from" in line]
            if not found["equal"]:
                found["said"] += said[-3:] + out[-1:]
    found["right"] = is_right(found) if kind == "fit" else is_right_alone(found)
    return found


def send(how: str, process: "subprocess.Popen[bytes]", after: Aftermath) -> None:
    """Send the signal, unless the command has ended."""
    alone = [psutil.Process(process.pid)] if process.poll() is None else []
    for each in after.processes() if how.endswith("all") else alone:
        with contextlib.suppress(psutil.Error):
            each.send_signal(signal.SIGUSR1 if "USR1" in how else signal.SIGTERM)


def is_right(run: dict[str, Any]) -> bool:
    """Return whether a `fit` ended as promised."""
    if run["left"] or run["end_s"] > GRACE_S + END_S:
        return False
    if run["code"] == 75:
        return run["resumed"] == 0 and bool(run["equal"])
    if run["code"] == 0:
        return bool(run["complete"])
    return run["code"] in (*KILLED, ENDED) and (run["complete"] or not run["to_resume"])


def is_right_alone(run: dict[str, Any]) -> bool:
    """Return whether a script with its own loop ended as promised: at once by SIGTERM, not by SIGUSR1."""
    ended = run["code"] == 0 and run["complete"]
    if "USR1" in run["how"]:
        return not run["left"] and (ended or run["code"] in KILLED)
    return not run["left"] and run["end_s"] <= END_S and (ended or run["code"] in (*KILLED, ENDED))


def table(runs: Sequence[dict[str, Any]]) -> None:
    rows = []
    for kind, moments, engine in itertools.product(sorted({kind for kind, _ in SCRIPTS}), MOMENTS, ENGINES):
        own = [run for run in runs if key(run)[:3] == (kind, moments, engine)]
        if own:
            again = [run for run in own if run["code"] == 75]
            equal = sum(bool(run["equal"]) for run in again)
            ends = [f"{sum(run['code'] == code for run in own)} x {code}" for code in sorted({r["code"] for r in own})]
            by_signal = again if kind == "fit" else [run for run in own if run["code"] == ENDED]
            slowest = f"{max(run['end_s'] for run in by_signal):.1f} s" if by_signal else ""
            right = f"{sum(run['right'] for run in own)} of {len(own)}"
            rows.append([f"{kind}, {moments}, {engine}", right, ", ".join(ends), f"{equal} of {len(again)}", slowest])
    columns = ["", "as promised", "exit codes", "resumed to equal numbers", "slowest end by the signal"]
    harness.table(f"preempted at a random moment; {harness.machine()}", columns, rows)


def key(run: dict[str, Any]) -> tuple[str, str, str, int]:
    return run.get("kind", "fit"), run.get("moments", "any"), run["engine"], run["number"]


def main() -> int:
    args = arguments()
    runs, until = harness.kept(args.out), time.monotonic() + args.budget_s
    alone = {engine: undisturbed(args.kind, engine) for engine in args.engines.split(",")}
    done = {key(run) for run in runs}
    for number, engine in itertools.product(range(args.runs), alone):
        if (args.kind, args.moments, engine, number) in done:
            continue
        if time.monotonic() > until:
            break
        runs.append(preempted(args.kind, args.moments, engine, number, *alone[engine]))
        if not runs[-1]["right"]:
            harness.console.print(json.dumps(runs[-1]))
        harness.keep(args.out, runs[-1])
    table(runs)
    return 0 if all(run["right"] for run in runs) else 1


if __name__ == "__main__":
    harness.conclude(main)
