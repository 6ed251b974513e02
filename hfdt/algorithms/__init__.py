"""HFDT's synchronous algorithms, one per file, and their registry. Their syntax is in fdt/algorithm_registry.py.

Some parameters have an option of their own: `--dane-mu 0.1` stands for `--algorithm "dane(mu=0.1)"`.
"""

import sys
from collections.abc import Mapping
from typing import Any

from fdt.algorithm_registry import AlgorithmRegistry, Options
from fdt.errors import UserError
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

_book = AlgorithmRegistry(sys.modules[__name__], SyncAlgorithm, "hfdt/algorithm.py")
names, parameters, describe, make = _book.names, _book.parameters, _book.describe, _book.make


def spelled(text: str | None, given: Mapping[str, Any]) -> str | None:
    """Merge the options of the command line into the text of the algorithm.

    Args:
        text: The value of --algorithm; None is the default.
        given: The options of the command line by name; those of OPTIONS are read.

    Returns:
        The text with the given parameters, or None where neither --algorithm nor an option of OPTIONS is given.

    Raises:
        UsageError: The algorithm cannot be made, or an option belongs to another one.
    """
    return _book.spelled(text, DEFAULT, OPTIONS, given)


def step_algorithm(text: str) -> StepAlgorithm:
    """Make the algorithm that `text` names, for a training loop of the script's own.

    Raises:
        UserError: The algorithm trains between rounds or on blocks, so a loop of the script's own cannot run it.
    """
    made = make(text)
    if not isinstance(made, StepAlgorithm):
        raise UserError(f"a replicated script needs an algorithm that exchanges gradients. Received: {text}")
    return made
