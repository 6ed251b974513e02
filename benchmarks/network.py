"""HFDT against hand-written Horovod between emulated hosts on shaped links: samples/s of five models. Needs root.

    python benchmarks/network.py                                       # 2 hosts, 1 Gbit/s; a quarter of an hour
    python benchmarks/network.py --mbit 100 --models mlp10 --options="--compress powersgd"

Both sides use Horovod's Gloo over TCP between the same hosts, the same batches, and the same threads. The hand-written
script has one all-reduce for each gradient. BatchNorm's statistics are local on both sides. samples/s is the steady
state: from the end of the first epoch to the end of the last.
"""

import argparse
import functools
import shlex
import sys
import tempfile
import time
from pathlib import Path

import harness
import throughput
from harness import Run

from fdt.errors import UserError
from fdt.launch import Task
from fdt.launch.emulated import EmulatedNetwork
from fdt.network.reading import read_emulated
from fdt.network.topology import topology_of
from fdt.service.member import ENGINE_VARIABLE
from hfdt.engine.emulation import EmulatedRanks

ROWS = {"cnn": 6400, "resnet20": 1280, "transformer": 1920, "mlp10": 1280, "mlp50": 384}  # epochs of a few seconds
TARGET, TARGET_COMPRESSED = 1.0, 2.0
DEADLINE_S = 900.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--mbit", type=float, default=1000.0, help="of every link, each way")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="of every link, each way")
    parser.add_argument("--models", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--options", default="", help="more options of hfdt run")
    return parser.parse_args()


def hfdt(cluster: Path, options: list[str], words: list[str]) -> Run:
    script = str(harness.SCRIPTS / "networked_fit.py")
    run = [sys.executable, "-m", "hfdt", "run", "--emulate", str(cluster), "--batch-norm", "local"]
    return harness.run([*run, *options, script, *words], timeout_s=DEADLINE_S)


def horovod(cluster: Path, words: list[str]) -> Run:
    """Run the hand-written script on the ranks of `hfdt run --emulate`."""
    described, argv = read_emulated(cluster), [*harness.python("networked_horovod.py"), *words]
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "engine").touch()
        network = EmulatedNetwork(topology_of(described))
        try:
            launched, start, cpu_s = time.time(), time.perf_counter(), harness.children_cpu_s()
            env = {**harness.QUIET, "HOROVOD_CYCLE_TIME": "0.1", ENGINE_VARIABLE: f"unix:{scratch}/engine"}
            ranks = EmulatedRanks(Path(scratch), network, described)
            processes = ranks.start(Task("worker", tuple(argv), len(described.workers), env))
            try:
                while len(ended := processes.exits()) < len(described.workers):
                    wrong = [each for each in ended if each.cause != "exit code 0"]
                    if wrong or time.perf_counter() - start > DEADLINE_S:
                        raise harness.Failed(f"{wrong}\n{(Path(scratch) / 'worker-0.log').read_text()[-3000:]}")
                    time.sleep(0.05)
            finally:
                processes.stop(0.0)
            wall_s, cpu_s = time.perf_counter() - start, harness.children_cpu_s() - cpu_s
            return Run(launched, wall_s, cpu_s, harness.report_in((Path(scratch) / "worker-0.log").read_text(), argv))
        finally:
            network.close()


def main() -> int:
    args = arguments()
    options = shlex.split(args.options)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as cluster:
        link = f"{{bandwidth: {args.mbit:g} Mbit/s, latency: {args.latency_ms:g} ms}}"
        cluster.write(f"link: {link}\nserver: {{bandwidth: unlimited}}\nnodes: [{{name: host, count: {args.hosts}}}]\n")
        cluster.flush()
        for model in args.models:
            compared(model, Path(cluster.name), options, args)
    return 0


def compared(model: str, cluster: Path, options: list[str], args: argparse.Namespace) -> None:
    """Run both sides of one model in turns; print its table and its ratio."""
    words = [model, str(ROWS[model]), str(args.epochs)]
    sides = {
        shlex.join(["hfdt run --emulate", *options]).replace("'", ""): functools.partial(hfdt, cluster, options, words),
        "hand-written Horovod, one all-reduce per gradient": functools.partial(horovod, cluster, words),
    }
    link = f"{args.mbit:g} Mbit/s, {args.latency_ms:g} ms"
    title = f"{model}: {args.hosts} hosts, {link}, {args.epochs} epochs of {ROWS[model]} rows"
    runs = throughput.tabulate(sides, args.repeats, title, ("first epoch", "loss"), ",.1f")
    target = TARGET_COMPRESSED if "--compress" in options else TARGET
    claim = f"{model} at {args.mbit:g} Mbit/s"
    harness.verdict(f"{claim}, hfdt over Horovod by hand", harness.ratios(*throughput.rates(runs)), at_least=target)
    more = [ours - theirs for ours, theirs in zip(*throughput.first_epochs(runs), strict=True)]
    harness.verdict(f"{claim}, first epoch, seconds more than by hand (not a ratio)", more, at_most=1.0)


if __name__ == "__main__":
    try:
        harness.conclude(main)
    except UserError as error:
        sys.exit(f"{error}")
