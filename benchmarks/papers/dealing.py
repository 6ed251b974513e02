"""A3: random sampling against shuffling once and slicing, under both engines."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.papers.experiment import Experiment, Results, Run, Table, values, where

ENGINES = {"HFDT": ("alone", 1), "NFDT": ("ddc_asgd", 4)}  # HFDT's numbers are those of one machine
WAYS = ("shuffle-split", "random-sampling")
ROWS, EPOCHS, TESTED = 12_800, 3, 2_000


def runs(quick: bool) -> Iterator[Run]:
    for seed in (0,) if quick else (0, 1, 2):
        for engine in ENGINES:
            for way in WAYS:
                settings = {"engine": engine, "partition": way, "seed": seed}
                fixed = {"rows": 640 if quick else ROWS, "epochs": 2 if quick else EPOCHS}
                yield Run(fixed | settings, lambda s=fixed | settings: train(s))


def train(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Train; return accuracy (points) on training rows that no worker has, and the share never drawn, by epoch."""
    import rules_training as training

    from fdt.data import epochs

    rows, sampled = settings["rows"], settings["partition"] == WAYS[1]
    per_epoch = rows // training.BATCH
    found: dict[str, list[float]] = {"accuracy": [], "never_drawn": []}

    class Workers(training.Cluster):
        """Workers that train on the first `rows` rows, in the batches of fdt/data/epochs.py."""

        drawn: set[int] = set()
        batches = 0

        def work(self, weights: list[Any], batches: Sequence[Any]) -> list[Any]:
            epoch, index = divmod(self.batches, per_epoch)
            if sampled:
                chosen = epochs.fresh_rows(rows, training.BATCH, settings["seed"], epoch, index)
            else:
                order = epochs.permutation(rows, settings["seed"], epoch)
                chosen = order[index * training.BATCH : (index + 1) * training.BATCH]
            self.drawn = self.drawn | set(chosen.tolist())
            self.batches += 1
            return list(super().work(weights, [self.rows[chosen]]))

        def pushed(self) -> bool:
            if self.batches % per_epoch == 0:
                tested = (part[:TESTED] for part in self.test)
                found["accuracy"].append(round(training.accuracy(self.applier.params, *tested), 2))
                found["never_drawn"].append(round(100 * (1 - len(self.drawn) / rows), 2))
            return self.batches < per_epoch * settings["epochs"]

    rule, workers = ENGINES[settings["engine"]]
    Workers(
        training.Run("fashion_mnist", rule, workers, settings["seed"], 1, held_out=True),
        training.TASKS["fashion_mnist"],
    ).epoch(0)
    return found


def curve(results: Results, figure: str) -> list[float]:
    """Return the mean over seeds, by epoch."""
    return [statistics.fmean(column) for column in zip(*(r.figures[figure] for r in results), strict=False)]


def draw(results: Results, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    for color, engine in enumerate(values(results, "engine")):
        for style, way in zip(("o-", "s--"), WAYS, strict=True):
            found = where(results, engine=engine, partition=way)
            for axis, shown in ((left, "accuracy"), (right, "never_drawn")):
                points = curve(found, shown)
                axis.plot(range(1, len(points) + 1), points, f"C{color}{style}", label=f"{engine}, {way}")
    left.set(xlabel="epochs (as many samples)", ylabel="accuracy in points (mean over seeds)")
    right.set(xlabel="epochs (as many samples)", ylabel="rows never drawn, in %")
    for axis in (left, right):
        axis.xaxis.get_major_locator().set_params(integer=True)
    left.legend(fontsize=8)


def measured(results: Results) -> str:
    parts = []
    for engine in values(results, "engine"):
        split, sampled = (where(results, engine=engine, partition=way) for way in WAYS)
        if split and sampled:
            a, b = curve(split, "accuracy")[-1], curve(sampled, "accuracy")[-1]
            never = ", ".join(f"{share:.1f}" for share in curve(sampled, "never_drawn"))
            parts.append(
                f"{engine}: {a:.1f} points with shuffle and split, {b:.1f} with random sampling at equal samples; "
                f"after each epoch {never} % of the rows were never drawn (shuffle and split: 0 %)"
            )
    return ". ".join(parts) + "."


def tables(results: Results) -> Iterator[Table]:
    rows = []
    for engine in values(results, "engine"):
        for way in WAYS:
            found = where(results, engine=engine, partition=way)
            rows.append([engine, way, *(f"{points:.1f}" for points in curve(found, "accuracy"))])
    longest = max(map(len, rows))
    heads = ["engine", "partition", *(f"epoch {n + 1}" for n in range(longest - 2))]
    yield Table("Accuracy by epoch, in points", heads, [[*row, *["-"] * (longest - len(row))] for row in rows])


EXPERIMENTS = [
    Experiment(
        "A3",
        "random sampling against shuffle and split",
        "Not measured: with random sampling a worker's data are distributed like the whole, but it is costly on large "
        "data, and with few draws some samples are never used. Shuffling once and slicing is cheaper and uses all.",
        "Ours: Fashion-MNIST, 12,800 rows, batches of 64, the net and optimizer of benchmarks/rules.py; accuracy on "
        "2,000 training rows that no worker has. HFDT's numbers are those of one machine at every -np; NFDT is "
        "ddc_asgd on 4 simulated workers with equal steps (Gamma, shape 100) and links that take no time. A batch is "
        "sampled without repeats; of n rows about 1/e are never drawn in n samples. In both ways every epoch is dealt "
        "anew, where the source shuffles once.",
        runs,
        measured,
        draw,
        tables,
    )
]
