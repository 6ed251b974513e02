"""The results of benchmarks/chaos.py, what each must be, and their table."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness import console
from rich.table import Table

ERROR_S, GONE_S = 10.0, 30.0  # from the kill to: the error, nothing left
CUT_S = 30.0  # from another fault, such as the loss of a host's link, to the error


@dataclass
class Result:
    """`seconds` from the kill (or the beginning of training, if that is later) to the command's end, or for a killed
    client to the end of the last process; `hosts`: to the end of the last process of each host that was not cut off.
    """

    engine: str
    number: int
    flags: Sequence[str]
    victim: str
    recovers: bool
    phase: str
    said: str = "nobody to kill"
    seconds: float = 0.0
    load: float = 0.0  # of the machine, when it ended
    left: list[str] = field(default_factory=list)
    fault: str = "kill"
    hosts: dict[str, float] = field(default_factory=dict)

    @property
    def slowest(self) -> float:
        return max(self.seconds, *self.hosts.values(), 0.0)

    @property
    def good(self) -> bool:
        if self.left:
            return False
        if self.victim == "client" and not self.recovers:
            return self.said in ("killed", "right") and self.seconds < GONE_S
        within_s = ERROR_S if self.fault == "kill" else CUT_S
        return self.said == "right" or (not self.recovers and self.said == "error" and self.slowest < within_s)


def report(results: Sequence[Result]) -> None:
    """Print a row for each fault, moment, victim and command, the runs that are not good, and the counts."""
    table = Table("fault", "at", "of", "command", "runs", "right", "error", "good", "slowest s", "left behind")
    rows: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        command = " ".join([result.engine, *result.flags])
        phase = "any" if result.fault == "kill" else result.phase
        rows.setdefault((result.fault, phase, result.victim, command), []).append(result)
    for row, mine in rows.items():
        counts = [sum(result.said == said for result in mine) for said in ("right", "error")]
        left = sorted({what.split()[0] for result in mine for what in result.left})
        table.add_row(
            *row,
            str(len(mine)),
            *map(str, counts),
            str(sum(result.good for result in mine)),
            f"{max(result.slowest for result in mine):.1f}",
            ", ".join(left) or "nothing",
        )
    console.print(table)
    for result in results:
        if not result.good:
            console.print(f"NOT GOOD: {result}")
    for engine in sorted({result.engine for result in results}):
        mine = [result for result in results if result.engine == engine]
        console.print(f"{engine}: {sum(r.good for r in mine)} of {len(mine)} as promised; load {_spread(mine)}")


def _spread(results: Sequence[Result]) -> str:
    loads = sorted(result.load for result in results)
    return f"{loads[0]:.0f} to {loads[-1]:.0f}, median {loads[len(loads) // 2]:.0f}"
