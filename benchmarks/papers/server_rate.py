"""A1: training by the server's rate, with plain SGD on the workers (figure 3 of source A)."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.papers.experiment import Experiment, Results, Run, Table, values, where

BATCHES, LOOKED_AT, POINTS = 240, 250, 60
WORKER_RATE = 0.05
RATES = (0.1, 0.25, 0.5, 0.75, 1.0)
LOCAL_STEPS = (1, 8)
WORKERS, STALE = 4, (1, 16, 2, 8, 4)  # workers; and those of the same system at several stalenesses, one less each
BEYOND = {
    1: (2.0, 4.0, 8.0),
    2: (2.0, 4.0),
    8: (2.0, 0.05, 0.025),
    16: (2.0, 0.05, 0.025),
}  # where a best rate is at the edge of RATES
NODE = "  - {{name: {name}, count: {count}, speed: {{distribution: gamma, mean: {mean}, shape: 100}}}}\n"
SPEEDS = {"rounds": 1.0, "1:1": 1.0, "1:3": 1 / 3}  # by the axis of staleness; rounds: sync=True, nothing is stale
NAMES = {"rounds": "in rounds", "1:1": "equal speeds", "1:3": "speeds 1:3"}


def runs(quick: bool) -> Iterator[Run]:
    batches = 32 if quick else BATCHES
    for seed in (0,) if quick else (0, 1, 2):
        for local_steps in LOCAL_STEPS:
            for speeds in SPEEDS:
                for rate in (RATES[0], RATES[-1]) if quick else RATES:
                    settings = {"speeds": speeds, "server_rate": rate, "local_steps": local_steps, "seed": seed}
                    yield run(WORKERS, batches, settings)
    for seed in (0,) if quick else (0, 1, 2):
        for workers in STALE[:1] if quick else STALE:
            more = BEYOND.get(workers, (2.0,))
            for rate in RATES[-1:] if quick else more if workers == WORKERS else (*RATES, *more):
                settings = {"speeds": "1:1", "server_rate": rate, "local_steps": 1, "seed": seed}
                yield run(workers, batches, settings)


def run(workers: int, batches: int, settings: Mapping[str, Any]) -> Run:
    given = {"workers": workers, "worker_rate": WORKER_RATE, "batches": batches} | settings
    return Run(given, lambda: train(given))


def train(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Train once; return loss and accuracy on training rows that no worker has, by batches, and their unsteadiness."""
    losses, accuracies, tau = followed(settings)
    every = max(1, len(losses) // POINTS)
    return {
        "batches": [settings["local_steps"] * (n + 1) for n in range(0, len(losses), every)],
        "loss": [round(loss, 4) for loss in losses[::every]],
        "accuracy": [round(points, 1) for points in accuracies[::every]],
        "unsteadiness": round(unsteadiness(losses), 5),
        "final": round(statistics.fmean(accuracies[-(len(accuracies) // 10 or 1) :]), 2),
        "tau": round(tau, 2),
    }


def unsteadiness(losses: Sequence[float]) -> float:
    """Return the standard deviation of the loss's change from push to push, over the second half of the pushes."""
    half = losses[len(losses) // 2 :]
    return statistics.pstdev(after - before for before, after in zip(half, half[1:], strict=False))


def followed(settings: Mapping[str, Any]) -> tuple[list[float], list[float], float]:
    """Return loss and accuracy (points) after every push, and the mean staleness."""
    import rules_training as training

    sync = settings["speeds"] == "rounds"
    rule = f"server_optimizer(lr={settings['server_rate']}, local_steps={settings['local_steps']}, sync={sync})"
    run = training.Run("fashion_mnist", rule, settings["workers"], settings["seed"], 1, held_out=True)
    workers = workers_of(training, settings)(run)
    workers.epoch(0)
    staleness = workers.policy.epoch.staleness
    losses, accuracies = zip(*workers.seen, strict=True)
    return (
        list(losses),
        list(accuracies),
        staleness.total() and sum(tau * n for tau, n in staleness.items()) / staleness.total(),
    )


def cluster(workers: int, slow: float) -> str:
    """Return a cluster file whose slower half of nodes, rounded down, has the speed `slow`."""
    groups = (("fast", workers - workers // 2, 1.0), ("slow", workers // 2, slow))
    return "nodes:\n" + "".join(NODE.format(name=n, count=c, mean=m) for n, c, m in groups if c)


def workers_of(training: Any, settings: Mapping[str, Any]) -> Any:
    """Return the class of workers that note loss and accuracy after every push. `training`: rules_training."""
    import tensorflow as tf

    from fdt.network import Pace
    from fdt.network.reading import parse_cluster

    described = parse_cluster(cluster(settings["workers"], SPEEDS[settings["speeds"]]))
    taken, look = local_steps_of(training, settings), test_of(training)

    class Workers(training.Cluster):
        def __init__(self, run: Any) -> None:
            super().__init__(run, training.TASKS[run.data])
            self.paces = [Pace(node, described.step_s, (run.seed,)) for node in described.workers]
            self.seen: list[tuple[float, float]] = []

        def step_s(self, worker: int) -> float:
            return self.paces[worker].seconds(self.now)

        def work(self, weights: list[Any], batches: Sequence[Any]) -> list[Any]:
            return list(taken(weights, self.images, self.labels, tf.constant(batches, tf.int32)))

        def pushed(self) -> bool:
            loss, points = look(list(self.applier.params), *(t[:LOOKED_AT] for t in self.test))
            self.seen.append((min(float(loss), 1e3) if loss == loss else 1e3, float(points)))
            return len(self.seen) * settings["local_steps"] < settings["batches"]

    return Workers


def local_steps_of(training: Any, settings: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function of a worker's local steps."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def taken(weights: list[Any], images: Any, labels: Any, rows: Any) -> list[Any]:
        """Return the weights minus those after steps of plain SGD on each line of `rows`."""
        now = list(weights)
        for step in range(settings["local_steps"]):
            found = training.gradient(now, images, labels, rows[step])
            now = [w - settings["worker_rate"] * g for w, g in zip(now, found, strict=True)]
        return [before - after for before, after in zip(weights, now, strict=True)]

    return taken


def test_of(training: Any) -> Callable[..., Any]:
    """Return the function that tests weights: loss, and accuracy in points."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def look(weights: list[Any], images: Any, labels: Any) -> tuple[Any, Any]:
        seen = training.logits(weights, images)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, seen))
        right = tf.cast(tf.argmax(seen, -1, tf.int32) == labels, tf.float32)
        return loss, 100 * tf.reduce_mean(right)

    return look


def mean(results: Results, figure: str) -> float:
    return statistics.fmean(r.figures[figure] for r in results)


def rises(results: Results) -> float:
    """Return the share of the loss's movement that goes up, in %, mean over seeds: 0 falls steadily, 50 stays."""
    shares = []
    for loss in (r.figures["loss"] for r in results):
        changes = [after - before for before, after in zip(loss, loss[1:], strict=False)]
        moved = sum(map(abs, changes))
        shares.append(100 * sum(c for c in changes if c > 0) / moved if moved else 0.0)
    return statistics.fmean(shares)


# -- the curves by rate, on four workers -------------------------------------------------------------------------------
def by_speeds(results: Results) -> Results:
    return [r for r in where(results, workers=WORKERS) if r.settings["server_rate"] in RATES]


def stale(results: Results) -> dict[float, list[Any]]:
    """Return the runs of one system, K = 1 and equal speeds, by its mean staleness."""
    found = where(results, speeds="1:1", local_steps=1)
    by_workers = [where(found, workers=workers) for workers in sorted(values(found, "workers"))]
    return {round(mean(runs, "tau"), 1): runs for runs in by_workers}


def draw(results: Results, figure: Any) -> None:
    left, right = figure.subfigures(1, 2, width_ratios=(3, 1))
    draw_curves(by_speeds(results), left)
    top, low = right.subplots(2, 1, sharex=True)
    for tau, found in stale(results).items():
        by_rate = {rate: where(found, server_rate=rate) for rate in sorted(values(found, "server_rate"))}
        top.semilogx(list(by_rate), [mean(runs, "final") for runs in by_rate.values()], ".-", label=f"{tau:.0f}")
        low.semilogx(list(by_rate), [rises(runs) for runs in by_rate.values()], ".-")
    top.set_title("K = 1, by mean staleness", fontsize=8)
    top.set_ylabel("accuracy at the end")
    low.set(xlabel="server rate", ylabel="rises of the loss in %")
    top.legend(fontsize=6)
    low.xaxis.set(major_formatter="{x:g}")


def draw_curves(results: Results, figure: Any) -> None:
    speeds = values(results, "speeds")
    grid = figure.subplots(len(LOCAL_STEPS), len(speeds), squeeze=False, sharex=True, sharey=True)
    for line, local_steps in zip(grid, LOCAL_STEPS, strict=True):
        for axis, speed in zip(line, speeds, strict=True):
            for rate in values(results, "server_rate"):
                # One seed: a mean of three would hide the swings.
                for found in where(results, speeds=speed, server_rate=rate, local_steps=local_steps, seed=0):
                    axis.plot(found.figures["batches"], found.figures["loss"], lw=1, label=f"{rate:g}")
            axis.set(ylim=(0, 3), title=f"K = {local_steps}, {NAMES[speed]}")
            axis.title.set_fontsize(8)
        line[0].set_ylabel("loss")
    for axis in grid[-1]:
        axis.set_xlabel("batches of all workers")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, title="server rate", loc="outside right center", fontsize=7)


def best_rate(results: Results) -> float:
    return float(max(values(results, "server_rate"), key=lambda r: mean(where(results, server_rate=r), "final")))


def told(name: str, cell: Results) -> str:
    """Return an algorithm's best rate and its points, and points and rises of the loss at rate 1 and at the lowest."""
    low, full = (where(cell, server_rate=rate) for rate in (RATES[0], RATES[-1]))
    best = best_rate(cell)
    said = f"{name}: best {best:g} ({mean(where(cell, server_rate=best), 'final'):.1f} points)"
    if full and low:
        said += f"; rate 1 {mean(full, 'final'):.1f} points, rises {rises(full):.0f} % ({rises(low):.0f} % at 0.1)"
    return said


def measured(results: Results) -> str:
    cells = stale(results)
    said = [told(f"staleness {tau:g}", runs) for tau, runs in cells.items()]
    grid = by_speeds(results)
    cells_8 = {speed: where(grid, speeds=speed, local_steps=LOCAL_STEPS[-1]) for speed in values(grid, "speeds")}
    said += [told(f"K = {LOCAL_STEPS[-1]}, {NAMES[speed]}", runs) for speed, runs in cells_8.items() if runs]
    return f"One system, K = 1, equal speeds: {falling(cells)}. {'. '.join(said)}."


def falling(cells: Mapping[float, Results]) -> str:
    """Return in words whether the best server rate falls as staleness grows."""
    best = {tau: best_rate(runs) for tau, runs in sorted(cells.items())}
    rates = list(best.values())
    course = ", ".join(f"{rate:g} at {tau:g}" for tau, rate in best.items())
    if len(rates) < 2:
        return "fewer than two stalenesses have run"
    if rates[-1] >= rates[0]:
        return f"the best rate does not fall with staleness ({course})"
    steady = all(a >= b for a, b in zip(rates, rates[1:], strict=False))
    return f"as the source has it, the best rate falls with staleness{'' if steady else ', not steadily'} ({course})"


def tables(results: Results) -> Iterator[Table]:
    grid, rates = by_speeds(results), sorted(values(results, "server_rate"))
    cells = [
        (str(local_steps), NAMES[speed], str(WORKERS), where(grid, speeds=speed, local_steps=local_steps))
        for local_steps in values(grid, "local_steps")
        for speed in values(grid, "speeds")
        if (local_steps, speed) != (1, "1:1")
    ]
    cells += [("1", NAMES["1:1"], str(runs[0].settings["workers"]), runs) for runs in stale(results).values()]
    heads = ["local steps", "workers' speeds", "workers", "mean staleness", *(f"rate {rate:g}" for rate in rates)]
    for title, figure in (
        ("Accuracy at the end, in points (mean over the seeds that were run)", lambda runs: mean(runs, "final")),
        ("Rises of the loss: share of its movement between looks that goes up, in %", rises),
    ):
        rows = []
        for *names, cell in cells:
            by_rate = [where(cell, server_rate=rate) for rate in rates]
            found = [f"{figure(runs):.1f}" if runs else "-" for runs in by_rate]
            rows.append([*names, f"{mean(cell, 'tau'):.1f}" if cell else "-", *found])
        yield Table(title, heads, rows)


EXPERIMENTS = [
    Experiment(
        "A1",
        "training curves by the server's rate",
        "A small server rate shrinks what workers have done, so work is wasted; rate 1 uses it whole and is fast, but "
        "stale updates can point the wrong way: the curve is unsteady, with large swings. Where staleness is serious, "
        "lower the server's rate.",
        "Model, data, rates, workers and axes of the source's plot are not known. Ours: Fashion-MNIST, two convolutions"
        " and two dense layers, batches of 64, 4 workers, SGD at 0.05 without momentum, 240 batches; loss and accuracy "
        "on 250 training rows that no worker has. Cluster: a step is 100 ms on average (Gamma, shape 100), links take "
        "no time; 1:3 has two workers three times slower. In rounds nothing is stale, but the server averages where it "
        "adds up elsewhere, so rates in rounds and others do not compare. Staleness is n - 1 on n workers, whatever "
        "their speeds. To vary it alone, the asynchronous system runs on 1 to 16 workers with the same batches in all; "
        "its server adds each push at the same rate, so a push is as large at every staleness.",
        runs,
        measured,
        draw,
        tables,
    )
]
