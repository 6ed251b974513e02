"""Interface of an asynchronous algorithm: six pure functions that the server's scheduler calls in the order of events.

    init(params, workers)               -> (shared, mine)         mine: the initial state of every worker
    pull(shared, mine, params, hyper)   -> (tree to send | None: the worker waits, shared, mine)
    push(shared, mine, params, push)    -> (AlgorithmUpdate | None: nothing is applied now, shared, mine)
    leave(shared, mine, worker)         -> shared                 required where other workers wait for this one
    join(shared, worker)                -> shared                 a worker that returns or is new; mine is as after init
    flush(shared, params)               -> (AlgorithmUpdate | None, shared)

The scheduler calls `flush` when no worker computes and either the algorithm makes every asking worker wait, or the
epoch ends. `flush` applies the pushes that the algorithm still holds, because no other push will come. So a round ends
even if a worker leaves or the data end within it.

State is any tree (nfdt/tree.py). Decisions use Python values, such as `worker`, `seconds`, `batches`, and numbers in
the state. `tau`, `samples`, `eta` and `mu` are arrays, and a decision by an array is an error. Arithmetic uses
operators and the functions of nfdt/tree.py, so one file runs on NumPy and is compiled in the server. `params` and all
arguments are immutable snapshots; `params` is a list of arrays, one per trainable variable, in its shape and dtype.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from nfdt.tree import Array, Tree

State = Tree


@dataclass(frozen=True)
class Hyper:
    """Values that a pull may read besides the state and the weights.

    Attributes:
        worker: Number of the worker that pulls.
        eta: Current learning rate of the captured optimizer, 0-d.
        mu: Current momentum of the captured optimizer, 0-d.
    """

    worker: int
    eta: Array
    mu: Array


@dataclass(frozen=True)
class Push:
    """One gradient that a worker pushed.

    `seconds` and `batches` are Python values. Use them for decisions only: arithmetic with one of them is compiled anew
    for each of its values.

    Attributes:
        worker: Number of the worker.
        gradient: List of arrays, one per trainable variable and in its shape. After local steps: the weights that the
            worker pulled minus the weights that it reached.
        tau: Staleness: number of updates applied since this worker's pull, 0-d.
        samples: Number of samples in the batch, 0-d.
        eta: Current learning rate of the captured optimizer, 0-d.
        mu: Current momentum of the captured optimizer, 0-d.
        before: The weights before the latest update. Equal to the weights if another program has written them since.
        seconds: Time in seconds that the worker computed for this push.
        batches: Number of batches in this push.
    """

    worker: int
    gradient: list[Array]
    tau: Array
    samples: Array
    eta: Array
    mu: Array
    before: list[Array]
    seconds: float = 0.0
    batches: int = 1


@dataclass(frozen=True)
class AlgorithmUpdate:
    """Arguments of one update of the captured optimizer.

    Attributes:
        gradient: List of arrays, one per trainable variable and in its shape.
        lr_scale: Factor on the optimizer's learning rate, 0-d or a number.
        momentum: "captured": the optimizer applies its own momentum. "algorithm": the optimizer's momentum is off, and
            `gradient` is the algorithm's whole direction mu v + g (nfdt/model/variables.py). `own_momentum` of
            AsyncAlgorithm decides which.
        fresh: The g of that direction, whose squares an adaptive optimizer accumulates. None: all of `gradient`.
        steps: If given, the captured optimizer only counts this number of steps. The server subtracts `gradient` from
            the weights unchanged, or applies it with the algorithm's `optimizer` where there is one.
    """

    gradient: list[Array]
    lr_scale: Array = 1.0
    momentum: Literal["captured", "algorithm"] = "captured"
    fresh: list[Array] | None = None
    steps: int | None = None


def without_state(params: Tree, workers: int) -> tuple[State, State]:
    """Return no state: an `init`."""
    return None, None


def require(holds: bool, rule: str, wanted: str, **received: Any) -> None:
    """Raise ValueError with the received parameter of `rule` unless `holds`."""
    if not holds:
        raise ValueError(f"{rule}: {wanted}. Received: {', '.join(f'{k}={v}' for k, v in received.items())}")


def no_worker_waits(shared: State, mine: State, worker: int) -> State:
    """Return `shared` unchanged: the default of `leave`."""
    return shared


def no_worker_counts(shared: State, worker: int) -> State:
    """Return `shared` unchanged: the default of `join`."""
    return shared


def without_member(shared: State, mine: State, worker: int) -> State:
    """Return `shared` without the worker among its `members`: the `leave` of algorithms that wait for members."""
    return replace(shared, members=shared.members - {worker})


def with_member(shared: State, worker: int) -> State:
    """Return `shared` with the worker among its `members`: the `join` of algorithms that wait for members."""
    return replace(shared, members=shared.members | {worker})


def nothing_held(shared: State, params: Tree) -> tuple[AlgorithmUpdate | None, State]:
    """Return no update: the default of `flush`."""
    return None, shared


@dataclass(frozen=True)
class AsyncAlgorithm:
    """The six functions of an asynchronous algorithm, and its properties.

    Attributes:
        init: Called once when training starts, and again for the state of a worker that joins.
        pull: Called when a worker asks for weights. Returns the weights to send, or None to make the worker wait.
        push: Called when a gradient arrives. Returns the update to apply, or None.
        leave: Called when a worker leaves.
        join: Called when a worker joins.
        flush: Called when no worker computes and all asking workers wait, and at the end of an epoch.
        waits: Whether a worker may wait for other workers. Overlapped steps then gain nothing.
        holds: Whether a push may be held for a later update, or dropped. Overlapped steps then make it more stale.
        own_momentum: If given, it returns whether all updates with this `shared` have momentum "algorithm". Clipping by
            the captured optimizer is then off in updates, and applies to each gradient before `push` receives it.
        needs_sgd: Whether the arithmetic holds only if an update is the learning rate times the direction, because
            gradients are taken at points ahead of the weights. One worker then differs from one machine, too.
        note: Message printed when training starts: the meaning of an epoch, of `iterations` and of a schedule, where it
            differs from training on one machine.
        local_steps: If given, a worker trains with the captured optimizer on this number of batches, from the weights
            that it pulled. It pushes the difference (nfdt/worker/local_steps.py). Each update then has `steps`.
        optimizer: If given, the optimizer of Keras that applies updates on the server in place of the captured one, as
            keras.optimizers.serialize writes it (nfdt/model/settings.py). The captured one counts the `steps`
            of each AlgorithmUpdate; None: 1.
        micro_steps: Number of parts of a batch on which a worker takes steps of plain SGD, one after another. Their
            gradients' mean is the pushed gradient (nfdt/worker/step.py).
    """

    init: Callable[[Tree, int], tuple[State, State]]
    pull: Callable[[State, State, Tree, Hyper], tuple[Tree | None, State, State]]
    push: Callable[[State, State, Tree, Push], tuple[AlgorithmUpdate | None, State, State]]
    leave: Callable[[State, State, int], State] = no_worker_waits
    join: Callable[[State, int], State] = no_worker_counts
    flush: Callable[[State, Tree], tuple[AlgorithmUpdate | None, State]] = nothing_held
    waits: bool = False
    holds: bool = False
    own_momentum: Callable[[State], bool] | None = None
    needs_sgd: bool = False
    note: str = ""
    local_steps: int | None = None
    optimizer: Mapping[str, Any] | None = None
    micro_steps: int = 1

    @property
    def batches_per_push(self) -> int:
        """Number of batches that a worker trains on for one push."""
        return self.local_steps or 1

    @property
    def exact_alone(self) -> bool:
        """Whether one lane has the numbers of one machine; the optimizer's own momentum may be Nesterov's."""
        try:
            own = self.own_momentum is not None and self.own_momentum(self.init([np.ones(1, np.float32)], 1)[0])
        except Exception:  # a file's algorithm that asks for other parameters
            own = True
        return not (self.needs_sgd or own) and self.optimizer is None

    @property
    def immediate(self) -> bool:
        """Whether each push is one gradient, which the captured optimizer applies when it arrives."""
        whole = self.local_steps is None and self.micro_steps == 1
        return whole and self.optimizer is None and not (self.waits or self.holds)
