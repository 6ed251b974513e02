"""One worker of a replica script: what is replaced in TensorFlow and Keras while the script runs.

A worker takes every n-th batch of a training loop's dataset; of a loop that calls its step without one, every n-th
call. Within such a loop no worker waits for the others; where the loop's data end they meet and hold the same weights.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.operators import control_flow
from tensorflow.python.client.session import BaseSession
from tensorflow.python.data.ops import dataset_ops, iterator_ops
from tensorflow.python.eager.polymorphic_function import function_context, polymorphic_function
from tensorflow.python.training import optimizer as optimizers

from client_shim.replica import classes
from client_shim.replica.metric_state import Metrics
from client_shim.replica.reads import agreed_reads
from client_shim.replica.replacing import entry
from client_shim.replica.sessions import patches as session_patches
from client_shim.replica.steps import Site, function_trains, loop_at_work, where
from fdt.errors import CaptureError
from fdt.patches import Patch, patched
from fdt.service.meeting import Guest, Host, Pushed
from nfdt import rulebook, staleness
from nfdt.replica.by_hand import ByHand
from nfdt.replica.exchange import Exchange
from nfdt.replica.old import looked_at
from nfdt.replica.sessions import Sessions
from nfdt.replica.together import added, become_rank_0s
from nfdt.replica.turns import Turns, rows_of

UNDIVIDED = (
    "a training step must be a tf.function's or train_on_batch, in a loop over a tf.data dataset, or a tape in a loop "
    "with its gradients taken beside it, for workers to take turns. Received: a step at {where}; hfdt run divides "
    "more; --allow-replicated has every worker do all work"
)
FIT = (
    "fit beside training loops of the script's own is not divided by nfdt. Received: fit at {where}; use hfdt run, or "
    "--allow-replicated, which has every worker do all of it"
)


class Rank:
    """`options`: the command line's (rule, allow_replicated)."""

    def __init__(self, meeting: Host | Guest, options: Mapping[str, str]) -> None:
        self._meeting, self._options = meeting, options
        self._rank, self._size = meeting.rank, meeting.size
        self._allow_replicated = options.get("allow_replicated") == "1"
        self._exchanges: dict[int, Exchange] = {}  # by the optimizer's id
        self._applies: dict[int, Any] = {}  # its own apply, by the exchange's number
        self._arrived: list[Pushed] = []
        self._site: Site | None = None
        self._turns = Turns(self._rank, self._size, self._begin, self._count)
        self.by_hand = None if self._allow_replicated else ByHand(self._turns, self._given, self._count, self._meet)
        self._applying = self._fitting = self._met = self._begun = False
        self._counts = {"steps": 0, "samples": 0, "replicated": 0, "sent_bytes": 0}
        replicated = self._replicate if self._allow_replicated else None
        self._sessions = Sessions(meeting, options.get("rule"), lambda: self._poll(None), replicated)
        self.metrics = Metrics(self._add, self._counts_here, self._training, self._others, self._unsure)
        if isinstance(meeting, Host):
            meeting.serve = self._serve

    def counts(self) -> Mapping[str, Any]:
        taus = Counter([*(tau for e in self._exchanges.values() for tau in e.taus), *self._sessions.taus])
        of_sessions = {name: getattr(self._sessions, name) for name in ("steps", "samples", "sent_bytes")}
        counts = {name: count + of_sessions.get(name, 0) for name, count in self._counts.items()}
        return {**counts, "extra": staleness.fields(taus)} if taus else counts

    def end(self) -> None:
        """The script has ended; rank 0 still serves those who have not."""
        self._sessions.meet()
        self._meet()

    # -- TensorFlow ------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def in_tensorflow(self) -> Iterator[None]:
        patches = [
            Patch(iterator_ops.OwnedIterator, "_next_internal", self._next),
            Patch(polymorphic_function.Function, "__call__", self._call),
            Patch(function_context, "make_function_context", self._context),
            Patch(BaseSession, "close", self._sessions.closing),
            Patch(optimizers.Optimizer, "apply_gradients", self._sessions.optimizers.apply_gradients),
        ]
        loops = control_flow.for_loop_registry._registry
        in_graph = functools.partial(self._for_dataset, loops[dataset_ops.DatasetV2])
        with (
            session_patches.installed(self._sessions, self),
            patched(patches),
            agreed_reads(self._agreed, ("__bool__",)),
            entry(loops, dataset_ops.DatasetV2, in_graph),
        ):
            yield

    def _for_dataset(self, original: Any, *args: Any) -> Any:
        """A loop over a dataset in a graph: a step that is called in turn would take all of its batches by itself."""
        if self._turns.calling and not self._allow_replicated:
            raise CaptureError(UNDIVIDED.format(where=where()))
        return original(*args)

    def _next(self, original: Any, iterator: Any) -> Any:
        """This worker's next batch; those between are the others'."""
        site = loop_at_work() if tf.executing_eagerly() and not self._turns.calling else None
        if site is None or not site.leads:
            return original(iterator)
        begun = "_fdt_begun" in vars(iterator)
        if not begun:
            self._leave(site)
            self._met, self._begun = False, True
        skip = self._size - 1 if begun else self._rank
        iterator._fdt_begun = True
        try:
            for _ in range(skip):
                original(iterator)
            element = original(iterator)
        except tf.errors.OutOfRangeError:
            self._site = None
            self._meet()
            raise
        self._site = site
        self._count(rows_of(element))
        return element

    def _leave(self, site: Site | None = None) -> None:
        """Something else begins, the loop at `site`: one that was left by `break` has ended, and its worker meets the
        others at last. So all workers meet once for every loop, however many batches each has had of it."""
        if self._site is not None and (self._site == site or not self._site.running()):
            self._site = None
            self._meet()

    def _call(self, original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        """A tf.function: a training step outside a loop over batches is called in turn."""
        run = functools.partial(original, function, *args, **kwargs)
        if not tf.executing_eagerly():
            return run()
        if not function_trains(function):
            return self._turns.watched(function, run)
        if function._jit_compile:
            function._jit_compile = False  # XLA holds no exchange
        if self._turns.now() or self._in_turn():
            return self._turns.watched(function, run)
        if not self._allow_replicated and any(map(_has_batches, tf.nest.flatten((args, kwargs)))):
            raise CaptureError(UNDIVIDED.format(where=where()))
        return self._turns.call(function, (args, kwargs), run)

    def _begin(self) -> None:
        """A step that is taken in turn."""
        self._leave()
        self._met, self._begun = False, True

    def _context(self, original: Any, scope_type: Any = None) -> Any:
        """Part of a trace's key: some traces push, others do not."""
        made = original(scope_type)
        kind = self._turns.now() or ("mine" if self._in_turn() else "")
        return function_context.function_cache.FunctionContext(made.context, (made.scope_type, kind))

    def _in_turn(self) -> bool:
        """Is a batch that is this worker's at hand?"""
        return self._turns.now() == "mine" or self._given()

    def _counts_here(self) -> bool:
        """Is it that of a step?"""
        return self._given() or (self._turns.now() == "mine" and self._turns.in_step())

    def _unsure(self) -> bool:
        """May another have had batches where this worker has had none? Within a loop of calls none waits for that."""
        return self._begun and not self._turns.running()

    def _others(self) -> bool:
        """Is it another's, whose samples that one counts?"""
        return self._turns.now() == "others" and self._turns.in_step()

    def _given(self) -> bool:
        """Has a dataset's loop given this worker a batch?"""
        return self._site is not None and self._site.running()

    def _training(self) -> bool:
        """Is a training loop on the stack?"""
        return bool(self._turns.now()) or self._given()

    def _count(self, samples: int) -> None:
        self._counts["steps"] += 1
        self._counts["samples"] += samples
        for exchange in self._exchanges.values():
            exchange.samples = samples

    # -- Keras -----------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def in_keras(self, flavor: str) -> Iterator[None]:
        with patched(classes.patches(self, flavor)):
            yield

    def applying(self) -> bool:
        return self._applying or self._fitting

    def exchanged(self, optimizer: Any, apply: Any, gradients: list[Any], variables: list[Any]) -> Any:
        whose = self._turns.now()
        if not whose and not self._in_turn():
            return self._undivided(apply, gradients, variables)
        exchange = self._exchanges.get(id(optimizer)) or self._made(optimizer, variables)
        self._applies[exchange.number] = exchange, apply
        self._turns.applied += 1
        if whose == "others":
            return None
        self._applying = True
        try:
            return exchange.step(apply, gradients, variables)
        finally:
            self._applying = False

    def _made(self, optimizer: Any, variables: list[Any]) -> Exchange:
        seen = looked_at(optimizer)
        rule = rulebook.make(self._options.get("rule") or rulebook.default_for(seen, variables))
        number = len(self._exchanges)
        made = Exchange(number, seen, variables, rule, self._meeting, self._poll)
        self._exchanges[id(optimizer)] = made
        return made

    def _undivided(self, apply: Any, gradients: list[Any], variables: list[Any]) -> Any:
        if not self._allow_replicated:
            raise CaptureError(UNDIVIDED.format(where=where()))
        self._replicate()
        return apply(gradients, variables)

    def _replicate(self) -> None:
        self._counts["replicated"] += 1

    def train_on_batch(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if self._turns.now() or self._in_turn():
            return original(model, *args, **kwargs)
        return self._turns.call(model, (args, kwargs), lambda: original(model, *args, **kwargs))

    def fit(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._allow_replicated:
            raise CaptureError(FIT.format(where=where()))
        self._fitting = True
        try:
            return original(model, *args, **kwargs)
        finally:
            self._fitting = False

    # -- rank 0 serves; all meet -----------------------------------------------------------------------------------
    def _poll(self, number: int | None) -> list[Pushed]:
        """The pushes that have come for one optimizer, None: for sessions; others wait for theirs."""
        assert isinstance(self._meeting, Host)
        self._arrived += self._meeting.arrived()
        mine = [push for push in self._arrived if push.header.get("optimizer") == number]
        self._arrived = [push for push in self._arrived if push.header.get("optimizer") != number]
        return mine

    def _serve(self, push: Pushed) -> None:
        """A push that comes while rank 0 waits, its own part of the loop done."""
        before, self._applying = self._applying, True
        waiting = [push]
        try:
            while waiting:
                push = waiting.pop(0)
                if "session" in push.header:
                    self._sessions.serve(push)
                else:
                    exchange, apply = self._applies[push.header["optimizer"]]
                    exchange.serve(apply, push)
                waiting, self._arrived = [*waiting, *self._arrived], []  # those of other optimizers that came meanwhile
        finally:
            self._applying = before

    def _meet(self) -> None:
        """All come here when the data of a loop have ended; they leave with rank 0's weights."""
        if self._met:
            return
        self._met = True
        arrived, self._arrived = self._arrived, []
        for push in arrived:
            self._serve(push)
        exchanges = {exchange.number: exchange for exchange in self._exchanges.values()}
        shapes = {number: [v.shape.as_list() for v in exchange.held] for number, exchange in exchanges.items()}
        for number, known in self._meeting.same("optimizers", sorted(shapes.items()), where):
            mine = exchanges[number].held if number in exchanges else []  # a worker may have had no batch at all
            become_rank_0s(self._meeting, mine, known, f"weights of optimizer {number}")

    def _agreed(self, tensor: Any) -> Any:
        """A decision outside training loops is rank 0's; numbers stay a worker's own: it may have more of them."""
        if self._training() or self._turns.running():
            return tensor
        self._meet()
        return tf.constant(self._meeting.same("a decision", tensor.numpy().item(), where), tensor.dtype)

    def _add(self, tensors: Any, name: str) -> list[Any]:
        self._meet()
        return added(self._meeting, list(tensors), name)


def _has_batches(argument: Any) -> bool:
    """Does a step function take batches of it by itself?"""
    return isinstance(argument, (tf.data.Dataset, tf.data.Iterator))
