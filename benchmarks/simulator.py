"""The cost of `nfdt simulate` beyond gradients and updates: a small model, many workers, on described links.

Overhead is the wall time of the simulation minus that of workers' steps (reading the batch included) and of the calls
of algorithm and optimizer: it consists of events, links, scheduler and records. It is measured at two lengths: per push
it must stay the same.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness

EPOCHS = 2
CLUSTER = """\
step: 1 s
link: {bandwidth: 1 Gbit/s, latency: 1 ms}
server: {bandwidth: 10 Gbit/s, latency: 0.2 ms}
nodes:
  - speed: {distribution: gamma, mean: 1, shape: 20}
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--pushes", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--algorithm", default="asgd")
    return parser.parse_args()


def simulate(args: argparse.Namespace, pushes: int) -> dict[str, float]:
    """Return seconds by part, over all epochs of one run."""
    with tempfile.TemporaryDirectory() as scratch:
        cluster = Path(scratch) / "cluster.yaml"
        cluster.write_text(CLUSTER)
        options = [
            "--cluster",
            str(cluster),
            "--workers",
            str(args.workers),
            "--algorithm",
            args.algorithm,
            "--data",
            scratch,
        ]
        rows = pushes // EPOCHS * args.batch
        words = [f"--rows={rows}", f"--batch={args.batch}", f"--epochs={EPOCHS}", "--rate=0.0005", "--momentum=0"]
        argv = [sys.executable, "-m", "nfdt", "simulate", *options, str(harness.SCRIPTS / "keras_fit.py")]
        env = {**os.environ, **harness.QUIET}
        done = subprocess.run([*argv, "--", *words], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise harness.Failed(done.stderr[-3000:])
        (fit,) = json.loads((Path(scratch) / "run.json").read_text())["fits"]
    return totals(fit["epochs"])


def totals(epochs: list[dict[str, Any]]) -> dict[str, float]:
    found = {name: sum(epoch[name] for epoch in epochs) for name in ("pushes", "total_s", "gradient_s", "update_s")}
    found["overhead_s"] = found["total_s"] - found["gradient_s"] - found["update_s"]
    found["simulated_s"] = epochs[-1]["simulated_s"]
    return found


def main() -> int:
    args = arguments()
    runs = [simulate(args, pushes) for pushes in (args.pushes // 2, args.pushes)]
    rows = [
        [
            f"{run['pushes']:,.0f}",
            *(f"{run[name]:.1f} s" for name in ("total_s", "gradient_s", "update_s", "overhead_s")),
            f"{run['overhead_s'] / run['pushes'] * 1e6:.0f} us",
            f"{run['simulated_s']:.1f} s",
        ]
        for run in runs
    ]
    title = (
        f"{args.workers:,} simulated workers, {args.algorithm}, 57 k weights, batch {args.batch}; {harness.machine()}"
    )
    heads = ["pushes", "wall", "gradients", "updates", "simulator", "a push", "simulated"]
    harness.table(title, heads, rows)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    harness.console.print(f"largest process: {peak:.2f} GB")
    harness.verdict("simulator over wall time", [runs[1]["overhead_s"] / runs[1]["total_s"]], at_most=0.10)
    a_push = [run["overhead_s"] / run["pushes"] for run in runs]
    harness.verdict("simulator's time a push, at twice the pushes", [a_push[1] / a_push[0]], at_most=1.25)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except harness.Failed as error:
        sys.exit(f"{error}")
