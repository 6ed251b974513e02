"""The experiments by name, in the order of the sources."""

from benchmarks.papers import (
    compensation,
    grouped,
    grouped_times,
    redundancy,
)
from benchmarks.papers.experiment import Experiment

MODULES = (
    compensation,
    grouped,
    grouped_times,
from benchmarks.papers import coded_curves, coded_nodes, convergence, lenet_accuracy, lenet_time, redundancy, ridge
    ridge,
    lenet_time,
    convergence,
    lenet_accuracy,
    coded_curves,
    coded_nodes,
    redundancy,
)


def experiments() -> dict[str, Experiment]:
    """Return every experiment by its name."""
    return {experiment.name: experiment for module in MODULES for experiment in module.EXPERIMENTS}
