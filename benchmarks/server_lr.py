"""The server's learning rate under server_optimizer: worker rate fixed, server rate 0.1, 0.5, 1.0; accuracy by samples.

    python benchmarks/server_lr.py                     # 8 simulated workers, examples/fashion_mnist_cnn.py
    python benchmarks/server_lr.py --plot out          # the curves as report.html and a CSV in out/

Each is one `nfdt simulate`; it needs Fashion-MNIST where keras.datasets finds it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import harness

from nfdt.simulator.outcome import SimulationOutcome, write_report

SCRIPT = harness.ROOT / "examples" / "fashion_mnist_cnn.py"


def simulate(rate: float, args: argparse.Namespace, directory: Path) -> SimulationOutcome:
    """Return the record of one run. Raises harness.Failed."""
    options = ["--algorithm", "server_optimizer", "--server-lr", str(rate), "--local-steps", str(args.local_steps)]
    options += ["--server-optimizer", args.optimizer, "--workers", str(args.workers), "--seed", str(args.seed)]
    argv = [sys.executable, "-m", "nfdt", "simulate", *options, "--data", str(directory), "--quiet", str(SCRIPT)]
    env = {**os.environ, **harness.QUIET}
    words = [f"--epochs={args.epochs}"]
    done = subprocess.run([*argv, "--", *words], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise harness.Failed(done.stderr[-3000:])
    return SimulationOutcome.read(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="0.1,0.5,1.0")
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--local-steps", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, metavar="DIR")
    args = parser.parse_args()
    rates = [float(text) for text in args.rates.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        outcomes = [simulate(rate, args, Path(scratch) / str(rate)) for rate in rates]
    rows = [[str(rate), *curve(outcome)] for rate, outcome in zip(rates, outcomes, strict=True)]
    title = f"{args.workers} workers, {args.local_steps} local steps, server {args.optimizer}: {outcomes[0].metric}"
    harness.table(title, ["server rate", *(f"epoch {n + 1}" for n in range(args.epochs))], rows)
    if args.plot is not None:
        write_report(
            [replace(o, algorithm=f"server rate {r:g}") for o, r in zip(outcomes, rates, strict=True)], args.plot
        )


def curve(outcome: SimulationOutcome) -> list[str]:
    return [f"{log[outcome.metric]:.4f}" for fit in outcome.logs for log in fit]


if __name__ == "__main__":
    main()
