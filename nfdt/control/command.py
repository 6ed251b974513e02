"""`nfdt control`: a program that builds a distributed algorithm out of simulated peers."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fdt.cli.options import TRAINING, Count
from fdt.cli.program import OptionsAnywhere, option
from fdt.cli.signals import ended_by_signals
from fdt.errors import EXIT_INTERRUPTED, UsageError
from fdt.quiet import quiet_import

if TYPE_CHECKING:
    from nfdt.control.simulated import Peers

NAME = "nfdt"

EXAMPLES = """\b
Examples:
  nfdt control examples/control/ring.py --cluster examples/control/ring.yaml
  nfdt control my_algorithm.py --cluster cluster.yaml -- --steps 100
"""


@click.command("control", cls=OptionsAnywhere, epilog=EXAMPLES)
@option(
    "The simulated cluster",
    "--cluster",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    required=True,
    help="The peers and their links (docs/cluster.md).",
)
@option(TRAINING, "--seed", type=Count("a seed", 0), default=0, help="Of the peers' random times.  [default: 0]")
def control_command(script: str, words: list[str], cluster: Path, seed: int) -> int:
    """Run a control program: script.py commands peers, which compute, send and wait on a simulated clock."""
    from client_shim.script import run_script
    from fdt.network.reading import read_cluster
    from nfdt import control
    from nfdt.control.simulated import Peers

    described = read_cluster(cluster).with_workers(None)
    for group in described.groups:
        if group.joins_s > 0 or group.leaves_s < float("inf"):
            raise UsageError(f"peers must be there all the time. Received: {group.name}, which joins or leaves")
    peers = Peers(described, seed)
    control.run_with(peers)
    started = time.perf_counter()
    with ended_by_signals(), quiet_import():
        code = run_script(script, words)
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        if code == 0:
            peers.wait()
            _tell(peers, time.perf_counter() - started)
    return code


def _tell(peers: "Peers", wall_s: float) -> None:
    from fdt.report import text

    busiest = max(peers.links.items(), key=lambda link: link[1], default=("none", 0))
    facts = {
        "peers": f"{len(peers)}, simulated",
        "simulated": f"{peers.now_s:.6g} s",
        "moved": f"{text.nbytes(peers.bytes_sent)}; busiest: {busiest[0]}, {text.nbytes(busiest[1])}",
        "wall time": text.duration(wall_s),
    }
    for name, value in facts.items():
        click.echo(f"{NAME}: {name + ':':<12} {value}", err=True)
