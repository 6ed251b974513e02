"""A1: training by the server's rate, with plain SGD on the workers (figure 3 of source A)."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.papers.experiment import Experiment, Results, Run, Table, values, where

BATCHES, LOOKED_AT, POINTS = 240, 250, 60
WORKER_RATE = 0.05
RATES = (0.1, 0.25, 0.5, 0.75, 1.0)
LOCAL_STEPS = (1, 8)
CLUSTER = """
nodes:
  - {{name: fast, count: 2, speed: {{distribution: gamma, mean: 1, shape: 100}}}}
  - {{name: slow, count: 2, speed: {{distribution: gamma, mean: {slow}, shape: 100}}}}
"""
SPEEDS = {"rounds": 1.0, "1:1": 1.0, "1:3": 1 / 3}  # by the axis of staleness; rounds: sync=True, nothing is stale
NAMES = {"rounds": "in rounds", "1:1": "equal speeds", "1:3": "speeds 1:3"}


def runs(quick: bool) -> Iterator[Run]:
    batches = 32 if quick else BATCHES
    for seed in (0,) if quick else (0, 1, 2):
        for local_steps in LOCAL_STEPS:
            for speeds in SPEEDS:
                for rate in (RATES[0], RATES[-1]) if quick else RATES:
                    settings = {"speeds": speeds, "server_rate": rate, "local_steps": local_steps, "seed": seed}
                    fixed = {"workers": 4, "worker_rate": WORKER_RATE, "batches": batches}
                    yield Run(fixed | settings, lambda s=fixed | settings: train(s))


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
    workers = workers_of(training, settings)(training.Run("fashion_mnist", rule, 4, settings["seed"], 1, held_out=True))
    workers.epoch(0)
    staleness = workers.policy.epoch.staleness
    losses, accuracies = zip(*workers.seen, strict=True)
    return (
        list(losses),
        list(accuracies),
        staleness.total() and sum(tau * n for tau, n in staleness.items()) / staleness.total(),
    )


def workers_of(training: Any, settings: Mapping[str, Any]) -> Any:
    """Return the class of workers that note loss and accuracy after every push. `training`: rules_training."""
    import tensorflow as tf

    from fdt.network import Pace
    from fdt.network.reading import parse_cluster

    described = parse_cluster(CLUSTER.format(slow=SPEEDS[settings["speeds"]]))
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


def draw(results: Results, figure: Any) -> None:
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


def measured(results: Results) -> str:
    parts = []
    for local_steps in values(results, "local_steps"):
        for speed in values(results, "speeds"):
            cell = where(results, speeds=speed, local_steps=local_steps)
            low, full = (where(cell, server_rate=rate) for rate in (RATES[0], RATES[-1]))
            if low and full:
                points = {rate: mean(where(cell, server_rate=rate), "final") for rate in values(cell, "server_rate")}
                best = max(points, key=points.__getitem__)
                parts.append(
                    f"K = {local_steps}, {NAMES[speed]}: best {best:g} ({points[best]:.1f} points); "
                    f"rate 1 {points[RATES[-1]]:.1f} points{swings(full, low)}"
                )
    return "As the source has it: the best rate falls with staleness. " * falls(results) + ". ".join(parts) + "."


def swings(full: Results, low: Results) -> str:
    """Return how many times as unsteady the full rate is, in words; "" where a run of few looks has no swing."""
    least = mean(low, "unsteadiness")
    return f", {mean(full, 'unsteadiness') / least:.0f} times as unsteady as rate {RATES[0]:g}" if least else ""


def falls(results: Results) -> bool:
    """Return whether, at every K, the best server rate is lower where workers' updates are stale than in rounds."""

    def best(local_steps: int, speed: str) -> float:
        cell = where(results, local_steps=local_steps, speeds=speed)
        return max(values(cell, "server_rate"), key=lambda r: mean(where(cell, server_rate=r), "final"))

    speeds, steps = values(results, "speeds"), values(results, "local_steps")
    complete = all(where(results, local_steps=k, speeds=speed) for k in steps for speed in speeds)
    return complete and all(best(k, speeds[0]) > best(k, speed) for k in steps for speed in speeds[1:])


def tables(results: Results) -> Iterator[Table]:
    rates = values(results, "server_rate")
    heads = ["local steps", "workers' speeds", "mean staleness", *(f"rate {rate:g}" for rate in rates)]
    for title, figure, form in (
        ("Accuracy at the end, in points (mean over the seeds that were run)", "final", "{:.1f}"),
        ("Unsteadiness: standard deviation of the loss's change between pushes, second half", "unsteadiness", "{:.3f}"),
    ):
        rows = []
        for local_steps in values(results, "local_steps"):
            for speed in values(results, "speeds"):
                cell = where(results, speeds=speed, local_steps=local_steps)
                by_rate = [where(cell, server_rate=rate) for rate in rates]
                found = [form.format(mean(r, figure)) if r else "-" for r in by_rate]
                tau = f"{mean(cell, 'tau'):.1f}" if cell else "-"
                rows.append([str(local_steps), NAMES[speed], tau, *found])
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
        "no time; 1:3 has two workers three times slower. In rounds the server averages, else it adds up.",
        runs,
        measured,
        draw,
        tables,
    )
]
