"""Commands on other hosts: by ssh, by srun inside a Slurm allocation; on this one, as they are.

Everything that is said to a command goes to its stdin: the words of a command are public.
"""

import os
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fdt.errors import UserError
from fdt.launch.hosts import is_here

CONNECT_S = 10


def argv_on(host: str, argv: Sequence[str]) -> list[str]:
    """What to run here for `argv` to run on `host`. Asks nobody for a password."""
    if is_here(host):
        return list(argv)
    if "SLURM_JOB_ID" in os.environ:
        return ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}", *argv]
    options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"]
    return ["ssh", *options, host, shlex.join(argv)]


def start(host: str, argv: Sequence[str]) -> "subprocess.Popen[str]":
    """`argv` on `host`, its three streams as pipes. Raises UserError where there is no ssh."""
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
        raise UserError(f"other hosts are reached by {command[0]}. Received: no {command[0]} on PATH") from None


def everywhere(said: dict[str, str], argv: Sequence[str], timeout_s: float) -> dict[str, str]:
    """Run `argv` on each host of `said`, which names what its stdin is given; what went wrong, by host."""
    with ThreadPoolExecutor(max(1, len(said))) as pool:
        ends = pool.map(lambda host: _complain(host, argv, said[host], timeout_s), said)
        return {host: end for host, end in zip(said, ends, strict=True) if end}


def _complain(host: str, argv: Sequence[str], text: str, timeout_s: float) -> str:
    running = start(host, argv)
    try:
        _, errors = running.communicate(text, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        running.kill()
        running.communicate()
        return f"no answer within {timeout_s:g} s"
    return last_line(errors) or f"exit code {running.returncode}" if running.returncode else ""


def last_line(text: str) -> str:
    """The last thing that was said."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
