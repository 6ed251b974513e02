"""The cost that `hfdt inspect` estimates against the real run: memory of a rank and time of a step, at -np 1 and 2.

    python benchmarks/cost.py                       # MLP with Adam, CNN, Transformer: some ten minutes
    python benchmarks/cost.py --models cnn --repeats 1

`inspect` measures some steps; the run trains epochs with the same options. Of both the calmest epoch counts. Memory is
the most that the largest rank has had resident, without shared memory.
"""

import argparse
import functools
import json
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import harness
import psutil

from hfdt.cost.ranks import resident_bytes

WITHIN = 0.2
ROWS = {"mlp10": 1280, "cnn": 6400, "transformer": 1280}
MODELS = {"mlp10": "MLP, 10 M weights, Adam", "cnn": "CNN, SGD with momentum", "transformer": "Transformer, Adam"}
UNITS = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
ROW = re.compile(r"^(?:cost:)? +(\d+) +([\d.]+) (bytes|[kMG]B) +[\d.]+ \w+ +([\d.]+) ms [* ]", re.MULTILINE)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def words(model: str, epochs: int) -> list[str]:
    return [model, str(ROWS[model]), str(epochs)]


def estimated(model: str, epochs: int) -> dict[int, tuple[float, float]]:
    """Return (bytes, seconds) by number of ranks, as `hfdt inspect` prints them."""
    script = str(harness.SCRIPTS / "networked_fit.py")
    argv = [sys.executable, "-m", "hfdt", "inspect", script, "-np", "2", *words(model, epochs)]
    done = subprocess.run(argv, env={**harness.os.environ, **harness.QUIET}, capture_output=True, text=True)
    found = {int(n): (float(size) * UNITS[unit], float(ms) / 1e3) for n, size, unit, ms in ROW.findall(done.stdout)}
    if done.returncode or not {1, 2} <= found.keys():
        raise harness.Failed(f"hfdt inspect printed no cost:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found


def real(model: str, epochs: int, workers: int) -> tuple[float, float]:
    """Return (bytes, seconds) of a run: its largest rank, and a step of its calmest epoch but the first."""
    with tempfile.TemporaryDirectory() as logs, Ranks() as ranks:
        argv = harness.engine("hfdt", workers, "--log-dir", logs, script="networked_fit.py")
        harness.run([*argv, *words(model, epochs)])
        records = map(json.loads, (Path(logs) / "records.jsonl").read_text().splitlines())
        ends = [record for record in records if record["kind"] == "epoch_end"][1:]
    return ranks.most, min(end["seconds"] / end["steps"] for end in ends)


class Ranks:
    """The most resident bytes of any rank that this process's descendants have been, while the context lasts."""

    def __init__(self) -> None:
        self.most, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Ranks":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            for process in psutil.Process().children(recursive=True):
                try:
                    if process.cmdline()[1:3] == ["-m", "hfdt.worker.process"]:
                        self.most = max(self.most, resident_bytes(process.pid))
                except (psutil.Error, OSError, KeyError):  # it has ended
                    pass


def main() -> int:
    args = arguments()
    for model in args.models:
        sides = {
            "inspect": functools.partial(estimated, model, args.epochs),
            **{f"-np {n}": functools.partial(real, model, args.epochs, n) for n in (1, 2)},
        }
        turns = harness.in_turns(sides, args.repeats)
        title = f"{MODELS[model]}; {harness.machine()}"
        rows = []
        for n in (1, 2):
            said, seen = [turn[n] for turn in turns["inspect"]], turns[f"-np {n}"]
            for side, pairs in (("estimate", said), ("run", seen)):
                memory, step = ([pair[i] for pair in pairs] for i in (0, 1))
                rows.append([f"-np {n}, {side}", harness.spread([m / 1e6 for m in memory], ".0f")])
                rows[-1].append(harness.spread([s * 1e3 for s in step], ".1f"))
        harness.table(title, ["", "MB of a rank", "ms of a step"], rows)
        for n in (1, 2):
            for i, what in enumerate(("memory", "time of a step")):
                # The calmest of all turns on each side: the machine's other load is in neither.
                said = min(turn[n][i] for turn in turns["inspect"])
                seen = min(turn[i] for turn in turns[f"-np {n}"])
                off = [abs(said / seen - 1)]
                harness.verdict(f"{MODELS[model]}, {what} at -np {n}, estimate off by", off, at_most=WITHIN)
    return 0


if __name__ == "__main__":
    harness.conclude(main)
