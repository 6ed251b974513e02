"""An experiment of a source document: its runs, its picture, and the row that compares it with the source."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Run:
    """One training or simulation. Its settings name it: a run that is stored under them is not repeated.

    Attributes:
        settings: whatever decides the result: algorithm, workers, rate, seed, epochs, name of the cluster file.
        measure: trains or simulates, and returns figures that JSON can hold.
    """

    settings: Mapping[str, Scalar]
    measure: Callable[[], Mapping[str, Any]] = field(compare=False)


@dataclass(frozen=True)
class Measured:
    """A stored run: its settings and its figures."""

    settings: Mapping[str, Scalar]
    figures: Mapping[str, Any]


Results = Sequence[Measured]


@dataclass(frozen=True)
class Table:
    """Headings and rows of text, printed and put on the page."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Experiment:
    """An experiment of a source document.

    Attributes:
        name: the letter of the source and a number, as in the list of sources: "A1".
        title: a noun phrase.
        says: the source's result, in a sentence or two.
        differs: why the source and the measurement differ, and what is ours in the settings.
        runs: returns the runs; of few seeds and few epochs where its argument `quick` is True.
        measured: returns the result in a sentence or two, with its figures.
        draw: draws the picture on an empty matplotlib figure, with the axes and series of the source.
        tables: returns the tables, where the experiment has some.
        stored_with: the experiment whose file holds the runs, where several evaluate the same ones.
    """

    name: str
    title: str
    says: str
    differs: str
    runs: Callable[[bool], Iterable[Run]]
    measured: Callable[[Results], str]
    draw: Callable[[Results, Any], None]
    tables: Callable[[Results], Iterable[Table]] = lambda results: ()
    stored_with: str = ""


class Store:
    """The stored runs of an experiment: a file of JSON lines."""

    def __init__(self, directory: Path, experiment: Experiment) -> None:
        self.path = directory / f"{experiment.stored_with or experiment.name}.jsonl"
        self._figures = {identity(e["settings"]): e["figures"] for e in harness.kept(self.path)}

    def results(self, runs: Iterable[Run]) -> list[Measured]:
        """Return those of `runs` that are stored, in their order."""
        return [Measured(r.settings, self._figures[identity(r.settings)]) for r in runs if r in self]

    def __contains__(self, run: Run) -> bool:
        return identity(run.settings) in self._figures

    def add(self, run: Run) -> None:
        """Measure a run and store it."""
        began = time.perf_counter()
        figures = run.measure()
        spent = round(time.perf_counter() - began, 1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        harness.keep(self.path, {"settings": dict(run.settings), "figures": figures, "seconds": spent})
        self._figures[identity(run.settings)] = json.loads(json.dumps(figures))


def identity(settings: Mapping[str, Scalar]) -> str:
    return json.dumps(dict(settings), sort_keys=True)


def where(results: Results, **settings: Scalar) -> list[Measured]:
    """Return the results whose settings have these values."""
    return [r for r in results if all(r.settings.get(key) == value for key, value in settings.items())]


def values(results: Results, key: str) -> list[Any]:
    """Return the different values of a setting, in their order."""
    return list(dict.fromkeys(r.settings[key] for r in results if key in r.settings))
