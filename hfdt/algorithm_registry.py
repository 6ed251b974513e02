"""HFDT's rules by name: the files of hfdt/algorithms. How a rule is spelled: fdt/algorithm_registry.py.

Some parameters have an option of their own on the command line, `--dane-mu 0.1` for `--rule "dane(mu=0.1)"`.
"""

from collections.abc import Mapping
from typing import Any

from fdt.algorithm_registry import AlgorithmRegistry, Options
from fdt.errors import UserError
from hfdt import algorithms
from hfdt.algorithm import StepAlgorithm, SyncAlgorithm

DEFAULT = "allreduce"

OPTIONS: Options = {
    "local_steps": (("local_sgd",), "local_steps"),
    "local_epochs": (("dane", "admm"), "local_epochs"),
    "local_solver": (("dane", "admm"), "solver"),
    "dane_eta": (("dane",), "eta"),
    "dane_mu": (("dane",), "mu"),
    "admm_rho": (("admm",), "rho"),
    "redundancy": (("coded",), "redundancy"),
    "coding": (("coded",), "coding"),
    "placement": (("coded",), "placement"),
    "worker_shares": (("coded",), "shares"),
}

_book = AlgorithmRegistry(algorithms, SyncAlgorithm, "hfdt/algorithm.py")
names, parameters, describe, make = _book.names, _book.parameters, _book.describe, _book.make


def spelled(text: str | None, given: Mapping[str, Any]) -> str | None:
    """The rule `text` (None: the default) with those of OPTIONS that are given; None where nothing was asked for.

    Raises UsageError for a rule that cannot be made, and for options of another one.
    """
    return _book.spelled(text, DEFAULT, OPTIONS, given)


def step_rule(text: str) -> StepAlgorithm:
    """`make`, for a training loop of the script's own. Raises UserError for a rule of another kind.

    Those train on their own between rounds, or on blocks.
    """
    made = make(text)
    if not isinstance(made, StepAlgorithm):
        raise UserError(f"a training loop of the script's own takes rules that exchange gradients. Received: {text}")
    return made
