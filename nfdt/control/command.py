"""Command `nfdt control`: a program that builds a distributed algorithm from peers, simulated or emulated."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fdt.cli.options import TRAINING, CountType
from fdt.cli.program import OptionsAnywhere, option
from fdt.environment import quiet_import
from fdt.errors import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from fdt.network import Cluster
    from nfdt.control.emulated import EmulatedPeers
    from nfdt.control.simulated import Peers

    AnyPeers = Peers | EmulatedPeers

NAME = "nfdt"

EXAMPLES = """\b
Examples:
  nfdt control examples/control/ring.py --cluster examples/control/ring.yaml
  nfdt control my_algorithm.py --cluster cluster.yaml -- --steps 100
  nfdt control my_algorithm.py --cluster cluster.yaml --emulate
"""


@click.command("control", cls=OptionsAnywhere, epilog=EXAMPLES)
@option(
    "Cluster",
    "--cluster",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    required=True,
    help="The peers and their links (docs/cluster.md).",
)
@option("Cluster", "--emulate", is_flag=True, help="Use emulated hosts and links, in real time; needs root.")
@option(
    TRAINING, "--seed", type=CountType("a seed", 0), default=0, help="Seed of the peers' random times.  [default: 0]"
)
def control_command(script: str, script_args: list[str], cluster: Path, emulate: bool, seed: int) -> int:
    """Run a control program.

    script.py commands peers, which compute, send and wait. Peers are simulated, or emulated by --emulate.
    """
    from client_shim.script import run_script
    from fdt.network import check_always_there
    from fdt.network.reading import read_cluster
    from nfdt import control

    described = read_cluster(cluster).with_workers(None)
    check_always_there(described)
    started = time.perf_counter()
    with quiet_import(), _peers(described, cluster, emulate, seed, script) as peers:
        control.run_with(peers)
        code = run_script(script, script_args)
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        if code == 0:
            peers.wait()
            _print_summary(peers, "emulated" if emulate else "simulated", time.perf_counter() - started)
    return code


@contextlib.contextmanager
def _peers(cluster: "Cluster", file: Path, emulate: bool, seed: int, script: str) -> "Iterator[AnyPeers]":
    if not emulate:
        from nfdt.control.simulated import Peers

        yield Peers(cluster, seed)
        return
    from fdt.blobs import LocalBlobs
    from nfdt.control.emulated import EmulatedPeers

    root = Path(tempfile.gettempdir())  # emulated hosts have a /dev/shm of their own
    with contextlib.closing(LocalBlobs.create(root)) as store:  # it is removed also after SIGKILL
        modules = Path(script).resolve().parent
        with contextlib.closing(EmulatedPeers(cluster, file, store.directory, seed, modules)) as peers:
            yield peers


def _print_summary(peers: "AnyPeers", kind: str, wall_s: float) -> None:
    from fdt.report import duration, nbytes

    now_s = peers.now_s  # reading the links takes real time
    busiest = max(peers.links.items(), key=lambda link: link[1], default=("none", 0))
    facts = {
        "peers": f"{len(peers)}, {kind}",
        kind: f"{now_s:.6g} s",
        "moved": f"{nbytes(peers.bytes_sent)}; busiest: {busiest[0]}, {nbytes(busiest[1])}",
        "wall time": duration(wall_s),
    }
    for name, value in facts.items():
        click.echo(f"{NAME}: {name + ':':<12} {value}", err=True)
