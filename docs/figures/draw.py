"""Draws every picture of the documentation. `make docs` runs it before the build: python docs/figures/draw.py"""

import json
import math
from collections import defaultdict
from pathlib import Path
from statistics import mean

from claims import claims
from paths import gradient_paths, push_pull
from svg import Picture

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"


def layers() -> Picture:
    """The packages; imports point down."""
    p = Picture(720, 408, "Packages in layers; imports point down")
    p.box(20, 20, 330, 62, ["hfdt", "synchronous engine: all-reduce"], "worker")
    p.box(370, 20, 330, 62, ["nfdt", "asynchronous engine: parameter server"], "server")
    p.box(20, 98, 680, 62, ["frontends", "the report, the live page, configuration, the Python API"], "plain")
    p.box(20, 176, 680, 62, ["replica", "placements of tensors, for scripts with their own loop"], "plain")
    p.box(20, 254, 680, 62, ["client_shim", "runs the script, intercepts fit, sends the job"], "client")
    p.box(20, 332, 680, 62, ["fdt", "job, data, Keras, RPC, launchers, records, command line"], "engine")
    return p


def captures() -> Picture:
    """The two captures."""
    p = Picture(860, 380, "The two captures: extract sends the job to workers, replicate runs the script on every rank")
    p.frame(10, 10, 410, 360, "extract: the script calls fit")
    p.box(40, 50, 160, 80, ["client", "`train.py`", "runs once"], "client")
    p.box(235, 50, 160, 80, ["engine", "one job at a time"], "engine")
    p.arrow([(200, 75), (235, 75)])
    p.arrow([(235, 108), (200, 108)])
    p.text(217, 66, "job", "small")
    p.text(140, 152, "weights, metrics", "small")
    for i, name in enumerate(("worker 0", "worker 1", "worker 2")):
        p.box(32 + i * 130, 240, 110, 62, [name, "trains"], "worker")
        p.arrow([(315 - (2 - i) * 18, 130), (87 + i * 130, 240)], both=True)
    p.text(215, 335, "Model, loss, optimizer and data travel; the script does not.", "small")
    p.frame(440, 10, 410, 360, "replicate: the script has its own loop")
    p.box(462, 50, 170, 100, ["rank 0", "`train.py`", "your process:", "prints, files"], "client")
    p.box(
        660, 50, 170, 100, ["rank 1, 2, ...", "`train.py`", "prints to a log,", "files to a scratch folder"], "worker"
    )
    p.box(500, 225, 290, 62, ["exchange at each step", "sums, or pushes and pulls"], "engine")
    p.arrow([(547, 150), (575, 225)], both=True)
    p.arrow([(745, 150), (717, 225)], both=True)
    p.text(645, 335, "Every rank runs the script; each computes its share.", "small")
    return p


def fit() -> Picture:
    """One fit as messages between client, engine and workers."""
    p = Picture(820, 470, "Messages of one fit between client, engine and workers")
    lanes = {"client": 120, "engine": 410, "workers": 690}
    p.box(30, 10, 180, 44, ["client: Keras's fit"], "client")
    p.box(330, 10, 160, 44, ["engine"], "engine")
    p.box(600, 10, 190, 44, ["workers (and servers)"], "worker")
    for x in lanes.values():
        p.shapes.append(f'<line x1="{x}" y1="54" x2="{x}" y2="460" class="frame"/>')
    c, e, w = lanes.values()

    def message(y: float, words: str, *, back: bool = False) -> None:
        for one, other in ((c, e), (e, w)):
            p.arrow([(other, y), (one, y)] if back else [(one, y), (other, y)], words)

    message(90, "Setup: the job")
    message(130, "Ready", back=True)
    message(180, "Epoch 1")
    p.text(w + 8, 212, "steps and", "small", "start")
    p.text(w + 8, 228, "exchanges", "small", "start")
    message(230, "Progress", back=True)
    message(270, "EpochEnd: weights, metrics", back=True)
    p.text(c - 10, 300, "callbacks,", "small", "end")
    p.text(c - 10, 316, "validation", "small", "end")
    message(335, "Epoch 2, with what callbacks changed")
    message(385, "EpochEnd", back=True)
    message(435, "Finish: workers stay for the next fit")
    return p


def exact() -> Picture:
    """A step of HFDT: weighted gradients of slices, added."""
    p = Picture(
        820, 330, "One HFDT step: slices of the global batch, gradients weighted by their samples, one all-reduce"
    )
    p.box(20, 110, 130, 110, ["global batch", "M = 5 samples"], "client")
    for y, name, m in ((40, "rank 0", 3), (230, "rank 1", 2)):
        p.box(230, y, 170, 62, [name, f"{m} samples: gradient g{name[-1]}"], "worker")
        p.arrow([(150, 150 if y < 100 else 180), (230, y + 31)])
        p.box(450, y, 110, 62, [f"{m}/5 · g{name[-1]}", "weighted"], "worker")
        p.arrow([(400, y + 31), (450, y + 31)])
        p.arrow([(560, y + 31), (620, 150 if y < 100 else 180)])
    p.box(620, 110, 190, 110, ["all-reduce", "the same on every rank:", "the batch's gradient"], "engine")
    p.text(710, 255, "then the script's own optimizer", "small")
    return p


def placements() -> Picture:
    """A replicated step under placements."""
    p = Picture(900, 380, "A training step of a script on two ranks, with the placement of each tensor")
    columns = [("x", "Shard(0)"), ("x @ w", "Shard(0)"), ("loss per row", "Shard(0)"), ("mean", "Partial")]
    for rank, y in enumerate((60, 210)):
        p.text(20, y + 36, f"rank {rank}", "bold", "start")
        for i, (name, placement) in enumerate(columns):
            p.box(90 + i * 155, y, 125, 62, [name, placement], "server" if placement == "Partial" else "worker")
            if i:
                p.arrow([(60 + i * 155, y + 31), (90 + i * 155, y + 31)])
        p.arrow([(680, y + 31), (730, 140 if rank == 0 else 190)])
    p.box(730, 110, 150, 110, ["all-reduce", "float(loss)", "Replicate:", "alike on both"], "engine")
    p.text(152, 40, "rows of the batch, cut", "small")
    p.text(617, 40, "half of the mean", "small")
    p.box(245, 320, 435, 44, ["gradient: Partial; all-reduce; optimizer: Replicate"], "plain")
    return p


def server() -> Picture:
    """Workers, shards and the order of events."""
    p = Picture(820, 330, "Workers push gradients to shards and pull weights; shard 0 orders events")
    p.frame(20, 20, 200, 290, "workers")
    for i in range(3):
        p.box(40, 55 + i * 85, 160, 62, [f"worker {i}", "gradient of one batch"], "worker")
    p.box(
        440,
        20,
        360,
        120,
        ["shard 0", "scheduler: which batch, who waits", "algorithm, optimizer", "its part of the variables"],
        "server",
    )
    p.box(440, 215, 360, 95, ["shards 1, 2, ...", "algorithm, optimizer", "their parts of the variables"], "server")
    for y in (70, 250):
        p.arrow([(220, y), (440, y)], "push: gradients")
        p.arrow([(440, y + 40), (220, y + 40)], "pull: weights")
    p.arrow([(560, 140), (560, 215)], "log of events, replayed in order")
    return p


def staleness() -> Picture:
    """Pulls and pushes of two workers over time."""
    p = Picture(820, 260, "Two workers over time; the staleness of a push is the number of updates since its pull")
    p.text(20, 135, "server", "bold", "start")
    p.shapes.append('<line x1="100" y1="130" x2="800" y2="130" class="line"/>')
    lanes = (
        (30, "worker 0", ((120, 300, "tau 0"), (300, 560, "tau 1"))),
        (195, "worker 1", ((120, 420, "tau 1"), (420, 700, "tau 1"))),
    )
    for y, name, steps in lanes:
        p.text(20, y + 23, name, "bold", "start")
        near = y + 36 if y < 130 else y
        for start, end, tau in steps:
            p.box(start + 10, y, end - start - 20, 36, [f"push: {tau}"], "worker")
            p.arrow([(start, 130), (start + 14, near)])
            p.arrow([(end - 14, near), (end, 130)])
    for i, x in enumerate((120, 300, 420, 560, 700)):
        p.shapes.append(f'<circle cx="{x}" cy="130" r="6" class="c1"/>')
        p.text(x + 12, 148 if i in (1, 3) else 122, f"w{i}", "small", "start")
    return p


def simulated() -> Picture:
    """What is real and what is simulated."""
    p = Picture(820, 250, "nfdt simulate: what is real and what is simulated")
    p.frame(10, 10, 390, 230, "real")
    p.box(30, 45, 350, 44, ["the script, its data, its callbacks"], "client")
    p.box(30, 105, 350, 44, ["every gradient"], "worker")
    p.box(30, 165, 350, 44, ["scheduler, algorithm, optimizer"], "server")
    p.frame(420, 10, 390, 230, "simulated")
    p.box(440, 45, 350, 60, ["time of a step", "by the node's speed"], "engine")
    p.box(440, 130, 350, 60, ["time of a transfer", "by the links, which flows share fairly"], "engine")
    p.text(615, 222, "one clock, one seed, the same bits", "small")
    return p


def hosts() -> Picture:
    """How a run over hosts is connected."""
    p = Picture(860, 330, "A run over two hosts: ssh starts, TLS carries commands, MPI or gRPC carries tensors")
    p.box(20, 110, 190, 100, ["the command", "`hfdt run -H a:2,b:2`", "script and engine"], "client")
    for y, host, ranks in ((25, "host a", (0, 1)), (195, "host b", (2, 3))):
        p.frame(480, y, 360, 110, host)
        for i, rank in enumerate(ranks):
            p.box(500 + i * 165, y + 36, 150, 50, [f"rank {rank}"], "worker")
    p.arrow([(210, 130), (340, 55), (480, 55)], "ssh: starts ranks")
    p.arrow([(210, 190), (340, 275), (480, 275)], "ssh: starts ranks", up=-20)
    p.arrow([(210, 150), (340, 105), (480, 105)], "TLS: commands, data", both=True)
    p.arrow([(210, 170), (340, 225), (480, 225)], "TLS: commands, data", both=True)
    p.arrow([(660, 135), (660, 195)], "MPI: gradients", both=True)
    return p


def choose() -> Picture:
    """Which engine and algorithm."""
    p = Picture(880, 330, "Which engine and which algorithm")
    p.box(320, 10, 260, 54, ["Must the numbers be", "those of one machine?"], "client")
    p.box(90, 120, 280, 54, ["Is the network fast enough", "for one exchange a batch?"], "plain")
    p.box(530, 120, 280, 54, ["Do all workers have", "the same speed?"], "plain")
    p.arrow([(380, 64), (250, 120)], "yes")
    p.arrow([(520, 64), (650, 120)], "no")
    leaves = (
        (20, 240, 150, ["allreduce", "hfdt, the default"], "worker", 170, "yes"),
        (190, 240, 190, ["coded", "hfdt, a shared medium"], "worker", 290, "no"),
        (420, 240, 150, ["local_sgd, dane", "hfdt"], "worker", 590, "yes"),
        (585, 240, 140, ["group_sync", "nfdt"], "server", 665, "in groups"),
        (740, 240, 130, ["ddc_asgd", "nfdt, the default"], "server", 750, "no"),
    )
    for x, y, width, lines, kind, start, words in leaves:
        p.box(x, y, width, 62, lines, kind)
        p.arrow([(start, 174), (x + width / 2, y)], words)
    return p


def rules(data: str, workers: tuple[int, ...], names: tuple[str, ...], limits: tuple[float, float, float]) -> Picture:
    """Test accuracy of the asynchronous rules by number of workers, mean over seeds, from rules.jsonl."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for line in (RESULTS / "rules.jsonl").read_text().splitlines():
        entry = json.loads(line)
        run = entry["run"]
        if run["data"] == data and not run["held_out"] and run.get("rate", 1) == 1:
            found[run["rule"], run["workers"]].append(entry["result"]["accuracy"])
    alone = mean(found["alone", 1])
    curves = [("alone", [alone] * len(workers)), *((name, [mean(found[name, n]) for n in workers]) for name in names)]
    p = Picture(760, 400, f"Test accuracy on {data} by number of workers")
    p.chart((60, 30, 590, 340), curves, [str(n) for n in workers], limits)
    p.text(325, 385, "workers", "small")
    p.text(60, 16, "test accuracy, per cent", "small", "start")
    return p


def dane_ridge() -> Picture:
    """(f - f*) / (f0 - f*) by rounds, as a power of ten, from the stored runs of `make papers ARGS=D1`."""
    found = {}
    for line in (RESULTS / "papers" / "D1.jsonl").read_text().splitlines():
        entry = json.loads(line)
        settings = entry["settings"]
        if gaps := entry["figures"].get("gaps"):
            found[settings["rows"], settings["machines"], settings["method"]] = gaps
    names = {"dane": "dane", "admm, best rho": "admm", "gradient descent, allreduce": "gradient descent"}
    p = Picture(960, 560, "DANE, ADMM and gradient descent on ridge regression: distance to the minimum by rounds")
    for row, rows in enumerate((6_000, 18_000)):
        for column, machines in enumerate((2, 8)):
            curves = [(name, [power(g) for g in found[rows, machines, key]]) for key, name in names.items()]
            x, y = 60 + 480 * column, 40 + 275 * row
            labels = [str(n) for n in range(len(curves[0][1]))]
            p.chart((x, y, x + 270, y + 190), curves, labels, (-12, 0, 2))
            p.text(x, y - 14, f"N = {rows:,}, m = {machines}: log10 of (f - f*) / (f0 - f*)", "small", "start")
            p.text(x + 135, y + 228, "rounds", "small")
    return p


def power(gap: float) -> float:
    """Return log10 of a gap, -12 at least."""
    return math.log10(max(gap, 1e-12))


ASYNCHRONOUS = ("ddc_asgd", "dana_dc", "staleness_aware", "gap_aware", "dc_asgd_a", "asgd")
PICTURES = {
    "layers": layers,
    "captures": captures,
    "fit": fit,
    "gradient_paths": gradient_paths,
    "exact": exact,
    "placements": placements,
    "server": server,
    "push_pull": push_pull,
    "staleness": staleness,
    "simulated": simulated,
    "hosts": hosts,
    "choose": choose,
    "claims": claims,
    "dane_ridge": dane_ridge,
    "rules_fashion_mnist": lambda: rules("fashion_mnist", (4, 8, 16, 32), (*ASYNCHRONOUS, "ssgd"), (0, 100, 20)),
    "rules_cifar10": lambda: rules("cifar10", (8, 16), (*ASYNCHRONOUS, "ssgd"), (0, 70, 10)),
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        draw().save(HERE / f"{name}.svg")
