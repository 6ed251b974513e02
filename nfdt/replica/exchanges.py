"""All optimizers of a replica script: their exchanges, the pushes that come for them, and what all workers hold alike
when they meet."""

import contextlib
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from client_shim.replica.steps import where
from fdt.errors import CaptureError
from fdt.keras.variables import inner_optimizer, tensor_variable
from fdt.process_group.group import Push, ReplicaGroup
from nfdt import algorithm_registry
from nfdt.replica.compat_optimizer import looked_at
from nfdt.replica.exchange import Apply, OptimizerExchange, build
from nfdt.replica.sync import become_rank_0s

OF_OPTIMIZER = "_fdt_exchange"  # an attribute, so an optimizer and its exchange go together
OF_FUNCTION = "_fdt_exchanges"  # of a tf.function: those in its traces, whatever the script does with the optimizers


class _Calling(threading.local):
    function: Any = None  # the tf.function that this thread calls


class OptimizerExchanges:
    """`rule`: the command line's, if any. `of_sessions`: is given the pushes that are sessions'.

    Optimizers that the script has dropped go, with the weights that they trained. But rank 0 serves the others' pushes
    for those that it has used itself until all have met: behind that none of them is used by any worker.
    """

    def __init__(self, group: ReplicaGroup, rule: str | None, of_sessions: Callable[[Push], None]) -> None:
        self._group, self._rule, self._of_sessions = group, rule, of_sessions
        self.applying = False  # is an optimizer's own update under way?
        self._born: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._last = -1  # number of an optimizer
        self._known: weakref.WeakValueDictionary[int, OptimizerExchange] = weakref.WeakValueDictionary()  # by number
        self._used: dict[int, OptimizerExchange] = {}  # of these, since all met
        self._calling = _Calling()
        self._taus: Counter[int] = Counter()
        self._arrived: list[Push] = []
        self._models: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._last_model = -1
        self._samples = 0

    def made(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """In place of an optimizer's __init__. By the order in which they are made all workers know one from another: a
        worker may never come to use one, as there are fewer batches than workers."""
        self._number(optimizer)
        original(optimizer, *args, **kwargs)

    def _number(self, optimizer: Any) -> int:
        if optimizer not in self._born:
            self._last = self._born[optimizer] = self._last + 1
        return self._born[optimizer]

    def of(self, optimizer: Any, apply: Apply, variables: list[Any]) -> OptimizerExchange:
        """The optimizer's. `apply(gradients, variables)`: its own update."""
        exchange = self._own(optimizer) or self._made(optimizer, variables)
        exchange.apply = apply
        self._used[exchange.number] = exchange
        if self._calling.function is not None and not tf.executing_eagerly():
            vars(self._calling.function).setdefault(OF_FUNCTION, {})[exchange.number] = exchange
        return exchange

    def _own(self, optimizer: Any) -> OptimizerExchange | None:
        """The exchange that was made for it: a shallow copy of an optimizer has the original's as an attribute."""
        found: OptimizerExchange | None = vars(optimizer).get(OF_OPTIMIZER)
        return found if found is not None and found.made_for() is optimizer else None

    def of_function(self, function: Any) -> Iterable[OptimizerExchange]:
        """Those in its traces."""
        found: dict[int, OptimizerExchange] = vars(function).get(OF_FUNCTION, {})
        return found.values()

    @contextlib.contextmanager
    def within(self, function: Any) -> Iterator[None]:
        """A tf.function is being called, on this worker or, in its turn, on another: `of` may be asked while it is
        traced, and is not where it is traced already."""
        before, self._calling.function = self._calling.function, function
        self._used |= vars(function).get(OF_FUNCTION, {})
        try:
            yield
        finally:
            self._calling.function = before

    def step(self, exchange: OptimizerExchange, apply: Apply, gradients: list[Any], variables: list[Any]) -> Any:
        """In place of the optimizer's update."""
        self.applying = True
        try:
            return exchange.step(apply, gradients, variables)
        finally:
            self.applying = False

    def count(self, samples: int) -> None:
        """Of the batch at hand."""
        self._samples = samples
        for exchange in self._exchanges():
            exchange.samples = samples

    def taus(self) -> Counter[int]:
        """Of all pushes."""
        for exchange in self._exchanges():
            self._taus.update(exchange.taus)
            exchange.taus.clear()
        return self._taus

    def _exchanges(self) -> Iterator[OptimizerExchange]:
        """In their order. Of optimizers that the script has not dropped."""
        return (exchange for _, exchange in sorted(self._known.items()))

    def _made(self, optimizer: Any, variables: list[Any]) -> OptimizerExchange:
        seen = looked_at(optimizer)
        rule = algorithm_registry.make(self._rule or algorithm_registry.default_for(seen, variables))
        made = OptimizerExchange(self._number(optimizer), seen, variables, rule, self._group, self.poll)
        made.made_for = weakref.ref(optimizer)
        made.samples = self._samples
        if self._group.rank and getattr(seen, "use_ema", False):
            build(seen, variables)  # which `fit` looks at in the end; what it holds here is not used
        self._known[made.number] = vars(optimizer)[OF_OPTIMIZER] = made
        return made

    # -- rank 0 serves ---------------------------------------------------------------------------------------------
    def poll(self, number: int | None) -> list[Push]:
        """Return the pushes that have come for one optimizer, which is in use; others wait for theirs.

        None: return those for sessions. No optimizer's step is under way then, so the others are answered at once:
        rank 0 may be about to wait for their worker.
        """
        if number is not None:
            self._used[number] = self._known[number]
        self._arrived += self._group.pushes()
        mine = [push for push in self._arrived if push.header.get("optimizer") == number]
        self._arrived = [push for push in self._arrived if push.header.get("optimizer") != number]
        if number is None:
            others, self._arrived = self._arrived, []
            for push in others:
                self.serve(push)
        return mine

    def serve(self, push: Push) -> None:
        """A push that comes while rank 0 waits, its own part of the loop done."""
        before, self.applying = self.applying, True
        waiting = [push]
        try:
            while waiting:
                push = waiting.pop(0)
                if "session" in push.header:
                    self._of_sessions(push)
                else:
                    self._serve_one(push)
                waiting, self._arrived = [*waiting, *self._arrived], []  # those of other optimizers that came meanwhile
        finally:
            self.applying = before

    def _serve_one(self, push: Push) -> None:
        exchange = self._known.get(push.header["optimizer"])
        if exchange is None:
            raise CaptureError(
                "rank 0 must have used every optimizer that another does: it applies the updates. Received: a gradient "
                f"of rank {push.rank}'s for one that rank 0, at {where()}, has not"
            )
        self._used[exchange.number] = exchange
        with context.eager_mode():  # rank 0 may be in a graph of a session's by now
            exchange.serve(exchange.apply, push)

    # -- all meet --------------------------------------------------------------------------------------------------
    def trains(self, model: Any) -> None:
        """What its training steps change besides weights is to be alike, too: the averages of BatchNorm."""
        if model not in self._models:
            self._last_model = self._models[model] = self._last_model + 1
        optimizer = getattr(model, "optimizer", None)
        exchange = None if optimizer is None else self._own(inner_optimizer(optimizer))
        if exchange is not None:
            self._used[exchange.number] = exchange

    def meet(self, number: int = 0) -> int:
        """All workers come here; they leave with rank 0's weights, and with its `number`."""
        arrived, self._arrived = self._arrived, []
        for push in arrived:
            self.serve(push)
        # Rank 0 has served the others' last pushes when all have come.
        number = self._group.broadcast(number, "a meeting")
        for exchange in self._exchanges():
            exchange.meets()
        moved = {id(v) for exchange in self._exchanges() if exchange.changed for v in exchange.raw}
        held = {
            f"optimizer {exchange.number}": exchange.held
            for exchange in self._exchanges()
            if self._group.rank or any(id(v) in moved for v in exchange.raw)
        }
        held |= {f"model {number}": moving(model) for model, number in self._models.items()}
        self.alike(held)
        self.taus()
        self._used.clear()
        return number

    def alike(self, held: Mapping[str, list[Any]]) -> None:
        """Give variables what rank 0's hold. A worker that had no batch may have none yet: rank 0's names count."""
        become_rank_0s(self._group, {name: [tensor_variable(v) for v in each] for name, each in held.items()})
        for exchange in self._exchanges():
            exchange.met()


def moving(model: Any) -> list[Any]:
    """The variables that the forward pass of its layers moves; frozen ones do not, nor are random numbers meant."""
    layers = (layer for layer in model._flatten_layers() if layer.trainable)
    names = ("_non_trainable_variables", "_non_trainable_weights")  # Keras 3's, tf_keras's
    found = [v for layer in layers for v in next((vars(layer)[n] for n in names if n in vars(layer)), ())]
    return [v for v in found if (raw := tensor_variable(v)).dtype.is_floating or raw.dtype.is_integer]
