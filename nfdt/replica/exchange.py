"""Exchange of one optimizer in a replica script: gradients go to rank 0, and weights return, within the script's step.

On rank 0 the algorithm runs on NumPy arrays, and the script's optimizer applies the resulting update, in the graph or
eagerly. The other ranks send their gradient and assign the returned weights.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import where
from fdt.errors import CaptureError
from fdt.keras.variables import build_optimizer, tensor_variable
from fdt.ops import IdentityMap
from fdt.process_group import RankPush, ReplicaGroup
from fdt.typing import Vector
from nfdt.algorithm import AsyncAlgorithm
from nfdt.model.settings import refuse_counting_rate
from nfdt.model.variables import (
    clipped,
    count_of,
    current_rate,
    is_sgd,
    momentum_of,
    off,
    scaled,
    scaled_rate,
    unscaled,
)
from nfdt.replica.numpy_applier import ServerAlgorithm

Apply = Callable[[list[Any], list[Any]], Any]
Poll = Callable[[int, list[int]], list[RankPush]]  # from the optimizer and the positions without a gradient

GONE = (
    "a step uses an optimizer that the script no longer refers to; keep the optimizer in a variable as long as the "
    "step is used"
)
OTHER_VARIABLES = (
    "the optimizer at {} updates other variables than in its first step, whose gradients all workers push; give each "
    "list of variables an optimizer of its own, or use `hfdt run`"
)


class OptimizerExchange:
    """Pushes and pulls for one optimizer.

    `number` counts the optimizers in the order of their creation. `made_for()` returns the script's while it exists.
    """

    apply: Apply  # the optimizer's own update, as it was last used

    def __init__(
        self,
        number: int,
        optimizer: Any,
        variables: Sequence[Any],
        rule: AsyncAlgorithm,
        group: ReplicaGroup,
        poll: Poll,
        made_for: Callable[[], Any] = lambda: None,
        samples: int = 0,
    ) -> None:
        if rule.needs_sgd and not is_sgd(optimizer):
            raise CaptureError(f"this algorithm needs SGD. Received: {type(optimizer).__name__}; use another one")
        self.number, self._optimizer, self._group = number, optimizer, group
        self.variables = list(variables)
        self.raw = [tensor_variable(v) for v in variables]
        self._sizes = [int(v.shape.num_elements()) for v in self.raw]
        self._poll, self._rule = poll, ServerAlgorithm(rule, group.size, momentum_of(optimizer))
        self._form, self.taus = self._rule.form, self._rule.taus
        self._waiting: list[RankPush] = []
        self._answering: RankPush | None = None
        self.made_for, self.samples = made_for, samples  # in the current batch
        self.changed = False  # whether rank 0 has updated since the last synchronisation
        with tf.init_scope():
            refuse_counting_rate(optimizer)
            self._count = count_of(optimizer)
            self._ahead = tf.Variable(0, dtype=self._count.dtype, trainable=False)

    def __reduce__(self) -> Any:
        return type(None), ()  # a copied optimizer gets an exchange of its own

    # -- iterations ------------------------------------------------------------------------------------------------
    # During the loop a worker's `iterations` count all steps so far, as on one machine. Rank 0's count is ahead of its
    # updates, which a schedule must use, by the steps that the others have not pushed yet.
    def use(self, apply: Apply) -> None:
        """Note the optimizer's own update, by which rank 0 applies pushes."""
        self.apply = apply

    def count(self, samples: int) -> None:
        """Set the number of samples in the current batch."""
        self.samples = samples

    def now(self) -> int:
        """Return `iterations`."""
        with tf.init_scope():
            return int(self._count.numpy())

    def move(self, by: int) -> None:
        """Add `by` steps that other workers take."""
        for count in (self._count, self._ahead):
            count.assign_add(by)

    @contextlib.contextmanager
    def _updating(self, own: int) -> Iterator[None]:
        """Let `iterations` count rank 0's updates within the context; `own` of them belong to rank 0's own step."""
        then = self._count.read_value() + own
        self._count.assign_sub(self._ahead.read_value())
        yield
        self._ahead.assign(then - self._count.read_value())
        self._count.assign(then)

    @property
    def counts(self) -> list[tf.Variable]:
        return [self._count, self._ahead]

    def meets(self) -> None:
        """Prepare the variables for the synchronisation of all workers."""
        self._count.assign_sub(self._ahead.read_value())
        self._ahead.assign(0)

    @property
    def held(self) -> list[Any]:
        """Variables that all workers share after a synchronisation; a global step belongs to the script too."""
        return [*self.raw, self._count]

    def met(self) -> None:
        """Note the synchronisation: all workers have rank 0's weights, so their next pushes start without staleness."""
        self.changed = False
        self._rule.synchronised()

    # -- in the step -----------------------------------------------------------------------------------------------
    def step(self, apply: Apply, gradients: Sequence[Any], variables: list[Any]) -> None:
        """Exchange the gradients, in place of the optimizer's apply, on any rank."""
        if self._form.passes_on:
            apply(list(gradients), variables)  # also rows of an index, and float64
            in_order(self._passed_on, [], tf.bool)
            return
        if [id(tensor_variable(v)) for v in variables] != [id(v) for v in self.raw]:
            raise CaptureError(OTHER_VARIABLES.format(where()))
        absent = [i for i, g in enumerate(gradients) if g is None]
        flat = _flat(self._whole(gradients))
        if self._group.rank:
            self._assign(in_order(self._push, [flat, tf.constant(absent, tf.int32)]))
            self._count.assign_add(1)
            return
        with self._updating(own=1):
            first = in_order(self._take_own, [flat, self._read(), self._rate()])
            self._apply(apply, first, absent, variables)
            self._serve_in_step(apply, absent, variables)

    def serve(self, apply: Apply, push: RankPush) -> None:
        """Apply one push on rank 0, outside a step."""
        self._waiting.append(push)
        with self._updating(own=0):
            self._serve_in_step(apply, push.header["absent"], self.variables)

    def _serve_in_step(self, apply: Apply, absent: list[int], variables: list[Any]) -> None:
        """Apply the pushes that have arrived; then record the weights as pulled by rank 0's next step."""
        alike = tf.constant(absent, tf.int32)

        def body(_: Any) -> list[Any]:
            update = in_order(self._take, [self._read(), self._rate()])
            self._apply(apply, update, absent, variables)
            in_order(self._answer, [self._read()])
            return [self._more(alike)]

        _follow(tf.while_loop(lambda more: more, body, [self._more(alike)]))
        in_order(self._holds, [self._read()])

    def _apply(self, apply: Apply, update: Any, absent: list[int], variables: list[Any]) -> None:
        """Apply the algorithm's update with the script's optimizer."""
        size = sum(self._sizes)
        update = tf.ensure_shape(update, [1 + size * (1 + self._form.momentum)])
        present = [i for i in range(len(variables)) if i not in absent]
        given = self._unflat(update[1 : 1 + size], present)
        with scaled_rate(self._optimizer, update[0] if self._form.scales else None), contextlib.ExitStack() as within:
            if self._form.momentum:
                build_optimizer(self._optimizer, variables)  # creates the moments that the algorithm's replace
                fresh = self._unflat(update[1 + size :], present)
                moved = [variables[i] for i in present]
                given = within.enter_context(off(self._optimizer, moved, given, fresh))
            rest = iter(scaled(self._optimizer, given))
            apply([None if i in absent else next(rest) for i in range(len(variables))], variables)

    def _more(self, absent: Any) -> Any:
        return tf.ensure_shape(in_order(self._has_come, [absent], tf.bool), [])

    def _read(self) -> Any:
        return _flat([v.read_value() for v in self.raw])

    def _rate(self) -> Any:
        return current_rate(self._optimizer)

    def _whole(self, gradients: Sequence[Any]) -> list[Any]:
        """Return one gradient per variable, zeros where there is none; clipped if the algorithm has a momentum."""
        given = unscaled(self._optimizer, [tf.convert_to_tensor(g) for g in gradients if g is not None])
        rest = iter(clipped(self._optimizer, given) if self._form.momentum else given)
        pairs = zip(gradients, self.raw, strict=True)
        return [tf.zeros(v.shape) if g is None else next(rest) for g, v in pairs]

    def _assign(self, pulled: Any) -> None:
        pulled = tf.ensure_shape(pulled, [sum(self._sizes)])
        for variable, value in zip(self.raw, tf.split(pulled, self._sizes), strict=True):
            variable.assign(tf.cast(tf.reshape(value, variable.shape), variable.dtype))

    def _unflat(self, vector: Any, present: list[int]) -> list[Any]:
        parts = tf.split(vector, self._sizes)
        return [tf.cast(tf.reshape(parts[i], self.raw[i].shape), self.raw[i].dtype) for i in present]

    # -- NumPy, from within the step -------------------------------------------------------------------------------
    def _passed_on(self) -> Any:
        """Count a gradient of the only worker."""
        self.changed = True
        self.taus.append(0)
        return np.bool_(True)

    def _push(self, gradient: Vector, absent: Vector) -> Vector:
        header = {"optimizer": self.number, "samples": self.samples, "absent": absent.tolist()}
        return self._group.push_pull(gradient, header)[0]

    def _take_own(self, gradient: Vector, params: Vector, eta: Any) -> Vector:
        return self._pushed(0, gradient, params, eta, self.samples)

    def _take(self, params: Vector, eta: Any) -> Vector:
        self._answering = push = self._waiting.pop(0)
        return self._pushed(push.rank, push.vector, params, eta, push.header["samples"])

    def _holds(self, params: Vector) -> Vector:
        """Record that rank 0 has the current weights."""
        self._pulled(0, params)
        return params[:1]

    def _answer(self, params: Vector) -> Vector:
        assert self._answering is not None
        self._answering.answer(self._pulled(self._answering.rank, params), {})
        return params[:1]

    def _has_come(self, absent: Vector) -> Any:
        self._waiting += self._poll(self.number, absent.tolist())
        return np.bool_(bool(self._waiting))

    def _pushed(self, worker: int, gradient: Vector, params: Vector, eta: Any, samples: int) -> Vector:
        self.changed = True
        made = self._rule.pushed(worker, self._cut(gradient), self._cut(params), eta, samples)
        return made.packed(self._form)

    def _pulled(self, worker: int, params: Vector) -> Vector:
        sent = self._rule.pulled(worker, self._cut(params))
        return np.concatenate([np.ravel(s) for s in sent]).astype(np.float32)

    def _cut(self, vector: Vector) -> list[Any]:
        parts = np.split(vector, np.cumsum(self._sizes)[:-1])
        return [p.reshape(v.shape) for p, v in zip(parts, self.raw, strict=True)]


_last: IdentityMap[Any] = IdentityMap()  # by graph: the operation that its next call must follow


def in_order(method: Callable[..., Any], inputs: list[Any], dtype: Any = tf.float32) -> Any:
    """Call `method` on NumPy arrays, after all earlier such calls of the graph: TensorFlow guarantees no order."""
    if tf.executing_eagerly():
        return tf.numpy_function(method, inputs, dtype)
    graph = tf.compat.v1.get_default_graph()
    before = _last.get(graph)
    with tf.control_dependencies([before] if before is not None else []):
        result = tf.numpy_function(_weakly(method), inputs, dtype, stateful=True)
    _follow(result)
    return result


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return `method` behind a weak reference, because TensorFlow keeps a graph's functions forever.

    `OptimizerExchanges.of` keeps the method's owner alive while it is needed.
    """
    known = weakref.WeakMethod(method)

    def call(*arrays: Any) -> Any:
        found = known()
        if found is None:
            raise CaptureError(GONE)
        return found(*arrays)

    return call


def _follow(results: Any) -> None:
    """Make the graph's next call follow `results`."""
    if not tf.executing_eagerly():
        _last.put(tf.compat.v1.get_default_graph(), tf.nest.flatten(results)[0].op)


def _flat(tensors: Sequence[Any]) -> Any:
    return tf.concat([tf.reshape(tf.cast(tf.convert_to_tensor(t), tf.float32), [-1]) for t in tensors], axis=0)
