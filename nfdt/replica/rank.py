"""One worker of a replica script: the patches of TensorFlow and Keras while the script runs.

Every worker runs each iteration of a training loop, and computes every n-th step of it (round_robin.py). Within such a
loop no worker waits for others, except for numbers that rank 0 reads; after it all workers synchronise.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from client_shim.replica import classes
from client_shim.replica.metric_state import Metrics
from client_shim.replica.sessions import patches as session_patches
from client_shim.replica.steps import function_takes, function_trains, loop_at_work, where
from fdt import compat
from fdt.compat.tensorflow import (
    BaseSession,
    Optimizer,
    control_flow,
    dataset_ops,
    function_context,
    polymorphic_function,
)
from fdt.errors import CaptureError
from fdt.keras.variables import build_optimizer, inner_optimizer
from fdt.patches import Patch, entry, patched
from fdt.process_group import ReplicaGroup
from nfdt.model import staleness_fields
from nfdt.replica.agreed_values import METHODS, AssignedWeights, ReadNumbers, agreed_reads
from nfdt.replica.exchanges import OptimizerExchanges, added, moving, update_of
from nfdt.replica.fitting import FitHooks
from nfdt.replica.round_robin import RoundRobin
from nfdt.replica.sessions import NfdtSessions
from nfdt.replica.side_effects import Handled, LostEffect, effects
from nfdt.replica.skippable_regions import SkippableRegions

UNDIVIDED = (
    "workers cannot take the training step at {where} in turn: it must be a tf.function with the batch as an argument, "
    "train_on_batch, or an eager step in a loop. hfdt run divides more steps; with --allow-replicated every worker "
    "does the whole work"
)
FIT = "fit must be called outside of a step that workers take in turn. Received: fit at {where}"


class RoundRobinRank:
    """One rank of a replica script. `options`: the command line's (rule, allow_replicated)."""

    def __init__(self, group: ReplicaGroup, options: Mapping[str, str]) -> None:
        self._group, self._options = group, options
        self._rank, self._size = group.rank, group.size
        self._allow_replicated = options.get("allow_replicated") == "1"
        self._exchanges = OptimizerExchanges(group, options.get("rule"), lambda push: self._sessions.serve(push))
        self._turns = RoundRobin(self._rank, self._size, self._begin, self._count)
        self.skippable_regions = SkippableRegions(self._turns, self._count, self._meet)
        self._fits = FitHooks(self._turns, group, self._count, self._meet)
        self._numbers = ReadNumbers(group, self._reads_own)
        self._assigned = AssignedWeights(self._exchanges.owned)
        self._fitting = self._met = self._begun = False
        self._counts = {"steps": 0, "samples": 0, "replicated": 0}
        replicated = self._replicate if self._allow_replicated else None
        self._sessions = NfdtSessions(group, options.get("rule"), lambda: self._exchanges.poll(None), replicated)
        self.metrics = Metrics(self._add, self._counts_here, self._training, self._others, self._unsure, self._size > 1)
        group.serve_by(self._exchanges.serve)

    def counts(self) -> Mapping[str, Any]:
        taus = self._exchanges.taus() + Counter(self._sessions.taus)
        of_sessions = {"steps": self._sessions.steps, "samples": self._sessions.samples}
        counts: dict[str, Any] = {name: count + of_sessions.get(name, 0) for name, count in self._counts.items()}
        counts["sent_bytes"] = self._group.sent_bytes
        counts["algorithm"] = self._options.get("rule") or ", ".join(self._exchanges.algorithms)
        return {**counts, "extra": staleness_fields(taus)} if taus else counts

    def steps(self) -> int:
        return self._counts["steps"] + self._sessions.steps

    def in_line(self) -> bool:
        return not (self._begun or self._fitting or self._sessions.begun)

    def end(self) -> None:
        """Synchronise after the end of the script; meanwhile rank 0 serves the ranks that still run."""
        self._sessions.meet()
        self._meet()

    # -- TensorFlow ------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def in_tensorflow(self) -> Iterator[None]:
        patches = [
            Patch(polymorphic_function.Function, "__call__", self._call),
            Patch(function_context, "make_function_context", self._context),
            Patch(BaseSession, "close", self._sessions.closing),
            Patch(Optimizer, "apply_gradients", self._sessions.optimizers.apply_gradients),
            Patch(Optimizer, "__init__", self._exchanges.made),
            self._assigned.patch(),
        ]
        loops = control_flow.for_loop_registry._registry
        in_graph = functools.partial(self._for_dataset, loops[dataset_ops.DatasetV2])
        with (
            session_patches.installed(self._sessions, self),
            patched(patches),
            agreed_reads(self._decision, ("__bool__",)),
            agreed_reads(self._numbers.of_tensor, METHODS),
            entry(loops, dataset_ops.DatasetV2, in_graph),
        ):
            yield

    def _for_dataset(self, original: Any, *args: Any) -> Any:
        """Refuse a loop over a dataset in a graph: a step that is called in turn would take all its batches."""
        if self._turns.calling and not self._allow_replicated:
            raise CaptureError(UNDIVIDED.format(where=where()))
        return original(*args)

    def _call(self, original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            return original(function, *args, **kwargs)
        run = functools.partial(self._run, original, function, *args, **kwargs)
        with self._exchanges.within(function):
            return self._called(function, run, args, kwargs)

    def _run(self, original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        for exchange in self._exchanges.of_function(function):
            self._turns.moves(exchange)
        output = original(function, *args, **kwargs)
        if self._turns.calling or self.skippable_regions.inside():
            found = effects(function, functools.partial(self._handled, function))
            self._turns.called(function, found)
            if self._turns.calling and self._size > 1:  # other workers' calls will be skipped
                for effect, by in found:
                    if isinstance(effect, LostEffect):
                        effect.move(by)
        return output

    def _handled(self, function: Any) -> Handled:
        """Return the variables of a traced function whose changes need no repetition, or are exchanged."""
        exchanges = list(self._exchanges.of_function(function))
        counts = [count for exchange in exchanges for count in exchange.counts]
        may_add_up = function_takes(function) and not function_trains(function)  # gradients
        exchanged = None if may_add_up else self._exchanges.owned()
        return Handled([*counts, *self.metrics.variables()], exchanged, [(e.counts[0], e.raw) for e in exchanges])

    def _called(self, function: Any, run: Any, args: Any, kwargs: Any) -> Any:
        """Call a tf.function: in turn if it is a training step, or computes gradients in a training loop."""
        trains = function_trains(function, (args, kwargs))
        if function._jit_compile and function_trains(function):
            function._jit_compile = False  # XLA cannot compile an exchange
        within = self._turns.calling or self.skippable_regions.inside()
        in_turn = trains or (function_takes(function, (args, kwargs)) and getattr(loop_at_work(), "trains", False))
        if within or not in_turn:
            return self._turns.watched(function, run)
        if not self._allow_replicated and any(map(_has_batches, tf.nest.flatten((args, kwargs)))):
            raise CaptureError(UNDIVIDED.format(where=where()))
        return self._turns.call(function, (args, kwargs), run, trains=trains)

    def _begin(self) -> bool:
        """Note the start of a step that is taken in turn. Return whether every worker must compute it."""
        self._met, self._begun = False, True
        self._exchanges.serve_waiting()
        self._group.next_moment()
        assigned = bool(self._assigned.variables())
        self._counts["replicated"] += assigned
        return assigned

    def _context(self, original: Any, scope_type: Any = None) -> Any:
        """Extend the key of a trace: some traces push, others do not."""
        made = original(scope_type)
        whose = self._turns.now()
        kind = whose if whose and self._turns.in_step() else ""
        return function_context.function_cache.FunctionContext(made.context, (made.scope_type, kind, self._turns.kind))

    def _counts_here(self) -> bool:
        """Return whether the current data belong to this worker's step."""
        return self._turns.now() == "mine" and self._turns.in_step()

    def _unsure(self) -> bool:
        """Return whether another worker may have had batches where this one had none. Loops of calls need no check."""
        return self._begun and not self._turns.running()

    def _others(self) -> bool:
        """Return whether the current data belong to another worker's step, which counts the samples."""
        return self._turns.now() == "others" and self._turns.in_step()

    def _training(self) -> bool:
        """Return whether a training loop is on the stack."""
        return bool(self._turns.calling) or self._turns.running()

    def _count(self, samples: int) -> None:
        self._counts["steps"] += 1
        self._counts["samples"] += samples
        self._exchanges.count(samples)

    # -- Keras -----------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def in_keras(self, flavor: str) -> Iterator[None]:
        made = (Patch(kind, "__init__", self._exchanges.made) for kind in compat.of(flavor).OPTIMIZERS)
        with patched([*classes.patches(self, flavor), *self._fits.patches(flavor), *made]):
            yield

    def applying(self) -> bool:
        """Return whether an optimizer's own update runs now."""
        return self._exchanges.applying or self._fitting

    def exchanged(self, optimizer: Any, apply: Any, gradients: list[Any], variables: list[Any]) -> Any:
        """Apply gradients with an exchange, in place of the optimizer's apply."""
        whose = self._turns.now() or self._at_apply(optimizer)
        if not whose:
            return self._undivided(apply, gradients, variables)
        self._turns.count_update()
        inner = inner_optimizer(optimizer)
        own = apply if inner is optimizer else update_of(inner)
        exchange = self._exchanges.of(inner, own, variables)
        self._turns.moves(exchange)
        if whose == "others":
            if inner is not optimizer or not self._rank:
                build_optimizer(optimizer, variables)  # it applies later, or reads gradients first
            exchange.move(1)
            return None
        if inner is not optimizer:
            return self._turns.as_one(lambda: apply(gradients, variables))  # calls this method for the inner one
        return self._exchanges.step(exchange, own, gradients, variables)

    def _at_apply(self, optimizer: Any) -> str:
        """Return whose turn it is for a step that cannot be skipped: every worker computes it."""
        whose = self._turns.at_apply(optimizer)
        self._counts["replicated"] += bool(whose)
        if whose == "mine":
            self._count(self.skippable_regions.rows)
        return whose

    def _undivided(self, apply: Any, gradients: list[Any], variables: list[Any]) -> Any:
        if not self._allow_replicated:
            raise CaptureError(UNDIVIDED.format(where=where()))
        self._replicate()
        return apply(gradients, variables)

    def _replicate(self) -> None:
        self._counts["replicated"] += 1

    def train_on_batch(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Run Keras's `train_on_batch` in turn."""
        if self._turns.calling or self.skippable_regions.inside():
            return original(model, *args, **kwargs)
        self._exchanges.trains(model)
        result = self._turns.call(model, (args, kwargs), lambda: original(model, *args, **kwargs))
        return self._numbers.of_result(result)

    def fit(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Run Keras's `fit` with divided batches."""
        if not self._allow_replicated:
            return self._fit(original, model, *args, **kwargs)
        self._fitting = True
        try:
            return original(model, *args, **kwargs)
        finally:
            self._fitting = False

    def _fit(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if self._turns.calling or self.skippable_regions.inside():
            raise CaptureError(FIT.format(where=where()))
        self._turns.leave()
        self._meet()
        self._exchanges.trains(model)
        with self._fits.in_turns(model):
            history = original(model, *args, **kwargs)
        self._meet()
        # A callback or an optimizer's average may have replaced the weights at the end.
        self._exchanges.alike({"model": [*model.trainable_weights, *moving(model)]})
        return history

    # -- synchronisation -------------------------------------------------------------------------------------------
    def _meet(self) -> None:
        """Synchronise after the data of a loop have ended: all workers get rank 0's weights."""
        if not self._met:
            self._met = True
            self._turns.met(self._exchanges.meet(self._turns.progress(), self._assigned.variables()))

    def _reads_own(self) -> bool:
        return (
            not self._begun or self._turns.unapplied() or bool(self._turns.calling or self.skippable_regions.inside())
        )

    def _decision(self, tensor: Any) -> Any:
        if self._training():
            return self._numbers.of_tensor(tensor)
        self._meet()
        return tf.constant(self._group.broadcast(tensor.numpy().item(), "a decision"), tensor.dtype)

    def _add(self, tensors: Any, name: str) -> list[Any]:
        self._meet()
        return added(self._group, list(tensors), name)


def _has_batches(argument: Any) -> bool:
    """Return whether a step function that gets this argument draws batches from it."""
    return isinstance(argument, (tf.data.Dataset, tf.data.Iterator))
