"""Federated optimization: workers train locally for K batches, and the server's optimizer applies the difference.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv:2003.00295, algorithm 2 (FedOpt). Names follow it; all
arrays have the shapes of the trainable variables:

    x_i <- the captured optimizer's step             K times on the worker, from the x that it pulled
                                                     (nfdt/worker/local_steps.py)
    delta = x_i - x                                  the worker pushes -delta, the pseudo-gradient
    x   <- x + the server optimizer's step           for the pseudo-gradient

The server's optimizer is any of Keras's, with any schedule (nfdt/model/settings.py), or one of the paper, which
Keras does not have:

    sgd                  m <- mu m + delta;  x <- x + eta m               FedAvgM, Hsu et al. 2019, arXiv:1909.06335
    adagrad, adam, yogi  m <- beta1 m + (1 - beta1) delta;  x <- x + eta m / (sqrt(v) + tau)
        adagrad          v <- v + delta^2
        adam             v <- beta2 v + (1 - beta2) delta^2
        yogi             v <- v - (1 - beta2) delta^2 sign(v - delta^2)

`sgd` at rate 1 adds the worker's whole difference. Below 1 the weights move a part of it, as the centre of EASGD does
(Zhang, Choromanska and LeCun 2015, arXiv:1412.6651, equation 4).

Deviations: each push is applied when it arrives; `sync` gives the paper's mean over a round's workers. A worker keeps
its optimizer's slots from round to round.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from nfdt.algorithm import AlgorithmUpdate, AsyncAlgorithm, Hyper, Push, State, require
from nfdt.algorithms import asgd, ssgd
from nfdt.tree import Array, Tree, running_square, with_momentum, zeros, zip_map

OPTIONS = {  # options of the command line that set a parameter
    "--worker-optimizer": (
        "worker_optimizer",
        "NAME",
        "the workers' optimizer; captured is the script's.  [default: captured]",
    ),
    "--local-steps": ("local_steps", "K", "number of batches that a worker trains before it pushes.  [default: 1]"),
    "--server-optimizer": (
        "optimizer",
        "NAME",
        "the server's optimizer: sgd, adagrad, adam, yogi, or one of Keras's.  [default: sgd]",
    ),
    "--server-lr": ("lr", "RATE", "the server's learning rate.  [default: 1 for sgd, else 0.01]"),
    "--server-momentum": ("momentum", "MU", "the server's momentum.  [default: 0 for sgd, else 0.9]"),
}
PAPER = {"sgd": (1.0, 0.0), "adagrad": (0.01, 0.9), "adam": (0.01, 0.9), "yogi": (0.01, 0.9)}  # (lr, momentum)
TINY = 1e-30
NAME = "server_optimizer"
NOTE = "server_optimizer: batches of a push: {}; optimizer.iterations and schedules count {}"


class Shared(NamedTuple):
    """State of the algorithm. A moment that the optimizer does not need is empty."""

    inner: State  # state of asgd or ssgd, which decides when to update
    steps: int  # batches of the round's longest push
    m: list[Array]
    v: list[Array]


class FedOpt(NamedTuple):
    """A server optimizer of the paper.

    Attributes:
        name: One of PAPER.
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

    def start(self, params: Tree) -> tuple[list[Array], list[Array]]:
        """Return the initial m and v."""
        v = [] if self.name == "sgd" else zip_map(lambda w: w * 0.0 + self.tau * self.tau, params)
        return zeros(params) if self.keep else [], v

    def step(self, g: list[Array], m: list[Array], v: list[Array]) -> tuple[list[Array], list[Array], list[Array]]:
        """Return the amounts to subtract from the weights, for g = -delta, and the new m and v."""
        if self.name == "sgd":
            m = with_momentum(m, g, self.keep) if self.keep else g
            return [self.eta * a for a in m], m if self.keep else [], v
        mean = with_momentum(m, [(1.0 - self.keep) * a for a in g], self.keep) if self.keep else g
        v = self._second(v, g)
        taken = zip_map(lambda m, v: self.eta * m / (v**0.5 + self.tau), mean, v)
        return taken, mean if self.keep else [], v

    def _second(self, v: list[Array], d: list[Array]) -> list[Array]:
        """Return the new second moment for the differences `d`."""
        if self.name == "adagrad":
            return zip_map(lambda v, d: v + d * d, v, d)
        if self.name == "adam":
            return running_square(v, d, self.beta2)
        part = 1.0 - self.beta2
        return zip_map(lambda v, d: v - part * d * d * (v - d * d) / (abs(v - d * d) + TINY), v, d)


class Keras(NamedTuple):
    """An optimizer of Keras: its state is the server's, and an update is the pseudo-gradient."""

    config: Mapping[str, Any]

    def start(self, params: Tree) -> tuple[list[Array], list[Array]]:
        """Return no moments."""
        return [], []

    def step(self, g: list[Array], m: list[Array], v: list[Array]) -> tuple[list[Array], list[Array], list[Array]]:
        """Return the pseudo-gradient, which the server gives to the optimizer."""
        return g, m, v


def rule(
    local_steps: int = 1,
    optimizer: Any = "sgd",
    lr: float | None = None,
    momentum: float | None = None,
    beta2: float | None = None,
    tau: float | None = None,
    sync: bool = False,
    worker_optimizer: str = "captured",
    **options: Any,
) -> AsyncAlgorithm:
    """Return FedOpt with the given server optimizer.

    Args:
        local_steps: K, number of batches between two pushes.
        optimizer: Server optimizer: "sgd", "adagrad", "adam" or "yogi" of the paper; the name of one of Keras's, in any
            case; or its config. "sgd", "adagrad" and "adam" are Keras's where `options` are given.
        lr: Learning rate, > 0; None: 1 for the paper's sgd, 0.01 for its others, Keras's default for Keras's.
        momentum: Momentum, in [0, 1); None: 0 for the paper's sgd, 0.9 for its others. An option for Keras's.
        beta2: Decay of the second moment of the paper's adam and yogi, in [0, 1); None: 0.99.
        tau: Constant added to the root of the second moment of the paper's, > 0; None: 0.001.
        sync: Whether the server averages the pushes of all workers in rounds, as in ssgd.
        worker_optimizer: "captured": workers train with the script's own optimizer.
        options: Options of Keras's optimizer.

    Raises:
        ValueError: If a parameter is out of range, or one of the paper's is given to Keras's.
    """
    require(local_steps >= 1, NAME, "local_steps must be >= 1", local_steps=local_steps)
    own = worker_optimizer == "captured"
    require(own, NAME, "worker_optimizer must be captured", worker_optimizer=worker_optimizer)
    run = _Algorithm(_chosen(optimizer, lr, momentum, beta2, tau, options), ssgd.rule() if sync else asgd.rule())
    note = NOTE.format(local_steps, "a worker's own batches" if sync else "all workers' batches")
    config = run.server.config if isinstance(run.server, Keras) else None
    if config is not None:
        note += f"; the server's {config['class_name']} is Keras's: it counts updates, and begins anew with --resume"
    functions = (run.init, run.pull, run.push, run.leave, run.join, run.flush, run.when.waits)
    return AsyncAlgorithm(*functions, note=note, local_steps=local_steps, optimizer=config)


class _Algorithm(NamedTuple):
    """FedOpt's functions. `when`: asgd or ssgd, which decides when to update."""

    server: FedOpt | Keras
    when: AsyncAlgorithm

    def init(self, params: Tree, workers: int) -> tuple[Shared, State]:
        inner, mine = self.when.init(params, workers)
        return Shared(inner, 0, *self.server.start(params)), mine

    def pull(self, shared: Shared, mine: State, params: Tree, hyper: Hyper) -> tuple[Tree | None, Shared, State]:
        sent, inner, mine = self.when.pull(shared.inner, mine, params, hyper)
        return sent, shared._replace(inner=inner), mine

    def push(
        self, shared: Shared, mine: State, params: Tree, push: Push
    ) -> tuple[AlgorithmUpdate | None, Shared, State]:
        update, inner, mine = self.when.push(shared.inner, mine, params, push)
        return *self._applied(update, shared._replace(steps=max(shared.steps, push.batches)), inner), mine

    def leave(self, shared: Shared, mine: State, worker: int) -> Shared:
        return shared._replace(inner=self.when.leave(shared.inner, mine, worker))

    def join(self, shared: Shared, worker: int) -> Shared:
        return shared._replace(inner=self.when.join(shared.inner, worker))

    def flush(self, shared: Shared, params: Tree) -> tuple[AlgorithmUpdate | None, Shared]:
        update, inner = self.when.flush(shared.inner, params)
        return self._applied(update, shared, inner)

    def _applied(
        self, update: AlgorithmUpdate | None, shared: Shared, inner: State
    ) -> tuple[AlgorithmUpdate | None, Shared]:
        """Run one step of the server's optimizer along -`update.gradient`, which is the paper's delta."""
        if update is None:
            return None, shared._replace(inner=inner)
        taken, m, v = self.server.step(update.gradient, shared.m, shared.v)
        return AlgorithmUpdate(taken, steps=shared.steps), Shared(inner, 0, m, v)


def _chosen(
    optimizer: Any,
    lr: float | None,
    momentum: float | None,
    beta2: float | None,
    tau: float | None,
    options: dict[str, Any],
) -> FedOpt | Keras:
    """Return the optimizer that the parameters of `rule` name. Raises ValueError for an invalid one."""
    if not options and isinstance(optimizer, str) and optimizer in PAPER:
        return _paper(optimizer, lr, momentum, beta2, tau)
    require(beta2 is None and tau is None, NAME, "beta2 and tau go with the paper's", beta2=beta2, tau=tau)
    given = {"learning_rate": lr, "momentum": momentum}
    return _keras(optimizer, {**{k: v for k, v in given.items() if v is not None}, **options})


def _paper(name: str, lr: float | None, momentum: float | None, beta2: float | None, tau: float | None) -> FedOpt:
    """Return the paper's optimizer with defaults filled in. Raises ValueError for an invalid parameter."""
    eta, keep = PAPER[name]
    eta, keep = eta if lr is None else lr, keep if momentum is None else momentum
    server = FedOpt(name, eta, keep, 0.99 if beta2 is None else beta2, 1e-3 if tau is None else tau)
    require(server.eta > 0, NAME, "lr must be > 0", lr=lr)
    require(0 <= server.keep < 1, NAME, "momentum must be in [0, 1)", momentum=momentum)
    require(0 <= server.beta2 < 1, NAME, "beta2 must be in [0, 1)", beta2=beta2)
    require(server.tau > 0, NAME, "tau must be > 0", tau=tau)
    return server


def _keras(optimizer: Any, options: dict[str, Any]) -> Keras:
    """Return Keras's optimizer of that name, or of that config. Raises ValueError for another object."""
    if isinstance(optimizer, str):
        return Keras({"class_name": optimizer, "config": options})
    known = isinstance(optimizer, dict) and isinstance(optimizer.get("class_name"), str)
    require(known, NAME, "optimizer must be a name or a config with class_name and config", optimizer=optimizer)
    require(not options, NAME, "options stand in the optimizer's config", **options)
    return Keras(optimizer)
