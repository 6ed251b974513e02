"""E3, E4 and E6: time and bytes to an accuracy over the number of nodes (figures 8 to 11, 14 and 15)."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.papers import coded_runs
from benchmarks.papers.coded_runs import ASGD, CELLS, CODED, DIVIDED, MULTICAST, RING, SEEDED, UNICAST, WHOLE, Cell
from benchmarks.papers.experiment import Experiment, Results, Table

WIDTHS = {MULTICAST: 5.0, "coded, best r": 3.0}  # equal curves are drawn above these: all are seen
AVERAGES = {"dnn": (53.97, 26.89), "cnn": (39.11, 26.37)}  # % less time than SSGD, than ASGD
NOTHING = "No training has ended yet."
Value = Callable[[Results, Cell, int], float | None]
FIXED = ((MULTICAST, 1), (UNICAST, 1), (CODED, 2), (CODED, 3))
OURS = (
    "Rates, nets and networks are ours; a batch's gradient takes 4 ms (DNN) or 13 ms (CNN) on a node. "
    f'"{WHOLE}" is the source\'s weak scaling: n nodes have a task of n classes. "{DIVIDED}" has ten classes. '
)


def series(method: str, r: int, value: Callable[..., float | None]) -> Value:
    return lambda results, cell, n: value(results, cell, n, method, r)


def label(method: str, r: int) -> str:
    return f"coded, r = {r}" if method == CODED else method


def most(value: Callable[..., float | None]) -> Value:
    return lambda results, cell, n: value(results, cell, n, CODED, n - 1)


TIMES = {label(*m): series(*m, coded_runs.seconds_to_mark) for m in FIXED}
TIMES["coded, r = n - 1"] = most(coded_runs.seconds_to_mark)
BYTES = {label(*m): series(*m, coded_runs.bytes_to_mark) for m in FIXED}
BYTES["coded, r = n - 1"] = most(coded_runs.bytes_to_mark)


def at_best(results: Results, cell: Cell, n: int, *, paper: bool = True) -> float | None:
    found = coded_runs.fastest(results, cell, n, paper=paper)
    return found and found[1]


ASYNCHRONOUS = "asgd (mean of the seeds)"
BEST: dict[str, Value] = {
    ASYNCHRONOUS: series(ASGD, 1, coded_runs.seconds_to_mark),
    MULTICAST: TIMES[MULTICAST],
    "coded, best r": at_best,
    "coded, best r and placement": partial(at_best, paper=False),
    RING: series(RING, 1, coded_runs.seconds_to_mark),
}


def missed(results: Results, cell: Cell, n: int, name: str) -> bool:
    return coded_runs.missed(results, cell, n, ASGD if name == ASYNCHRONOUS else MULTICAST)


def known(results: Results, cell: Cell, value: Value) -> list[tuple[int, float]]:
    found = [(n, value(results, cell, n)) for n in cell.nodes]
    return [(n, seconds) for n, seconds in found if seconds is not None]


def trained(results: Results) -> list[Cell]:
    return [cell for cell in CELLS if known(results, cell, TIMES[MULTICAST])]


def compared(results: Results) -> list[Cell]:
    """Return the cells whose savings are stated: those over nodes, and the parts of the CNN's that have ten seeds."""
    return [*trained(results), *(cell for cell in SEEDED if known(results, cell, TIMES[MULTICAST]))]


def over_nodes(results: Results) -> list[Cell]:
    """Return the cells that are compared over more than one number of nodes."""
    return [cell for cell in compared(results) if len(known(results, cell, TIMES[MULTICAST])) > 2]


def drawn(results: Results, figure: Any, shown: dict[str, Value], unit: str, cells: Sequence[Cell]) -> None:
    from matplotlib.ticker import LogLocator

    if not cells:
        return
    rows = -(-len(cells) // 5)  # five titles fit beside each other
    figure.set_size_inches(9, 4 if rows == 1 else 3 * rows)
    axes = figure.subplots(rows, -(-len(cells) // rows), squeeze=False)
    for axis, cell in zip(axes.flat, cells, strict=True):
        for color, (name, value) in enumerate(shown.items()):
            points, width = known(results, cell, value), WIDTHS.get(name, 1.2)
            look = {"linewidth": width, "markersize": width + 2, "label": name}
            axis.semilogy([n for n, _ in points], [v for _, v in points], f"C{color}o-", **look)
        axis.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:g}", minor_formatter="")
        title = f"{cell.task.upper()} to {cell.mark:.0%}{cell.part}\n{cell.network}\n{cell.load}"
        axis.set(xlabel="nodes", xticks=(2, 4, 6, 8, 10))
        axis.set_title(title, fontsize=7)
    for axis in axes[:, 0]:
        axis.set_ylabel(unit)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=7)


def table(results: Results, shown: dict[str, Value], unit: str, form: str, cells: Sequence[Cell]) -> Table:
    rows = []
    for cell in cells:
        for n in cell.nodes:
            values = [value(results, cell, n) for value in shown.values()]
            if any(values):
                none = ["not reached" if missed(results, cell, n, name) else "-" for name in shown]
                cells = [other if v is None else f"{v:{form}}" for v, other in zip(values, none, strict=True)]
                rows.append([str(cell), str(n), *cells])
    return Table(unit, ["task", "nodes", *shown], rows)


# -- E3, E4 ------------------------------------------------------------------------------------------------------------
def less(results: Results, shown: dict[str, Value], cell: Cell) -> str:
    """Return at which nodes r = 2 and r = 3 need less than SSGD by multicast, and by unicast."""
    said = []
    for peer in (MULTICAST, UNICAST):
        against = dict(known(results, cell, shown[peer]))
        for r in ("2", "3", "n - 1"):
            ahead = [str(n) for n, v in known(results, cell, shown[f"coded, r = {r}"]) if v < against[n]]
            said.append(f"r = {r} than {peer} at {', '.join(ahead) or 'no number of'} nodes")
    return f"{cell}: less with {'; '.join(said)}"


def fixed(results: Results, shown: dict[str, Value]) -> str:
    return ". ".join(less(results, shown, cell) for cell in trained(results)) + "." if trained(results) else NOTHING


# -- E6 ----------------------------------------------------------------------------------------------------------------
def alone(results: Results, cell: Cell, n: int) -> float | None:
    """Return one node's seconds on the same task, where the number of nodes does not change the task."""
    taken = coded_runs.steps_to_mark(results, cell, n) if cell.load == DIVIDED else None
    told = coded_runs.exchange(results, cell, n, MULTICAST, 1)
    return taken * told["calculation_s"] if taken and told else None


PEERS: tuple[Value, ...] = (BEST[MULTICAST], BEST[ASYNCHRONOUS], alone)


def saved(results: Results, cell: Cell, peer: Value, *, paper: bool = True) -> tuple[float, list[int]] | None:
    """Return the mean of the % of a peer's time that coded SGD saves, and the nodes at which both reached the mark."""
    coded, other = dict(known(results, cell, partial(at_best, paper=paper))), dict(known(results, cell, peer))
    nodes = [n for n in coded if n in other]
    shares = [100 * (1 - coded[n] / other[n]) for n in nodes]
    return (sum(shares) / len(shares), nodes) if shares else None


def percent(found: tuple[float, list[int]] | None, cell: Cell, peer: str = "") -> str:
    """Return the saving in words, with the nodes of the mean where they are not all of the cell's."""
    if found is None:
        return "-"
    share, nodes = found
    said = f"{abs(share):.1f} % {'less' if share >= 0 else 'more'}{peer}"
    return said if tuple(nodes) == cell.nodes else f"{said} at {', '.join(map(str, nodes))} nodes"


def best_measured(results: Results) -> str:
    said = []
    for cell in compared(results):
        peers = zip(PEERS, (" than SSGD", " than ASGD"), strict=False)
        shares = [percent(saved(results, cell, peer, paper=False), cell, name) for peer, name in peers]
        said.append(f"{cell}: {', '.join(shares)}")
    ahead = "".join(f" {told}." for cell in trained(results) if (told := faster_than_one(results, cell)))
    return f"Time of coded SGD at its best placement. {'; '.join(said)}.{ahead}" if said else NOTHING


def faster_than_one(results: Results, cell: Cell) -> str:
    """Return which methods are faster than one node alone at which nodes; "" where no node is alone on the task."""
    single = dict(known(results, cell, alone))
    if not single:
        return ""
    found = []
    for name, value in BEST.items():
        nodes = [str(n) for n, seconds in known(results, cell, value) if seconds < single.get(n, 0)]
        found += [f"{name} at {', '.join(nodes)} nodes"] if nodes else []
    said = "; ".join(found) or "no method at any number of nodes"
    return f"{cell}: faster than one node alone ({min(single.values()):.3g} s): {said}"


def best_tables(results: Results) -> Iterator[Table]:
    yield table(results, BEST, "Simulated seconds to the mark", ".3g", compared(results))
    rows = []
    for cell in compared(results):
        theirs = (*(f" (source {share} %)" for share in AVERAGES[cell.task]), "")
        for name, paper in (("the source's", True), ("best", False)):
            shares = [percent(saved(results, cell, peer, paper=paper), cell) for peer in PEERS]
            rows.append([str(cell), name, *(share + their for share, their in zip(shares, theirs, strict=True))])
    heads = ["task", "placement", "than SSGD multicast", "than ASGD", "than one node alone"]
    yield Table("Coded SGD's time, means over the nodes at which both reached the mark", heads, rows)
    rows = [[str(cell), *notes(results, cell)] for cell in compared(results)]
    yield Table("By nodes", ["task", "best r of the source's placement", "ASGD's seeds", "the others' seeds"], rows)


def notes(results: Results, cell: Cell) -> list[str]:
    best = {n: coded_runs.fastest(results, cell, n) for n in cell.nodes}
    asgd = {n: len(coded_runs.asynchronous(results, cell, n)) for n in cell.nodes}
    sgd = {n: sum(bool(coded_runs.one(results, cell.training("sgd", n, s))) for s in range(cell.seeds)) for n in asgd}
    redundancies = {n: found[0] for n, found in best.items() if found}
    return [", ".join(f"{n}: {value}" for n, value in each.items()) for each in (redundancies, asgd, sgd)]


EXPERIMENTS = [
    Experiment(
        "E3",
        "time to the mark over the nodes at fixed redundancy",
        "CSSGD at r = 2 and r = 3 takes less time than SSGD multicast and SSGD unicast; the gain is smaller for the "
        "CNN.",
        f"{OURS}A block's gradient is as large as a batch's, so at fixed r the source's placement sends C(n-1, r) G "
        "/ r a node, which grows with n faster than SSGD's: fixed r = 2 or 3 is ahead on few nodes only.",
        coded_runs.runs,
        lambda results: fixed(results, TIMES),
        lambda results, figure: drawn(results, figure, TIMES, "simulated seconds to the mark", trained(results)),
        lambda results: [table(results, TIMES, "Simulated seconds to the mark", ".3g", trained(results))],
        "E6",
    ),
    Experiment(
        "E4",
        "total bytes to the mark over the nodes",
        "CSSGD sends fewer bytes than SSGD multicast; that matters less for the CNN.",
        f"{OURS}Bytes are those of all nodes' packets, without headers, times the steps to the mark. SSGD multicast "
        "sends G a node, coded SGD C(n-1, r) G / r: less where r is close to n only. The source's int32 words have as "
        "many bytes as floats; its values are 4.7e-9 apart, so the steps to the mark are the same.",
        coded_runs.runs,
        lambda results: fixed(results, BYTES),
        lambda results, figure: drawn(results, figure, BYTES, "bytes of all nodes to the mark", trained(results)),
        lambda results: [table(results, BYTES, "Bytes of all nodes to the mark", ".3g", trained(results))],
        "E6",
    ),
    Experiment(
        "E6",
        "time to the mark over the nodes, each method at its best",
        "On average over the nodes CSSGD takes 53.97 % less time than SSGD and 26.89 % less than ASGD (DNN), 39.11 % "
        "and 26.37 % (CNN).",
        f"{OURS}Times are means over ten seeds for the DNN (the source has ten for ASGD) and of one for the CNN, "
        "whose trainings take up to twenty minutes each. The CNN with a batch per node has ten of ASGD to 60 %, and "
        "the synchronous ones beside them three from 6 nodes on; its other two have ten at some nodes. On the divided "
        "batch ASGD has the task's rate or 0.4 of it, whichever reached the mark sooner on the test rows (from 8 nodes "
        "0.4 alone): that favors ASGD. With a batch per node it has the task's rate; to 60 %, from 8 nodes on, 0.4 of "
        "it, because the whole rate did not reach 60 % on ten nodes. By the source's own T = r T_calc + T_comm / r no "
        "saving of SSGD's time is above 46 % where r = 3 is best, nor above 29 % where r = 2 is: its averages and its "
        "best r do not fit its model (drawn in E5). Where every method is slower than one node alone, the savings are "
        "of what it costs to spread a batch at all. A ring all-reduce, which the source leaves out, is shown.",
        coded_runs.runs,
        best_measured,
        lambda results, figure: drawn(results, figure, BEST, "simulated seconds to the mark", over_nodes(results)),
        best_tables,
    ),
]
