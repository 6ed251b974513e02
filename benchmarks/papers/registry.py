"""The experiments by name, in the order of the sources."""

from benchmarks.papers import (
    compensation,
    grouped,
    grouped_real,
    grouped_times,
    redundancy,
    synchronous,
)
from benchmarks.papers.experiment import Experiment

MODULES = (
    compensation,
    grouped,
    grouped_real,
    grouped_times,
    redundancy,
    synchronous,
)


def experiments() -> dict[str, Experiment]:
    """Return every experiment by its name."""
    return {experiment.name: experiment for module in MODULES for experiment in module.EXPERIMENTS}
