"""All optimizers of a replica script: their exchanges, the pushes for them, and the state that workers synchronise."""

import contextlib
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import where
from fdt.compat.tensorflow import context
from fdt.errors import CaptureError
from fdt.keras.variables import build_optimizer, inner_optimizer, tensor_variable
from fdt.process_group import RankPush, ReplicaGroup
from nfdt import algorithms
from nfdt.replica.exchange import Apply, OptimizerExchange
from nfdt.replica.session_optimizers import inspected
from replica.exchange import GroupedExchange, arrays_of_rank_0
from replica.placement import PARTIAL


def added(group: ReplicaGroup, tensors: Sequence[Any], name: str) -> list[Any]:
    """Return each tensor, summed over the workers in float64."""
    arrays = [np.asarray(tensor, np.float64) for tensor in tensors]
    sums = GroupedExchange(group).replicated(name, arrays, [PARTIAL] * len(arrays))
    return [tf.cast(tf.constant(total), tensor.dtype) for total, tensor in zip(sums, tensors, strict=True)]


def become_rank_0s(group: ReplicaGroup, held: Mapping[str, Sequence[Any]]) -> None:
    """Give variables, by name, the values of rank 0's variables of that name. Another worker may have none yet."""
    arrays = {name: [np.asarray(v) for v in variables] for name, variables in held.items()}
    found = arrays_of_rank_0(group, arrays, "weights")
    for name in found if group.rank else ():  # rank 0 keeps its own: it has served pushes since it sent them
        for variable, value in zip(held.get(name, ()), found[name], strict=False):
            variable.assign(tf.cast(tf.constant(value), variable.dtype))


OF_OPTIMIZER = "_fdt_exchange"  # an attribute: optimizer and exchange have one lifetime
OF_FUNCTION = "_fdt_exchanges"  # of a tf.function: the exchanges in its traces, even if the script drops the optimizers


class _Calling(threading.local):
    function: Any = None  # the tf.function that this thread calls now


class OptimizerExchanges:
    """The exchanges of all optimizers.

    An exchange ends when the script drops its optimizer. But rank 0 serves pushes for the optimizers that it has used
    until the next synchronisation; after it no worker uses a dropped one.

    Args:
        group: The process group.
        rule: The command line's algorithm, if any.
        of_sessions: Handles the pushes of sessions.
    """

    def __init__(self, group: ReplicaGroup, rule: str | None, of_sessions: Callable[[RankPush], None]) -> None:
        self._group, self._rule, self._of_sessions = group, rule, of_sessions
        self.applying = False  # whether an optimizer's own update runs now
        self.algorithms: dict[str, None] = {}  # names, in the order of their first optimizers
        self._born: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._last = -1  # number of an optimizer
        self._known: weakref.WeakValueDictionary[int, OptimizerExchange] = weakref.WeakValueDictionary()  # by number
        self._used: dict[int, OptimizerExchange] = {}  # exchanges used since the last synchronisation
        self._calling = _Calling()
        self._taus: Counter[int] = Counter()
        self._arrived: list[RankPush] = []
        self._models: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._last_model = -1
        self._samples = 0

    def made(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Replace an optimizer's __init__: number the optimizer.

        The order of creation identifies an optimizer on all workers. With fewer batches than workers, a worker may
        never use one of them.
        """
        self._number(optimizer)
        original(optimizer, *args, **kwargs)

    def _number(self, optimizer: Any) -> int:
        if optimizer not in self._born:
            self._last = self._born[optimizer] = self._last + 1
        return self._born[optimizer]

    def of(self, optimizer: Any, apply: Apply, variables: list[Any]) -> OptimizerExchange:
        """Return the optimizer's exchange. `apply(gradients, variables)` is the optimizer's own update."""
        exchange = self._own(optimizer) or self._made(optimizer, variables)
        exchange.use(apply)
        self._used[exchange.number] = exchange
        if self._calling.function is not None and not tf.executing_eagerly():
            vars(self._calling.function).setdefault(OF_FUNCTION, {})[exchange.number] = exchange
        return exchange

    def _own(self, optimizer: Any) -> OptimizerExchange | None:
        """Return the optimizer's exchange, but not one that a shallow copy of the optimizer has as an attribute."""
        found: OptimizerExchange | None = vars(optimizer).get(OF_OPTIMIZER)
        return found if found is not None and found.made_for() is optimizer else None

    def of_function(self, function: Any) -> Iterable[OptimizerExchange]:
        """Return the exchanges in the traces of a tf.function."""
        found: dict[int, OptimizerExchange] = vars(function).get(OF_FUNCTION, {})
        return found.values()

    def owned(self) -> list[tf.Variable]:
        """Return all variables that optimizers update, and the optimizers' own."""
        optimizers = [exchange.made_for() for exchange in self._exchanges()]
        own = [each.variables for each in optimizers if each is not None]
        held = [v for each in own for v in (each() if callable(each) else each)]
        return [*map(tensor_variable, held), *(v for exchange in self._exchanges() for v in exchange.raw)]

    @contextlib.contextmanager
    def within(self, function: Any) -> Iterator[None]:
        """Mark a call of a tf.function, on this worker or skipped for another. Only its tracing calls `of`."""
        before, self._calling.function = self._calling.function, function
        self._used |= vars(function).get(OF_FUNCTION, {})
        try:
            yield
        finally:
            self._calling.function = before

    def step(self, exchange: OptimizerExchange, apply: Apply, gradients: list[Any], variables: list[Any]) -> Any:
        """Exchange in place of the optimizer's update."""
        self.applying = True
        try:
            return exchange.step(apply, gradients, variables)
        finally:
            self.applying = False

    def count(self, samples: int) -> None:
        """Set the number of samples in the current batch."""
        self._samples = samples
        for exchange in self._exchanges():
            exchange.count(samples)

    def taus(self) -> Counter[int]:
        """Return the counts of all pushes by staleness."""
        for exchange in self._exchanges():
            self._taus.update(exchange.taus)
            exchange.taus.clear()
        return self._taus

    def _exchanges(self) -> Iterator[OptimizerExchange]:
        """Yield the exchanges of existing optimizers, in their order."""
        return (exchange for _, exchange in sorted(self._known.items()))

    def _made(self, optimizer: Any, variables: list[Any]) -> OptimizerExchange:
        seen = inspected(optimizer)
        name = self._rule or algorithms.default_for(seen, variables)
        self.algorithms[name], rule = None, algorithms.make(name)
        number, made_for = self._number(optimizer), weakref.ref(optimizer)
        made = OptimizerExchange(number, seen, variables, rule, self._group, self.poll, made_for, self._samples)
        if self._group.rank and getattr(seen, "use_ema", False):
            build_optimizer(seen, variables)  # `fit` reads the averages in the end, not their values on this rank
        self._known[made.number] = vars(optimizer)[OF_OPTIMIZER] = made
        return made

    # -- rank 0 serves ---------------------------------------------------------------------------------------------
    def poll(self, number: int | None, absent: list[int] | None = None) -> list[RankPush]:
        """Return the pushes that have arrived for one optimizer, which is in use; pushes for others wait.

        Args:
            number: Number of the optimizer. None: return pushes for sessions. No optimizer's step runs then, so the
                other pushes are answered at once, because rank 0 may next wait for their worker.
            absent: Positions of the optimizer's variables without a gradient; pushes that differ in them wait.
        """
        if number is not None:
            self._used[number] = self._known[number]
        self._arrived += self._group.pushes()
        alike = [(p.header.get("optimizer"), p.header.get("absent")) == (number, absent) for p in self._arrived]
        mine = list(itertools.compress(self._arrived, alike))
        self._arrived = [push for push, is_mine in zip(self._arrived, alike, strict=True) if not is_mine]
        if number is None:
            others, self._arrived = self._arrived, []
            for push in others:
                self.serve(push)
        return mine

    def serve(self, push: RankPush) -> None:
        """Serve a push that arrives while rank 0 waits outside its own steps."""
        waiting = [push]
        with self._serving():
            while waiting:
                push = waiting.pop(0)
                if "session" in push.header:
                    self._of_sessions(push)
                else:
                    self._serve_one(push)
                waiting, self._arrived = [*waiting, *self._arrived], []  # pushes that arrived in between

    def serve_waiting(self) -> None:
        """Serve the pushes that no step of rank 0 took, because it has gradients of other variables than they have."""
        served = [push for push in self._arrived if push.header.get("optimizer") in self._known]
        self._arrived = [push for push in self._arrived if push.header.get("optimizer") not in self._known]
        with self._serving():
            for push in served:
                self._serve_one(push)

    @contextlib.contextmanager
    def _serving(self) -> Iterator[None]:
        """Within the context, rank 0 applies pushes by the optimizers' own updates."""
        before, self.applying = self.applying, True
        try:
            yield
        finally:
            self.applying = before

    def _serve_one(self, push: RankPush) -> None:
        exchange = self._known.get(push.header["optimizer"])
        if exchange is None:
            raise CaptureError(
                "rank 0 applies the updates, so it must have used every optimizer that another rank uses. "
                f"Rank {push.rank} pushed for an optimizer that rank 0, at {where()}, has not used"
            )
        self._used[exchange.number] = exchange
        with context.eager_mode():  # rank 0 may be in a session's graph
            exchange.serve(exchange.apply, push)

    # -- synchronisation -------------------------------------------------------------------------------------------
    def trains(self, model: Any) -> None:
        """Synchronise also the variables that training steps change besides weights, such as BatchNorm averages."""
        if model not in self._models:
            self._last_model = self._models[model] = self._last_model + 1
        optimizer = getattr(model, "optimizer", None)
        exchange = None if optimizer is None else self._own(inner_optimizer(optimizer))
        if exchange is not None:
            self._used[exchange.number] = exchange

    def meet(self, progress: Sequence[int] = (), assigned: Sequence[tf.Variable] = ()) -> Sequence[int]:
        """Synchronise all workers: each gets rank 0's weights, also the `assigned` ones, and rank 0's `progress`."""
        arrived, self._arrived = self._arrived, []
        for push in arrived:
            self.serve(push)
        # When all ranks have reached this collective, rank 0 has served the others' last pushes.
        of_rank_0: Sequence[int] = self._group.broadcast(progress, "agreement")
        for exchange in self._exchanges():
            exchange.meets()
        moved = {id(v) for exchange in self._exchanges() if exchange.changed for v in exchange.raw}
        held = {
            f"optimizer {exchange.number}": exchange.held
            for exchange in self._exchanges()
            if self._group.rank or any(id(v) in moved for v in exchange.raw)
        }
        held |= {f"model {number}": moving(model) for model, number in self._models.items()}
        self.alike({**held, "assigned": list(assigned)} if assigned else held)
        self.taus()
        self._used.clear()
        return of_rank_0

    def alike(self, held: Mapping[str, list[Any]]) -> None:
        """Give variables rank 0's values. Rank 0's names count, because a worker without a batch may lack some."""
        become_rank_0s(self._group, {name: [tensor_variable(v) for v in each] for name, each in held.items()})
        for exchange in self._exchanges():
            exchange.met()


def moving(model: Any) -> list[Any]:
    """Return the variables that the layers' forward pass changes, without those of frozen layers and random states."""
    layers = (layer for layer in model._flatten_layers() if layer.trainable)
    names = ("_non_trainable_variables", "_non_trainable_weights")  # Keras 3's, tf_keras's
    found = [v for layer in layers for v in next((vars(layer)[n] for n in names if n in vars(layer)), ())]
    return [v for v in found if (raw := tensor_variable(v)).dtype.is_floating or raw.dtype.is_integer]


def update_of(optimizer: Any) -> Apply:
    """Return an optimizer's own update, as Keras defines it."""
    if hasattr(optimizer, "apply"):
        return lambda gradients, variables: optimizer.apply(gradients, variables)
    return lambda gradients, variables: optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
