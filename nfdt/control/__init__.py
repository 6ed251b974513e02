"""Programs that build a distributed algorithm out of peers: `nfdt control my_algorithm.py --cluster cluster.yaml`.

    from nfdt.control import peers

    for peer in peers:
        peer.compute("g", gradient, "w")        peer computes g = gradient(w), in its own time
        peer.send(peers[0], "g")                g travels over the described links
    peers[0].wait("g")                          the peer goes on when a g has come
    print(peers[0].read("w"), peers.now_s)

Peers hold no algorithm and are all alike, whatever layer their speed and links imitate: each carries out its commands
in their order. Commands and acknowledgements go on a channel of their own, which takes no time; tensors travel over
links only.
"""

from typing import TYPE_CHECKING, Any

from fdt.errors import UserError

if TYPE_CHECKING:  # NumPy and simpy: `nfdt --help` needs neither
    from nfdt.control.simulated import Peers

__all__ = ["peers"]

peers: "Peers"
_running: Any = None  # Peers, or EmulatedPeers (emulated.py)


def run_with(made: Any) -> None:
    """What `peers` is from now on."""
    global _running
    _running = made


def __getattr__(name: str) -> Any:
    if name != "peers":
        raise AttributeError(name)
    if _running is None:
        raise UserError("peers must be asked for by a program under `nfdt control`. Received: another process")
    return _running
