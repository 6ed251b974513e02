"""Accuracy beside bytes under each `--compress`, on Fashion-MNIST: nfdt on the simulated clock, hfdt on two ranks.

    python benchmarks/compress.py                     # some 10 minutes on two calm cores
    python benchmarks/compress.py --engines nfdt --rows 60000 --epochs 10 --seeds 0,1,2

A run prints the accuracy on the test images. The bytes are the summary's: of all workers, sent and received. Results
are appended to --out, a JSON line each, and are not repeated.
"""

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

from harness import QUIET, ROOT, SCRIPTS, console, table

from fdt.errors import UserError

KINDS = {
    "nfdt": ["", "fp16", "bf16", "int8", "none+int8", "topk(fraction=0.1)", "topk(fraction=0.01)", "topk+int8"],
    "hfdt": ["", "fp16", "bf16", "powersgd(rank=4)", "powersgd(rank=2)", "powersgd(rank=1)"],
}
COMMANDS = {"nfdt": ["simulate", "--workers", "4"], "hfdt": ["run", "-np", "2"]}
UNITS = {"bytes": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
NUMBER = r"([\d.,]+) (bytes|kB|MB|GB)"


def train(engine: str, kind: str, rows: int, epochs: int, seed: int) -> dict[str, float]:
    """Return the accuracy in points and the megabytes sent and received. Raises UserError where the run fails."""
    options = ["--seed", str(seed), *(["--compress", kind] if kind else [])]
    script = [str(SCRIPTS / "compress_fit.py"), "--", str(rows), str(epochs), str(seed)]
    argv = [sys.executable, "-m", engine, *COMMANDS[engine], *options, *script]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **QUIET})
    accuracy = re.search(r"accuracy ([\d.]+)", done.stdout)
    moved = re.search(rf"{NUMBER} sent, {NUMBER} received", done.stderr)
    if done.returncode or accuracy is None or moved is None:
        raise UserError(f"{engine} {kind or 'uncompressed'}: exit code {done.returncode}: {done.stderr[-500:]}")
    number, unit, *received = moved.groups()
    mb = [float(n.replace(",", "")) * UNITS[u] / 1e6 for n, u in ((number, unit), received)]
    return {"accuracy": 100 * float(accuracy[1]), "sent_mb": mb[0], "received_mb": mb[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="nfdt,hfdt")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--out", type=Path, default=Path("compress.jsonl"))
    given = parser.parse_args()
    lines = map(json.loads, given.out.read_text().splitlines()) if given.out.exists() else ()
    done = {tuple(line["run"]): line["result"] for line in lines}
    for engine in given.engines.split(","):
        seeds = [int(seed) for seed in given.seeds.split(",")]
        for seed, kind in itertools.product(seeds, KINDS[engine]):
            key = engine, kind, given.rows, given.epochs, seed
            if key not in done:
                done[key] = train(*key)
                console.print(f"  {engine} {kind or 'uncompressed'}, seed {seed}: {done[key]}", style="dim")
                with given.out.open("a") as out:
                    out.write(json.dumps({"run": key, "result": done[key]}) + "\n")
        found = {k: [done[engine, k, given.rows, given.epochs, s] for s in seeds] for k in KINDS[engine]}
        show(engine, found)


def show(engine: str, found: dict[str, list[dict[str, float]]]) -> None:
    """Print accuracy and bytes of each compressor, means over seeds, beside those without one."""
    plain = {name: statistics.fmean(r[name] for r in found[""]) for name in found[""][0]}
    rows = []
    for kind, results in found.items():
        mean = {name: statistics.fmean(r[name] for r in results) for name in plain}
        fewer = [f"{mean[n]:.2f} ({plain[n] / mean[n]:.1f} times fewer)" for n in ("sent_mb", "received_mb")]
        rows.append([kind or "none", f"{mean['accuracy']:.1f}", f"{mean['accuracy'] - plain['accuracy']:+.1f}", *fewer])
    columns = ["--compress", "accuracy", "points more", "MB sent", "MB received"]
    table(f"{engine} {' '.join(COMMANDS[engine])}", columns, rows)


if __name__ == "__main__":
    main()
