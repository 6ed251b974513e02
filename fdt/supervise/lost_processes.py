"""Error messages for a lost worker or server process: its cause of death, and the end of its log."""

import re
from pathlib import Path

from fdt.launch.mpirun import log_name
from fdt.quiet import is_chatter
from fdt.rpc.session_pb2 import Failed

TAIL_LINES = 15
LOOKED_AT = 500  # lines from a log's end that are searched for the last traceback
_TAG = re.compile(r"\[\d+,(\d+)\]<std(?:out|err)>: ?")


def explain_loss(role: str, rank: int | None, cause: str, run_dir: Path) -> Failed:
    """Return a one-line message that names the process and the cause; `detail` is the end of its log."""
    name = f"a {role}" if rank is None else f"{role} {rank}"
    log = run_dir / f"{role}-{rank}.log"
    if rank is None or not log.exists():  # the process ran on another host, and mpirun collected its output
        log = run_dir / log_name(role)
    message = f"{name} was lost. Received: {died_of(cause, log, rank)}; its log is {log}"
    return Failed(message=message, detail=tail(log, rank))


def died_of(cause: str, log: Path, rank: int | None = None) -> str:
    """Return `cause`, and the exception at the log's end if it ended the process: "exit code 1 (ValueError: no)"."""
    raised, within = "", False
    for line in tail(log, rank, lines=LOOKED_AT).splitlines():
        if line.startswith("Traceback (most recent call last)"):
            within = True
        elif within and line.strip() and not line.startswith(" "):
            raised, within = line.strip(), False
    told = raised and not cause.startswith("signal") and raised in tail(log, rank)
    return f"{cause} ({raised})" if told else cause


def tail(log: Path, rank: int | None = None, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log, or "" where there is none; of lines that mpirun tagged, only `rank`'s."""
    try:
        said = [_untagged(line, rank) for line in log.read_text(errors="replace").splitlines()]
        return "\n".join([line for line in said if line is not None and not is_chatter(line)][-lines:])
    except OSError:
        return ""


def _untagged(line: str, rank: int | None) -> str | None:
    """Return the line without mpirun's tag; None when it is another rank's."""
    tag = _TAG.match(line)
    if tag is None:
        return line
    return line[tag.end() :] if rank is None or int(tag[1]) == rank else None
