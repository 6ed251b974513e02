"""Federated optimization: workers train locally for K batches, and the server's optimizer applies the difference.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv:2003.00295, algorithm 2 (FedOpt). Names follow it; all
arrays have the shapes of the trainable variables:

    x_i <- the captured optimizer's step             K times on the worker, from the x that it pulled
                                                     (nfdt/worker/local_steps.py)
    delta = x_i - x                                  the worker pushes -delta, the pseudo-gradient
    m <- beta1 m + (1 - beta1) delta                 adagrad, adam, yogi; x <- x + eta m / (sqrt(v) + tau)
    v <- v + delta^2                                 adagrad
    v <- beta2 v + (1 - beta2) delta^2               adam
    v <- v - (1 - beta2) delta^2 sign(v - delta^2)   yogi
    m <- mu m + delta;  x <- x + eta m               sgd: FedAvgM, Hsu et al. 2019, arXiv:1909.06335

`sgd` at rate 1 adds the worker's whole difference. Below 1 the weights move a part of it, as the centre of EASGD does
(Zhang, Choromanska and LeCun 2015, arXiv:1412.6651, equation 4).

Deviations: each push is applied when it arrives; `sync` gives the paper's mean over a round's workers. A worker keeps
its optimizer's slots from round to round.
"""

from typing import NamedTuple

from nfdt.algorithm import AsyncAlgorithm, Hyper, Push, State, Update
from nfdt.algorithms import asgd, ssgd
from nfdt.tree import Array, Tree, zeros, zip_map

OPTIMIZERS = ("sgd", "adagrad", "adam", "yogi")
ADAPTIVE_LR, ADAPTIVE_MOMENTUM = 0.01, 0.9
TINY = 1e-30
NOTE = "server_optimizer: a push is of {} batches; optimizer.iterations and schedules count {}"


class Shared(NamedTuple):
    """State of the algorithm."""

    inner: State  # state of asgd or ssgd, which decides when to update
    steps: int  # batches of the round's longest push
    m: list[Array]
    v: list[Array]


class ServerOptimizer(NamedTuple):
    """The server's optimizer.

    Attributes:
        name: One of OPTIMIZERS.
        eta: Learning rate.
        keep: mu of sgd, beta1 of the others.
        beta2: Decay of the second moment of adam and yogi.
        tau: Constant added to the root of the second moment.
    """

    name: str
    eta: float
    keep: float
    beta2: float
    tau: float

    @property
    def plain(self) -> bool:
        """Whether the optimizer is sgd, without a second moment."""
        return self.name == "sgd"

    def start(self, params: Tree) -> tuple[list[Array], list[Array]]:
        """Return the initial m and v; a moment that is not needed is empty."""
        m = zeros(params) if self.keep else []
        return m, [] if self.plain else zip_map(lambda w: w * 0.0 + self.tau * self.tau, params)

    def step(self, g: list[Array], m: list[Array], v: list[Array]) -> tuple[list[Array], list[Array], list[Array]]:
        """Return the amounts to subtract from the weights, for g = -delta, and the new m and v."""
        part = 1.0 if self.plain else 1.0 - self.keep
        m = zip_map(lambda m, g: self.keep * m + part * g, m, g) if self.keep else g
        kept = m if self.keep else []
        if self.plain:
            return [self.eta * a for a in m], kept, v
        v = zip_map(self.second, v, g)
        return zip_map(lambda m, v: self.eta * m / (v**0.5 + self.tau), m, v), kept, v

    def second(self, v: Array, d: Array) -> Array:
        """Return the new second moment of one variable for the difference `d`."""
        if self.name == "adagrad":
            return v + d * d
        if self.name == "adam":
            return self.beta2 * v + (1.0 - self.beta2) * d * d
        return v - (1.0 - self.beta2) * d * d * (v - d * d) / (abs(v - d * d) + TINY)


def rule(
    local_steps: int = 1,
    optimizer: str = "sgd",
    lr: float | None = None,
    momentum: float | None = None,
    beta2: float = 0.99,
    tau: float = 1e-3,
    sync: bool = False,
) -> AsyncAlgorithm:
    """Return FedOpt with the given server optimizer.

    Args:
        local_steps: K, number of batches between two pushes.
        optimizer: Server optimizer: "sgd", "adagrad", "adam" or "yogi".
        lr: Server learning rate, > 0; None: 1 for sgd, else 0.01.
        momentum: Server momentum, in [0, 1); None: 0 for sgd, else 0.9.
        beta2: Decay of the second moment of adam and yogi, in [0, 1).
        tau: Constant added to the root of the second moment, > 0.
        sync: Whether the server averages the pushes of all workers in rounds, as in ssgd.

    Raises:
        ValueError: If a parameter is out of range.
    """
    if local_steps < 1:
        raise ValueError(f"server_optimizer: local_steps must be >= 1. Received: local_steps={local_steps}")
    server = _server(optimizer, lr, momentum, beta2, tau)
    when = ssgd.rule() if sync else asgd.rule()

    def apply(update: Update | None, shared: Shared, inner: State) -> tuple[Update | None, Shared]:
        """Run one step of the server's optimizer along -`update.gradient`, which is the paper's delta."""
        if update is None:
            return None, shared._replace(inner=inner)
        taken, m, v = server.step(update.gradient, shared.m, shared.v)
        return Update(taken, steps=shared.steps), Shared(inner, 0, m, v)

    def init(params: Tree, workers: int) -> tuple[Shared, State]:
        inner, mine = when.init(params, workers)
        return Shared(inner, 0, *server.start(params)), mine

    def pull(shared: Shared, mine: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, Shared, State]:
        sent, inner, mine = when.pull(shared.inner, mine, params, hyper)
        return sent, shared._replace(inner=inner), mine

    def push(shared: Shared, mine: State, params: Tree, push: Push) -> tuple[Update | None, Shared, State]:
        update, inner, mine = when.push(shared.inner, mine, params, push)
        return *apply(update, shared._replace(steps=max(shared.steps, push.batches)), inner), mine

    def leave(shared: Shared, mine: State, worker: int) -> Shared:
        return shared._replace(inner=when.leave(shared.inner, mine, worker))

    def join(shared: Shared, worker: int) -> Shared:
        return shared._replace(inner=when.join(shared.inner, worker))

    def flush(shared: Shared, params: Tree) -> tuple[Update | None, Shared]:
        update, inner = when.flush(shared.inner, params)
        return apply(update, shared, inner)

    note = NOTE.format(local_steps, "a worker's own batches" if sync else "all workers' batches")
    return AsyncAlgorithm(init, pull, push, leave, join, flush, waits=when.waits, note=note, local_steps=local_steps)


def _server(optimizer: str, lr: float | None, momentum: float | None, beta2: float, tau: float) -> ServerOptimizer:
    """Return the optimizer with defaults filled in. Raises ValueError for an invalid parameter."""
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"server_optimizer: optimizer must be one of {', '.join(OPTIMIZERS)}. Received: {optimizer}")
    eta, keep = (1.0, 0.0) if optimizer == "sgd" else (ADAPTIVE_LR, ADAPTIVE_MOMENTUM)
    server = ServerOptimizer(optimizer, eta if lr is None else lr, keep if momentum is None else momentum, beta2, tau)
    if not server.eta > 0:
        raise ValueError(f"server_optimizer: lr must be > 0. Received: lr={lr}")
    for name, value in (("momentum", server.keep), ("beta2", beta2)):
        if not 0 <= value < 1:
            raise ValueError(f"server_optimizer: {name} must be in [0, 1). Received: {name}={value}")
    if not tau > 0:
        raise ValueError(f"server_optimizer: tau must be > 0. Received: tau={tau}")
    return server
