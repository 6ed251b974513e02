"""Words for a member that was lost."""

from pathlib import Path

from fdt.quiet import is_chatter
from fdt.rpc.session_pb2 import Failed

TAIL_LINES = 15


def explain_loss(role: str, rank: int | None, cause: str, run_dir: Path) -> Failed:
    """One line that names the member and the cause; `detail` is the end of its log."""
    name = f"a {role}" if rank is None else f"{role} {rank}"
    log = run_dir / ("mpirun.log" if rank is None else f"{role}-{rank}.log")
    message = f"{name} was lost. Received: {cause}; its log is {log}"
    return Failed(message=message, detail=tail(log))


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, or "" where there is none."""
    try:
        said = [line for line in log.read_text(errors="replace").splitlines() if not is_chatter(line)]
        return "\n".join(said[-lines:])
    except OSError:
        return ""
