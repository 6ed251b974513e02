"""Control programs, which build a distributed algorithm from peers: `nfdt control algorithm.py --cluster cluster.yaml`.

    from nfdt.control import peers

    for peer in peers:
        peer.compute("g", gradient, "w")        peer computes g = gradient(w), in its own time
        peer.send(peers[0], "g")                g is sent over the described links
    peers[0].wait("g")                          the peer continues when a g has arrived
    print(peers[0].read("w"), peers.now_s)

Peers hold no algorithm and are all alike, whatever layer their speed and links represent. Each executes its commands in
order. Commands and acknowledgements use a channel of their own, which takes no time; tensors use links only.
"""

from typing import TYPE_CHECKING, Any

from fdt.errors import UserError

if TYPE_CHECKING:  # imports NumPy and simpy, which `nfdt --help` does not need
    from nfdt.control.simulated import Peers

__all__ = ["peers"]

peers: "Peers"
_running: Any = None  # Peers, or EmulatedPeers (emulated.py)


def run_with(made: Any) -> None:
    """Set the object that `peers` returns."""
    global _running
    _running = made


def __getattr__(name: str) -> Any:
    if name != "peers":
        raise AttributeError(name)
    if _running is None:
        raise UserError("peers exist only in a program that `nfdt control` runs")
    return _running
