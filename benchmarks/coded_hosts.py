"""Coded SGD's exchange over IP multicast between emulated hosts on shaped links: seconds per step by placement and r.

    python benchmarks/coded_hosts.py                             # 4 hosts, 100 Mbit/s; a minute, as root
    python benchmarks/coded_hosts.py --hosts 5 --mbit 50

`paper` at r 1 is SSGD by unicast (each gradient is sent to every other host separately); `groups` at r 1 is SSGD that
sums and then multicasts. Another column has the time of the same links in hfdt's simulator.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np

from fdt.errors import UserError
from fdt.launch import Task
from fdt.launch.emulated import EmulatedHost, EmulatedLauncher, EmulatedNetwork, address_of
from fdt.network import Cluster, NetworkLink, NodeGroup
from fdt.network.topology import topology_of
from fdt.service.member import ENGINE_VARIABLE
from hfdt import algorithms
from hfdt.collectives.simulated import SimulatedWorld, on_simulated

NAMES = {("paper", 1): "SSGD, unicast", ("groups", 1): "SSGD, multicast"}
DEADLINE_S = 900.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--mbit", type=float, default=100.0, help="of every link, each way")
    parser.add_argument("--words", type=int, default=240_000, help="weights")
    parser.add_argument("--compute-s", type=float, default=0.1, help="of the whole batch on one host")
    parser.add_argument("--steps", type=int, default=5)
    return parser.parse_args()


def cluster(args: argparse.Namespace, *, multicast: bool) -> Cluster:
    link = NetworkLink(args.mbit * 1e6 / 8)
    return Cluster((NodeGroup("host", args.hosts),), step_s=args.compute_s, link=link, multicast=multicast)


def emulated(args: argparse.Namespace) -> list[list[dict[str, Any]]]:
    """Return the measurements of each host, by rank."""
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "engine").touch()
        network = EmulatedNetwork(topology_of(cluster(args, multicast=True)))
        launcher = EmulatedLauncher(Path(scratch), network, lambda role, k: EmulatedHost(k, f"host-{k}", address_of(k)))
        words = [scratch, args.hosts, args.words, args.compute_s, args.steps]
        argv = [sys.executable, str(harness.SCRIPTS / "coded_host.py"), *map(str, words)]
        env = {**harness.QUIET, ENGINE_VARIABLE: f"unix:{scratch}/engine"}
        processes = launcher.start(Task("host", argv, args.hosts, env))
        try:
            files = [Path(scratch) / f"{k}.json" for k in range(args.hosts)]
            deadline = time.monotonic() + DEADLINE_S
            while not all(file.exists() and file.read_text() for file in files):
                if processes.exits() or time.monotonic() > deadline:
                    raise harness.Failed((Path(scratch) / "host-0.log").read_text()[-3000:])
                time.sleep(0.2)
            return [json.loads(file.read_text()) for file in files]
        finally:
            processes.stop(0.0)
            network.close()


def simulated_s(args: argparse.Namespace, placement: str, r: int) -> float:
    plan = algorithms.make(f"coded(placement={placement!r})").plan(args.hosts, r)
    world = SimulatedWorld(cluster(args, multicast=True))
    vector = np.zeros(args.words, np.float32)

    def rank(comm: Any) -> None:
        own = {b: vector for b, owners in enumerate(plan.owners) if comm.rank in owners}
        comm.work(len(own) / len(plan.owners))
        plan.total(own, comm)

    on_simulated(world, rank)
    return world.now_s


def main() -> int:
    args = arguments()
    by_case = list(zip(*emulated(args), strict=True))
    rows = []
    for hosts in by_case:
        case = (hosts[0]["placement"], hosts[0]["r"])
        steps = [max(times) for times in zip(*(host["steps_s"] for host in hosts), strict=True)]
        rows.append(
            [
                NAMES.get(case, f"coded, {case[0]}"),
                str(case[1]),
                f"{hosts[0]['sent'] / 1e6:.3f}"
                + ("" if hosts[0]["sent"] == hosts[0]["theory"] else " (theory differs)"),
                f"{max(host['again'] for host in hosts) / 1e3:.1f}",
                f"{statistics.median(steps):.3f} ({min(steps):.3f} .. {max(steps):.3f})",
                f"{simulated_s(args, *case):.3f}",
            ]
        )
    size = f"{args.words * 4 / 1e6:.2f} MB a gradient"
    title = f"{args.hosts} hosts, {args.mbit:g} Mbit/s, {size}, a batch {args.compute_s:g} s"
    heads = ["exchange", "r", "MB sent by each a step", "kB again", "seconds a step (all)", "simulated"]
    harness.table(title, heads, rows)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (harness.Failed, UserError) as error:
        sys.exit(f"{error}")
