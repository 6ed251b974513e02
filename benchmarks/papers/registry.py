"""The experiments by name, in the order of the sources."""

from importlib import import_module

from benchmarks.papers.experiment import Experiment

MODULES = (
    *("server_rate", "control_end", "dealing"),
    *("grouped", "grouped_real", "grouped_times"),
    *("compensation", "synchronous"),
    *("ridge", "lenet_time", "convergence", "lenet_accuracy"),
    *("coded_curves", "coded_nodes", "redundancy"),
)


def experiments() -> dict[str, Experiment]:
    """Return every experiment by its name, in the order of the names."""
    modules = [import_module(f"benchmarks.papers.{name}") for name in MODULES]
    found = {experiment.name: experiment for module in modules for experiment in module.EXPERIMENTS}
    return dict(sorted(found.items()))
