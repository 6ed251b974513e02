"""Draws the claims about speed: the newest ratio of each benchmark beside its target, from results/claims.jsonl."""

import json
import math
from pathlib import Path
from statistics import median
from typing import Any

from svg import Picture

CLAIMS = Path(__file__).parents[2] / "benchmarks" / "results" / "claims.jsonl"
FIGURES = {  # a group of rows, the script, a part of the claim that all its rows have
    "HFDT over hand-written Horovod, two hosts at 1 Gbit/s, samples/s": ("network.py", "1000 Mbit/s, hfdt"),
    "the same at 100 Mbit/s, with --compress powersgd(rank=4)": ("network.py", "100 Mbit/s, hfdt"),
    "a training loop of the script's own over Horovod by hand": ("tape_loop.py", ""),
    "--shard-optimizer over the option off, MLP of 10 M weights, Adam": ("shard_optimizer.py", ""),
    "input divided over all rows mapped on every rank": ("input.py", ""),
    "the whole command over python, wall time, -np 1": ("overhead.py", ""),
    "first epoch, seconds more than hand-written Horovod": ("network.py", "first epoch"),
    "NFDT's transport: GB/s, and of a memory copy": ("transport.py", ""),
    "a step on simulated hosts over max(computation, transfer), the largest": ("scaling.py", ""),
}
WIDEST = 20.0  # times the target; what is beyond is drawn there
ROW, LEFT, RIGHT = 22, 270, 640


def claims() -> Picture:
    """Draw a dot for each claim: its median, and a line from its smallest to its largest turn."""
    newest: dict[tuple[str, str], Any] = {}
    for line in CLAIMS.read_text().splitlines():
        entry = json.loads(line)
        newest[entry["script"], entry["claim"]] = entry
    groups = {
        title: [entry for (made, claim), entry in newest.items() if made == script and part in claim]
        for title, (script, part) in FIGURES.items()
    }
    rows = sum(len(entries) + 1.4 for entries in groups.values())
    p = Picture(860, 46 + round(rows * ROW), "Claims about speed: what was measured, beside its target")
    middle = place(1.0)
    p.text(middle, 18, "target", "small")
    p.text(RIGHT, 18, "better →", "small", "end")
    y = 44.0
    for title, entries in groups.items():
        p.text(16, y, title, "bold", "start")
        end = y + (len(entries) + 0.5) * ROW
        p.shapes.append(f'<line x1="{middle:g}" y1="{y + 8:g}" x2="{middle:g}" y2="{end:g}" class="grid"/>')
        for entry in entries:
            y += ROW
            row(p, y, entry)
        y += 1.4 * ROW
    return p


def row(p: Picture, y: float, entry: Any) -> None:
    """Draw one claim with its name and its figures."""
    least, most, ratios = entry["at_least"], entry["at_most"], entry["ratios"]
    target = least or most
    met = median(ratios) >= least if least else median(ratios) <= most
    at = sorted(place(r / least if least else most / r if r > 0 else WIDEST) for r in ratios)
    kind = "c2" if met else "c1"
    p.text(LEFT - 12, y + 4, name(entry), "small", "end")
    p.shapes.append(f'<line x1="{at[0]:g}" y1="{y:g}" x2="{at[-1]:g}" y2="{y:g}" class="{kind}" stroke-width="2"/>')
    p.shapes.append(f'<circle cx="{median(at):g}" cy="{y:g}" r="4.5" class="{kind}"/>')
    bound = f"{'at least' if least else 'at most'} {target:g}"
    p.text(RIGHT + 14, y + 4, f"{median(ratios):.2f}, target {bound}{'' if met else ': missed'}", "small", "start")


def name(entry: Any) -> str:
    """Return what a row is called within its group."""
    claim = entry["claim"].partition(" at 1")[0].partition(" over ")[0].removesuffix(", divided")
    return "" if entry["script"] in ("tape_loop.py", "scaling.py", "shard_optimizer.py") else claim


def place(of_target: float) -> float:
    """Return the x of a multiple of the target, on a logarithmic axis."""
    low, high = math.log(1 / 2.2), math.log(WIDEST)
    value = min(high, max(low, math.log(of_target)))
    return LEFT + (value - low) / (high - low) * (RIGHT - LEFT)
