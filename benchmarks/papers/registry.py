"""The experiments by name, in the order of the sources."""

from benchmarks.papers import control_end, dealing, redundancy, server_rate
from benchmarks.papers.experiment import Experiment

MODULES = (
    server_rate,
    control_end,
    dealing,
    redundancy,
)


def experiments() -> dict[str, Experiment]:
    """Return every experiment by its name."""
    return {experiment.name: experiment for module in MODULES for experiment in module.EXPERIMENTS}
