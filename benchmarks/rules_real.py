"""The asynchronous algorithms in real runs: test accuracy under `nfdt run --async -np 4`, against simulated runs.

    python benchmarks/rules_real.py                             # Fashion-MNIST, SGD with momentum
    python benchmarks/rules_real.py --script cifar10_lenet5     # CIFAR-10, Adam
    python benchmarks/rules_real.py --rules asgd,ddc_asgd --budget-s 600 --sides real

Four workers share fewer cores, so gradients are really stale. Results are stored in --out, a JSON line each, and are
not repeated: the same command continues where --budget-s ended it. The script alone is `python script.py`.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import harness

ALONE, REAL, SIMULATED = "alone", "real", "simulated"
SIDES = (REAL, SIMULATED)
SGD_RULES = "ddc_asgd,dana_dc,staleness_aware,gap_aware,dc_asgd_a,dc_asgd,dc_asgd_k,asgd"
TASKS = {  # words of the script, rules
    "fashion_mnist_cnn": (("--epochs", "1"), SGD_RULES),
    "cifar10_lenet5": (("--epochs", "2", "--train-samples", "20000"), SGD_RULES.replace("dana_dc,", "")),
}


@dataclass(frozen=True)
class Run:
    script: str
    words: tuple[str, ...]
    rule: str
    side: str
    workers: int
    seed: int


def argv(run: Run, log_dir: str) -> list[str]:
    script, words = str(harness.ROOT / "examples" / f"{run.script}.py"), [*run.words, "--seed", str(run.seed)]
    if run.side == ALONE:
        return [sys.executable, script, *words]
    named = ["--algorithm", run.rule, "-np", str(run.workers), "--seed", str(run.seed), "--log-dir", log_dir]
    command = ["run", "--async"] if run.side == REAL else ["simulate"]
    return [sys.executable, "-m", "nfdt", *command, *named, script, "--", *words]


def train(run: Run) -> dict[str, float]:
    """Return test accuracy in points, mean staleness, seconds. Raises harness.Failed."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        env = {**os.environ, **harness.QUIET}
        done = subprocess.run(argv(run, scratch), env=env, capture_output=True, text=True, check=False)
        tau = staleness(Path(scratch, "records.jsonl"))
    said = re.search(r"test accuracy: ([\d.]+)", done.stdout)
    if done.returncode or said is None:
        raise harness.Failed(f"{run}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return {"accuracy": 100 * float(said[1]), "tau": tau, "seconds": time.perf_counter() - start}


def staleness(records: Path) -> float:
    """Return the mean over the epochs in --log-dir; 0 where there is no such file."""
    lines = records.read_text().splitlines() if records.exists() else []
    ends = [said["extra"] for said in map(json.loads, lines) if said["kind"] == "epoch_end"]
    return statistics.fmean(end.get("staleness_mean", 0.0) for end in ends) if ends else 0.0


def runs(given: argparse.Namespace) -> list[Run]:
    """Return the runs: alone, then by algorithm, real and simulated; seeds outermost."""
    words, rules = TASKS[given.script]
    wanted = []
    for seed in map(int, given.seeds.split(",")):
        wanted.append(Run(given.script, words, ALONE, ALONE, 1, seed))
        for rule in (given.rules or rules).split(","):
            wanted += [Run(given.script, words, rule, side, given.workers, seed) for side in given.sides.split(",")]
    return wanted


def read(out: Path) -> dict[Run, dict[str, float]]:
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return {Run(**{**line["run"], "words": tuple(line["run"]["words"])}): line["result"] for line in lines}


def show(wanted: Sequence[Run], done: dict[Run, dict[str, float]]) -> None:
    rows = []
    for rule in dict.fromkeys(run.rule for run in wanted):
        cells = []
        for side in SIDES:
            found = [done[run] for run in wanted if run.rule == rule and run.side in (side, ALONE) and run in done]
            cells.append(harness.spread([result["accuracy"] for result in found], ".1f") if found else "-")
            cells.append(f"{statistics.fmean(result['tau'] for result in found):.1f}" if found else "-")
        rows.append([rule, *cells])
    title = f"{wanted[0].script} {' '.join(wanted[0].words)}, {wanted[-1].workers} workers, test accuracy in points"
    harness.table(title, ["algorithm", "real", "staleness", "simulated", "staleness"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", choices=TASKS, default="fashion_mnist_cnn")
    parser.add_argument("--rules", default="")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--budget-s", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=Path("rules_real.jsonl"))
    given = parser.parse_args()
    wanted, done, start = runs(given), read(given.out), time.monotonic()
    for run in wanted:
        if run in done or time.monotonic() - start > given.budget_s:
            continue
        done[run] = train(run)
        harness.console.print(f"  {run.rule}, {run.side}: {done[run]['accuracy']:.2f}", style="dim")
        with given.out.open("a") as out:
            out.write(json.dumps({"run": asdict(run), "result": done[run]}) + "\n")
    show(wanted, done)
    if missing := sum(run not in done for run in wanted):
        harness.console.print(f"{missing} of {len(wanted)} runs are still to do: the same command goes on with them")


if __name__ == "__main__":
    main()
