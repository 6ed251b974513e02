"""Network namespaces of Linux: commands and processes inside them, and the bytes that crossed their interfaces."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from fdt.errors import UserError
from fdt.launch import stat_of

READY_S = 20.0


def check_privilege() -> None:
    """Raise UserError where hosts cannot be emulated: a tool or a privilege is missing."""
    missing = [tool for tool in ("unshare", "nsenter", "ip", "tc", "bridge") if shutil.which(tool) is None]
    if missing:
        raise UserError(f"--emulate needs {', '.join(missing)} on PATH: install iproute2 and util-linux")
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--ipc", "--mount", "ip", "link", "add", "fdt0", "type", "veth"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        errors = " ".join(tried.stderr.split())
        raise UserError(f"--emulate needs root, to make namespaces and veth pairs: {errors}")


def crossed(network: str) -> dict[str, int]:
    """Return the bytes sent and received over eth0 of the network namespace at that path, as the kernel counts them."""
    counters = _eth0(network)["stats64"]
    return {"sent": int(counters["tx"]["bytes"]), "received": int(counters["rx"]["bytes"])}


def mac_of(network: str) -> str:
    """Return the hardware address of eth0 of the network namespace at that path."""
    return str(_eth0(network)["address"])


def _eth0(network: str) -> Any:
    return json.loads(inside(network, ["ip", "-s", "-j", "link", "show", "eth0"]))[0]


def await_namespace(popen: "subprocess.Popen[bytes]") -> None:
    """Wait until the process has a network namespace of its own: its commands must never run in this machine's."""
    ours, deadline = os.stat("/proc/self/ns/net").st_ino, time.monotonic() + READY_S
    while time.monotonic() < deadline and popen.poll() is None:
        if os.stat(f"/proc/{popen.pid}/ns/net").st_ino != ours:
            return
        time.sleep(0.005)
    raise UserError(f"an emulated host did not start within {READY_S:g} s: {popen.args!r}")


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by a signal or a debugger."""
    fields = stat_of(pid)
    return bool(fields) and fields[0] in "Tt"


def ip(network: str, *commands: str) -> None:
    """Run commands of ip in the network namespace at that path. Raises UserError."""
    inside(network, ["ip", "-batch", "-"], "\n".join(commands) + "\n")


def network_of(pid: int) -> str:
    """Return the path of the network namespace of a process."""
    return f"/proc/{pid}/ns/net"


def inside(network: str, argv: Sequence[str], given: str = "") -> str:
    """Return the output of `argv`, run in the network namespace at that path. Raises UserError when it fails."""
    done = subprocess.run(
        ["nsenter", f"--net={network}", *argv], input=given, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UserError(f"`{' '.join(argv)}` failed on an emulated host: {' '.join(done.stderr.split())}")
    return done.stdout
