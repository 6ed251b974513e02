"""`--report`: curves and histograms of one run or several, and their data."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fdt.errors import UserError
from nfdt.simulation.outcome import Outcome, write_points

SIZE = (7.2, 4.4)  # inches


def check_matplotlib() -> None:
    """Raises UserError where plots cannot be drawn: before anything is trained."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("--report draws with matplotlib. Received: not installed; pip install 'hfdt-nfdt[plots]'")


def write_report(outcomes: Sequence[Outcome], directory: Path) -> None:
    """points.csv and three pictures in `directory`. Each run's own data are in its run.json."""
    directory.mkdir(parents=True, exist_ok=True)
    write_points(list(outcomes), directory / "points.csv")
    name = outcomes[0].metric.removeprefix("val_")
    draw = (
        ("samples", "samples trained on", lambda axes: _curves(axes, outcomes, "samples")),
        ("simulated_seconds", "simulated seconds", lambda axes: _curves(axes, outcomes, "simulated_s")),
    )
    for end, label, curves in draw:
        _picture(directory / f"{name or 'metric'}_by_{end}.png", label, name, curves)
    _picture(
        directory / "staleness.png", "staleness of a push (updates since its pull)", "share of pushes", _bars(outcomes)
    )


def _picture(file: Path, x: str, y: str, draw: Callable[[Any], None]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw(axes)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(file, dpi=150)


def _curves(axes: Any, outcomes: Sequence[Outcome], x: str) -> None:
    """Training as a line, validation as dots."""
    validated = False
    for number, outcome in enumerate(outcomes):
        look = _look(number)
        axes.plot(*outcome.training_curve(x), **look, label=outcome.rule)
        xs, ys = outcome.validation_curve(x)
        axes.plot(xs, ys, "o", color=look["color"], markersize=5)
        validated = validated or bool(xs)
    if validated:
        axes.plot([], [], "o", color="0.4", markersize=5, label="validation")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:,.0f}" if x == "samples" else "{x:,.4g}")


def _look(number: int) -> dict[str, Any]:
    """Lines that lie on each other can still be told apart."""
    return {"color": f"C{number}", "linestyle": ("-", "--", "-.", ":")[number % 4], "linewidth": 1.7}


def _bars(outcomes: Sequence[Outcome]) -> Callable[[Any], None]:
    """Outlines, so that several can be told apart."""

    def draw(axes: Any) -> None:
        for number, outcome in enumerate(outcomes):
            taus = range(max(outcome.staleness, default=0) + 1)
            pushes = max(1, outcome.staleness.total())
            shares = [outcome.staleness[tau] / pushes for tau in taus]
            edges = [tau - 0.5 for tau in (*taus, len(taus))]
            axes.stairs(shares, edges, **_look(number), label=outcome.rule)
            axes.stairs(shares, edges, color=f"C{number}", alpha=0.15, fill=True)
        axes.set_ylim(bottom=0)

    return draw
