"""One rank of a replica script: what is replaced in TensorFlow and Keras while the script runs."""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.operators import control_flow
from tensorflow.python.data.ops import dataset_ops, iterator_ops
from tensorflow.python.eager.polymorphic_function import function_context, polymorphic_function

from client_shim.replica import classes
from client_shim.replica.metric_state import Metrics
from client_shim.replica.reads import agreed_reads
from client_shim.replica.replacing import entry
from client_shim.replica.sessions import patches as session_patches
from client_shim.replica.steps import function_trains, loop_at_work, where
from fdt.errors import CaptureError
from fdt.patches import Patch, patched
from fdt.service.meeting import Meeting
from hfdt import batchnorm, losses, metrics, rulebook
from hfdt import step as steps
from hfdt.comm.replicas import ReplicaComm
from hfdt.exchange import Exchange
from hfdt.replica import batches, called, kinds
from hfdt.replica.batches import Share
from hfdt.replica.by_hand import ByHand
from hfdt.replica.clipping import Clipping
from hfdt.replica.constants import Rows
from hfdt.replica.places import Places
from hfdt.replica.probe import Found, Trials
from hfdt.replica.sessions import Sessions
from hfdt.replica.values import Reads, average_loss, take_gradient, whole_output
from hfdt.step import Reading, Terms

UNDIVIDED = (
    "a training step must get its batch from a tf.data loop, or as arguments of a tf.function or train_on_batch, for "
    "ranks to divide it. Received: a step on data that each rank holds whole, at {where}; --allow-replicated has every "
    "rank do all of that work"
)


@dataclass
class Counts:
    """What this rank has trained on."""

    steps: int = 0
    samples: int = 0
    replicated: int = 0  # steps that every rank took on the whole batch


class Rank:
    """`options`: the command line's (rule, fp16_allreduce, allow_replicated)."""

    def __init__(self, meeting: Meeting, options: Mapping[str, str]) -> None:
        self.comm = ReplicaComm(meeting, where)
        self.places = Places(Terms(self.comm, own_step=False, fp16=options.get("fp16_allreduce") == "1"))
        self._counts = Counts()
        self._allow_replicated = options.get("allow_replicated") == "1"
        self._exchange = Exchange(rulebook.step_rule(options.get("rule") or rulebook.DEFAULT))
        self.metrics = Metrics(self.comm.sum, lambda: steps.current() is not None)
        self._reads = Reads(self.places, self.comm)
        self._trials = Trials(self.comm)
        self.rows = Rows(self.places, self._trials, self.comm.rank, self.comm.size)
        by_hand = ByHand(self.places, self.rows, self.comm.rank, self.comm.size, self._count)
        self.by_hand = None if self._allow_replicated else by_hand
        self._found = Found()  # of the step function that is called
        self._applying = False
        self._calling = False  # a step function that takes its batches itself
        self._batch_norms: dict[int, Any] = {}
        replicated = self._replicate if self._allow_replicated else None
        self._sessions = Sessions(meeting, self._count, replicated, fp16=self.places.terms.fp16)
        self._stack = contextlib.ExitStack()
        self._in_graph: Any = None

    def counts(self) -> Mapping[str, int]:
        """So far; what graphs count is read from their variable."""
        taken, samples = (0, 0) if self._in_graph is None else (int(n) for n in self._in_graph.numpy())
        mine = self._counts
        return {
            "steps": mine.steps + taken,
            "samples": mine.samples + samples,
            "replicated": mine.replicated,
            "sent_bytes": self.comm.sent_bytes + self._sessions.sent_bytes,
        }

    def steps(self) -> int:
        return self.counts()["steps"]

    def end(self) -> None:
        """The script has ended."""

    # -- TensorFlow ------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def in_tensorflow(self) -> Iterator[None]:
        """Iterators, tf.functions, tapes, and what reads a tensor."""
        patches = [
            Patch(iterator_ops.OwnedIterator, "_next_internal", self._next),
            Patch(polymorphic_function.Function, "__call__", self._call),
            Patch(function_context, "make_function_context", self._context),
            Patch(tf.GradientTape, "gradient", take_gradient),
            Patch(tf.nn, "compute_average_loss", average_loss),
            Patch(tf, "size", kinds.sized),
            *Clipping().patches(),
            *self.rows.patches_of_tensorflow(),
        ]
        loops = control_flow.for_loop_registry._registry
        in_graph = functools.partial(self._for_dataset, loops[dataset_ops.DatasetV2])
        with (
            self.places.installed(),
            patched(patches),
            agreed_reads(self._reads.agreed),
            kinds.followed(),
            session_patches.installed(self._sessions, self),
            entry(loops, dataset_ops.DatasetV2, in_graph),
        ):
            try:
                yield
            finally:
                self._stack.close()

    def _next(self, original: Any, iterator: Any) -> Any:
        element = original(iterator)
        if not tf.executing_eagerly():
            return self._enter_graph(element) if self._calling else element
        if self.places.entered() or not batches.has_batches(element):
            return element
        site = loop_at_work()
        if site is None or not site.trains:
            return element
        part, share = batches.cut_element(element, self.comm.rank, self.comm.size)
        self.places.part_of_loop(site, share)
        share_now = self.places.share_now()
        kinds.enter(part, share_now)
        self.rows.given(site, share_now[1])
        self._count(share_now)
        return part

    def _for_dataset(self, original: Any, dataset: Any, extra_test: Any, body: Any, *rest: Any) -> Any:
        if not self._calling:
            return original(dataset, extra_test, body, *rest)
        return original(dataset, extra_test, lambda element: body(self._enter_graph(element)), *rest)

    def _enter_graph(self, element: Any) -> Any:
        part, share = batches.cut_element(element, self.comm.rank, self.comm.size)
        self._in_graph.assign_add(tf.stack([tf.constant(1, tf.int64), share[0]]))
        self.places.part_of_graph(share)
        return part

    def _call(self, original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        """A tf.function: when it is a training step its arguments are divided."""
        if not tf.executing_eagerly():
            return original(function, *args, **kwargs)
        try:
            return self._called(original, function, args, kwargs)
        except tf.errors.OpError:
            if self.comm.failure is not None:  # which TensorFlow has wrapped in its own words
                raise self.comm.failure from None
            raise

    def _called(self, original: Any, function: Any, args: Any, kwargs: Any) -> Any:
        trying = self._trials.recorded is not None
        if self.places.divided() and not (trying or self._calling or self.places.entered()):
            return called.call(self._trials, function, args, kwargs, lambda: original(function, *args, **kwargs))
        if trying or self._calling or self.places.divided() or not function_trains(function):
            return original(function, *args, **kwargs)
        if function._jit_compile:
            function._jit_compile = False  # XLA holds no exchange
        rows = batches.rows_of((args, kwargs))
        if rows is None or (rows < 2 and not self.rows.knows(id(function))):
            with self._taking_batches_itself():
                return original(function, *args, **kwargs)
        self.rows.given(id(function), rows)
        self._found = self._trials.found(function, args, kwargs, rows)
        (args, kwargs), share = batches.cut((args, kwargs), rows, self.comm.rank, self.comm.size)
        self.places.reading = self._found.default
        try:
            return self._in_part(share, lambda: original(function, *args, **kwargs))
        finally:
            self._found, self.places.reading = Found(), Reading.MEAN

    def _in_part(self, share: Share, run: Any) -> Any:
        with self.places.part(share) as step:
            output = run()
            self._count(share)
            return whole_output(output, step, *share, self._found)

    def _count_in_graph(self) -> None:
        """Make what graphs count in and read their share from: not within their trace."""
        if self._in_graph is None:
            self._in_graph = tf.Variable([0, 0], dtype=tf.int64, trainable=False)
        self.places.share.read_value()

    @contextlib.contextmanager
    def _taking_batches_itself(self) -> Iterator[None]:
        self._count_in_graph()
        self._calling = True
        try:
            yield
        finally:
            self._calling = False

    def _context(self, original: Any, scope_type: Any = None) -> Any:
        """Part of a trace's key: one for parts of batches holds exchanges, one for whole batches none."""
        made = original(scope_type)
        return function_context.function_cache.FunctionContext(made.context, (made.scope_type, self._kind()))

    def _kind(self) -> str:
        return "part" if self.places.divided() else "itself" if self._calling else "whole"

    def _count(self, share: Share) -> None:
        self._counts.steps += 1
        self._counts.samples += share[0]

    # -- Keras -----------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def in_keras(self, flavor: str) -> Iterator[None]:
        """Optimizers, losses, metrics, BatchNorm, train_on_batch and fit of "keras" or "tf_keras"."""
        with losses.installed(flavor), metrics.installed(flavor), patched(self._patches(flavor)):
            yield

    def _patches(self, flavor: str) -> list[Patch]:
        rows = self.rows.patches_of_keras() if flavor == "keras" else []
        return [*classes.patches(self, flavor), Patch(_batch_normalization(flavor), "call", self.batch_norm), *rows]

    def applying(self) -> bool:
        return self._applying

    def exchanged(self, optimizer: Any, apply: Any, gradients: list[Any], variables: list[Any]) -> Any:
        if self._trials.recorded is not None:
            self._trials.recorded.append(gradients)
            return None
        step: Any = steps.current() or self._undivided()
        if step.applies < len(self._found.gradients):
            step.reading = self._found.gradients[step.applies]
        step.applies += 1
        self._applying = True
        try:
            with steps.entered(step), kinds.unfollowed():
                return self._exchange.apply(apply, gradients, variables)
        finally:
            self._applying = False

    def _undivided(self) -> Any:
        if not self._allow_replicated:
            raise CaptureError(UNDIVIDED.format(where=where()))
        self._replicate()
        return self.places.whole(self.comm.rank == 0)

    def _replicate(self) -> None:
        self._counts.replicated += 1

    def train_on_batch(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if self.places.divided():
            return original(model, *args, **kwargs)
        rows = batches.rows_of((args, kwargs))
        if not rows:
            return original(model, *args, **kwargs)
        (args, kwargs), share = batches.cut((args, kwargs), rows, self.comm.rank, self.comm.size)
        return self._in_part(share, lambda: original(model, *args, **kwargs))

    def fit(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Keras's own loop on every rank; each batch is divided where train_step takes it."""

        def train_step(step: Any, data: Any) -> Any:
            if self.places.divided():
                return step(data)
            if not tf.executing_eagerly():
                return step(self._enter_graph(data))
            part, share = batches.cut_element(data, self.comm.rank, self.comm.size)
            return self._in_part(tuple(share.numpy()), lambda: step(part))

        self._count_in_graph()
        with patched([Patch(model, "train_step", train_step)]):
            model.train_function = None
            try:
                return original(model, *args, **kwargs)
            finally:
                model.train_function = None

    def batch_norm(self, original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        """In place of BatchNormalization.call: from its first call on, its moments are those of all ranks."""
        if id(layer) not in self._batch_norms and batchnorm._is_batch_norm(layer):
            self._batch_norms[id(layer)] = layer
            flavor = (
                "keras" if type(layer).__module__.startswith("keras.") or not hasattr(layer, "fused") else "tf_keras"
            )
            self._stack.enter_context(batchnorm.synchronised([layer], flavor))
        return original(layer, *args, **kwargs)


def _batch_normalization(flavor: str) -> type:
    if flavor == "keras":
        from keras.src.layers.normalization.batch_normalization import BatchNormalization

        return BatchNormalization  # type: ignore[no-any-return]
    from tf_keras.src.layers.normalization.batch_normalization import BatchNormalizationBase

    return BatchNormalizationBase  # type: ignore[no-any-return]
