"""Commands on other hosts: by ssh, by srun inside a Slurm allocation, or directly on this host.

Secrets are sent to a command's stdin, because its arguments are public.
"""

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fdt.errors import UserError
from fdt.launch.hosts import is_here

CONNECT_S = 10


def argv_on(host: str, argv: Sequence[str]) -> list[str]:
    """Return the local command that runs `argv` on `host`. It never asks for a password."""
    if is_here(host):
        return list(argv)
    if _by_srun(host):
        return ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}", *argv]
    # By IPv4, as all other connections: the hosts call this machine at the address that this ssh comes from.
    options = ["-T", "-o", "AddressFamily=inet", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"]
    return ["ssh", *options, host, shlex.join(argv)]


def _by_srun(host: str) -> bool:
    return "SLURM_JOB_ID" in os.environ and not is_here(host)


def start(host: str, argv: Sequence[str]) -> "subprocess.Popen[str]":
    """Start `argv` on `host`, its three streams as pipes. Raises UserError where ssh or srun is missing."""
    command = argv_on(host, argv)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise UserError(f"{command[0]}, which starts processes on other hosts, is not on PATH") from None


def everywhere(said: dict[str, str], argv: Sequence[str], timeout_s: float) -> dict[str, str]:
    """Run `argv` on each host of `said` in parallel.

    Args:
        said: For each host, the text for the command's stdin.
        argv: The command.
        timeout_s: How long it may take, in seconds.

    Returns:
        For each host where it failed, the error.
    """
    with ThreadPoolExecutor(max(1, len(said))) as pool:
        ends = pool.map(lambda host: _complain(host, argv, said[host], timeout_s), said)
        return {host: end for host, end in zip(said, ends, strict=True) if end}


def _complain(host: str, argv: Sequence[str], text: str, timeout_s: float) -> str:
    sealed = bool(text) and _by_srun(host)
    running = start(host, [sys.executable, "-m", "fdt.launch.sealed", *argv] if sealed else argv)
    try:
        if sealed:
            text = _sealed(running, text, timeout_s)
        _, errors = running.communicate(text, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        running.kill()
        running.communicate()
        return f"no answer within {timeout_s:g} s"
    return last_line(errors) or f"exit code {running.returncode}" if running.returncode else ""


def _sealed(running: "subprocess.Popen[str]", text: str, timeout_s: float) -> str:
    """Encrypt `text` for the process; "" where it has sent no key (its stderr then has the reason)."""
    from fdt.launch.sealed import seal

    assert running.stdout is not None
    patience = threading.Timer(timeout_s, running.kill)
    patience.start()
    try:
        return seal(running.stdout.readline().strip(), text) + "\n"
    except ValueError:
        return ""
    finally:
        patience.cancel()


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
