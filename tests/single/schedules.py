"""Training schedules as strings: a lower case letter pulls, its upper case pushes the gradient at the pulled weights.

`train(rule, "abAB")`: a and b pull, a pushes, then b, whose gradient is one version stale. For tests of algorithms
whose numbers were computed by hand; the problem is a quadratic of two weights.
"""

import numpy as np

from nfdt.algorithm import AsyncAlgorithm
from nfdt.server.algorithm_state import AlgorithmState
from nfdt.transport import WorkerGradient
from nfdt.tree import Array
from tests.single.numpy_applier import PlainApplier

START = np.array([4.0, -2.0])
CURVATURE = np.array([1.0, 0.5])  # loss = sum(CURVATURE * w**2) / 2


def gradient(weights: Array) -> Array:
    return CURVATURE * weights


def computed(rule: AsyncAlgorithm, weights: Array, eta: float = 0.1) -> Array:
    """What a worker pushes: the gradient, or what its local steps of SGD with rate `eta` take off the weights."""
    if rule.local_steps is None:
        return gradient(weights)
    now = weights
    for _ in range(rule.local_steps):
        now = now - eta * gradient(now)
    return weights - now


def train(rule: AsyncAlgorithm, schedule: str, eta: float = 0.1, samples: int = 1, mu: float = 0.0) -> Array:
    """The weights after `schedule`, SGD with learning rate `eta` and momentum `mu` on the server."""
    workers = sorted(set(schedule.lower()))
    applier = PlainApplier([START], eta, mu)
    core = AlgorithmState(rule, applier, len(workers))
    seen: dict[str, Array] = {}
    pushes = dict.fromkeys(workers, 0)
    for letter in schedule:
        name = letter.lower()
        worker = workers.index(name)
        if letter == name:
            seen[name] = core.pull(worker)
        else:
            pushes[name] += 1
            pushed = WorkerGradient([computed(rule, seen[name][0], eta)], samples, batches=range(rule.local_steps or 1))
            core.push(worker, pushes[name], pushed)
    core.flush()
    return applier.params[0]


def sgd(steps: int, eta: float = 0.1) -> Array:
    """The weights after `steps` of a single worker."""
    w = START
    for _ in range(steps):
        w = w - eta * gradient(w)
    return w
