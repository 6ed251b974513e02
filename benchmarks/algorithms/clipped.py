"""Clipping: each pushed gradient is shortened to a largest norm, and another algorithm does the rest.

Erickson and Johansson 2026, "Clipping Makes Distributed and Federated Asynchronous SGD Robust to Stragglers",
arXiv:2606.13287: g min(1, c / |g|), with the norm over all weights.
"""

import dataclasses

from nfdt import algorithms
from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Push, State
from nfdt.tree import Tree, minimum, total


def rule(norm: float = 1.0, algorithm: str = "ddc_asgd", micro_steps: int = 1) -> AsyncAlgorithm:
    """Return an algorithm behind clipping.

    Args:
        norm: c.
        algorithm: Name of an asynchronous algorithm of NFDT, with its default parameters.
        micro_steps: As in ddc_asgd.
    """
    inner = algorithms.make(algorithm)

    def push(shared: State, mine: State, params: Tree, push: Push) -> tuple[AlgorithmUpdate | None, State, State]:
        length = sum(total(g * g) for g in push.gradient) ** 0.5
        scale = minimum(1.0, norm / (length + 1e-30))
        return inner.push(shared, mine, params, dataclasses.replace(push, gradient=[scale * g for g in push.gradient]))

    return dataclasses.replace(inner, push=push, micro_steps=micro_steps)
