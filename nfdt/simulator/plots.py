"""Plots of `--report`: curves and histograms of one or several runs, and their data."""

import importlib.util
import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fdt.errors import UserError
from nfdt.model import spread
from nfdt.simulator.outcome import SimulationOutcome, write_points

WIDTH = 7.2  # inches
LINE = 88  # characters of a legend or a title in that width
BINS = 80  # largest number of bins of a histogram
FALLING = ("loss", "error", "mse", "mae")  # endings of metrics that grow without bound if training diverges


def check_matplotlib() -> None:
    """Check, before training, that plots can be drawn. Raises UserError if not."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("--report needs matplotlib, which is not installed; pip install 'hfdt-nfdt[plots]'")


def write_report(outcomes: Sequence[SimulationOutcome], directory: Path) -> None:
    """Write points.csv and three pictures to `directory`. Each run's own data are in its run.json."""
    directory.mkdir(parents=True, exist_ok=True)
    write_points(list(outcomes), directory / "points.csv")
    name = outcomes[0].metric.removeprefix("val_") or "metric"
    for x, end, label in (
        ("samples", "samples", "samples trained on"),
        ("simulated_s", "simulated_seconds", "simulated seconds"),
    ):
        with _picture(directory / f"{name.replace('/', '_')}_by_{end}.png", 4.2) as figure:
            axes = _panel(figure.add_subplot())
            _curves(axes, outcomes, x)
            axes.set_xlabel(label)
            axes.set_ylabel(name)
            _legend(figure, axes)
    with _picture(directory / "staleness.png", 1.0 + 1.15 * len(outcomes)) as figure:
        _histograms(figure, outcomes)


@contextmanager
def _picture(file: Path, height: float) -> Iterator[Any]:
    """Yield a figure of `height` inches, which is written to `file` at the end."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    yield figure
    figure.savefig(file, dpi=150)


def _panel(axes: Any) -> Any:
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


# -- curves --------------------------------------------------------------------------------------------------------


def _curves(axes: Any, outcomes: Sequence[SimulationOutcome], x: str) -> None:
    """Draw training as lines and validation as dots."""
    validated, lines = False, []
    for number, outcome in enumerate(outcomes):
        look = _look(number)
        lines.append(outcome.training_curve(x))
        axes.plot(*lines[-1], **look, label=textwrap.fill(outcome.algorithm, LINE))
        xs, ys = outcome.validation_curve(x)
        axes.plot(xs, ys, "o", color=look["color"], markersize=5)
        validated = validated or bool(xs)
    if validated:
        axes.plot([], [], "o", color="0.4", markersize=5, label="validation")
    if outcomes[0].metric.endswith(FALLING):
        _keep_in_sight(axes, [ys for _, ys in lines])
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:,.0f}" if x == "samples" else "{x:,.4g}")


def _look(number: int) -> dict[str, Any]:
    """Return a line style; styles differ, so that overlapping lines remain distinguishable."""
    return {"color": f"C{number}", "linestyle": ("-", "--", "-.", ":")[number % 4], "linewidth": 1.7}


def _keep_in_sight(axes: Any, curves: Sequence[Sequence[float]]) -> None:
    """Limit the y axis, so that a diverging curve does not compress the others."""
    begun = [ys[0] for ys in curves if ys and math.isfinite(ys[0])]
    if begun and axes.get_ylim()[1] > 3 * max(begun):
        axes.set_ylim(min(0.0, *(y for ys in curves for y in ys if math.isfinite(y))), 1.5 * max(begun))


def _legend(figure: Any, axes: Any) -> None:
    """Place the legend above the curves, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = max(1, min(len(labels), LINE // (longest + 6)))
    lines = sum(1 + label.count("\n") for label in labels) / columns
    figure.set_figheight(figure.get_figheight() + 0.2 * lines)
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=9)


# -- histograms ----------------------------------------------------------------------------------------------------


def _histograms(figure: Any, outcomes: Sequence[SimulationOutcome]) -> None:
    """Draw the histograms below each other, on one scale of staleness but with separate shares.

    An algorithm without staleness would otherwise hide the others' shape.
    """
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    largest = max((max(outcome.staleness, default=0) for outcome in outcomes), default=0)
    width = 1 + largest // BINS
    edges = [-0.5 + width * bin for bin in range(largest // width + 2)]
    panels = figure.subplots(len(outcomes), 1, sharex=True, squeeze=False)[:, 0]
    for number, (outcome, axes) in enumerate(zip(outcomes, panels, strict=True)):
        shares = [0.0] * (len(edges) - 1)
        for tau, count in outcome.staleness.items():
            shares[tau // width] += count / outcome.staleness.total()
        _panel(axes).stairs(shares, edges, color=f"C{number}", fill=True)
        said = f"{outcome.algorithm}: {spread(outcome.staleness) or 'no pushes'}"
        axes.set_title(textwrap.fill(said, LINE), loc="left", fontsize=9)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    panels[-1].set_xlim(edges[0], edges[-1])
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[-1].set_xlabel("staleness of a push (updates since its pull)")
    figure.supylabel("share of pushes", fontsize=10)
