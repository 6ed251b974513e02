"""What a host says of itself before a run. Its text is sent there and run: it knows nothing but Python's own library.

A line of JSON each way, three times: facts out; whom to call in (name -> [host, port]); how that went out. It listens
meanwhile, so that the others can call it. It ends when its stdin does.
"""

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
    """Of the first distribution that is installed."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def facts(port: int, free: list[int]) -> dict[str, Any]:
    """What must be the same everywhere, and what the run has to know."""
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
        "caller": os.environ.get("SSH_CONNECTION", "").split(" ")[0],
        "port": port,
        "free": free,
    }


def call(host: str, port: int) -> str:
    """What went wrong, or ""."""
    try:
        socket.create_connection((host, port), CALL_S).close()
        return ""
    except OSError as error:
        return str(error)


def answer(listening: socket.socket) -> None:
    while True:
        listening.accept()[0].close()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at the moment."""
    taken = [socket.socket() for _ in range(count)]
    for one in taken:
        one.bind(("", 0))
    ports = [int(one.getsockname()[1]) for one in taken]
    for one in taken:
        one.close()
    return ports


def main(ports: int) -> None:
    listening = socket.socket()
    listening.bind(("", 0))
    listening.listen(64)
    threading.Thread(target=answer, args=(listening,), daemon=True).start()
    print(json.dumps(facts(listening.getsockname()[1], free_ports(ports))), flush=True)
    whom = json.loads(sys.stdin.readline())
    print(json.dumps({name: call(*where) for name, where in whom.items()}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
