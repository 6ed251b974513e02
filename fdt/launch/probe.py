"""The probe of a host before a run. Its source text is sent to the host, so it imports only the standard library.

It prints facts as a line of JSON, reads the addresses to call (name -> [host, port]), and prints the results of these
calls. Meanwhile it listens, so that the other hosts can call it. It ends when its stdin ends.
"""

import contextlib
import importlib.metadata
import json
import os
import socket
import sys
import threading
import time
from typing import Any

CALL_S = 5.0


def version(*names: str) -> str:
    """Return the version of the first distribution that is installed."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def facts(port: int, free: list[int]) -> dict[str, Any]:
    """Return the facts that must be the same on all hosts, and the ports and addresses that the run needs."""
    # A job of Slurm may have inherited SSH_CONNECTION from the session that submitted it.
    caller = os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or os.environ.get("SSH_CONNECTION", "").split(" ")[0]
    memory = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    return {
        "versions": {
            "Python": ".".join(map(str, sys.version_info[:3])),
            "TensorFlow": version("tensorflow", "tensorflow-cpu", "tensorflow-gpu"),
            "Keras": version("keras"),
            "Horovod": version("horovod"),
            "hfdt-nfdt": version("hfdt-nfdt"),
        },
        "clock": time.time(),
        "shm": memory.f_bavail * memory.f_frsize if memory else 0,
        "caller": caller,
        "port": port,
        "free": free,
    }


def call(host: str, port: int) -> str:
    """Return the error of a connection to this address, or ""."""
    try:
        socket.create_connection((host, port), CALL_S).close()
        return ""
    except OSError as error:
        return str(error)


def answer(listening: socket.socket) -> None:
    """Accept connections and close them, for ever: the other hosts try whether they reach this one."""
    while True:
        listening.accept()[0].close()


def free_ports(count: int) -> list[int]:
    """Return ports that are free at the moment."""
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in taken:
            one.bind(("", 0))
        return [int(one.getsockname()[1]) for one in taken]


def main(ports: int) -> None:
    """Print this host's facts, then the errors of the connections that stdin asks for; end with stdin.

    Args:
        ports: The number of free ports to name.
    """
    listening = socket.socket()
    listening.bind(("", 0))
    listening.listen(64)
    threading.Thread(target=answer, args=(listening,), daemon=True).start()
    print(json.dumps(facts(listening.getsockname()[1], free_ports(ports))), flush=True)
    targets = json.loads(sys.stdin.readline())
    print(json.dumps({name: call(*where) for name, where in targets.items()}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
