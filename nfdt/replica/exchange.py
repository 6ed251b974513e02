"""One optimizer of a replica script: gradients pushed to rank 0, weights pulled from it, inside the script's own step.

On rank 0 the rule is called with NumPy arrays and the script's optimizer applies what it makes of a push, in the graph
or eagerly as the script has it. The others give their gradient and assign the weights that come back.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.errors import CaptureError
from fdt.keras.variables import tensor_variable
from fdt.service.meeting import Guest, Host, Pushed
from nfdt.rule import Hyper, Push, Rule, State, Update
from nfdt.server.core import Core, Gradient
from nfdt.variables import is_loss_scaled

Apply = Callable[[list[Any], list[Any]], Any]
Vector = Any
Poll = Callable[[int], list[Pushed]]  # the pushes that have come for an optimizer


class _Applier:
    """A rule's arithmetic on NumPy; `update` is what the optimizer is to be given next."""

    def __init__(self, params: list[Any]) -> None:
        self.params = self.update = self._before = params

    def init(self, rule: Rule, workers: int) -> tuple[State, State]:
        return rule.init(self.params, workers)

    def pull(self, rule: Rule, shared: State, mine: State, worker: int) -> tuple[Any | None, State, State]:
        zero = np.zeros((), np.float32)
        return rule.pull(shared, mine, self.params, Hyper(worker, zero, zero))

    def push(
        self, rule: Rule, shared: State, mine: State, worker: int, gradient: Gradient, tau: int
    ) -> tuple[bool, State, State]:
        tau_, samples, zero = (np.float32(v) for v in (tau, gradient.samples, 0))
        push = Push(worker, gradient.values, tau_, samples, zero, zero, self._before, gradient.seconds)
        update, shared, mine = rule.push(shared, mine, self.params, push)
        if update is None or not _plain(update):
            raise CaptureError(
                "scripts with loops of their own take rules that apply each push with the script's optimizer as it is. "
                "Received: another; use --rule asgd or dc_asgd"
            )
        self.update, self._before = update.gradient, self.params
        return True, shared, mine

    def flush(self, rule: Rule, shared: State) -> tuple[bool, State]:
        return False, shared


class Exchange:
    """`number`: of the optimizer, in the order in which the script first uses them."""

    def __init__(
        self, number: int, optimizer: Any, variables: Sequence[Any], rule: Rule, meeting: Host | Guest, poll: Poll
    ) -> None:
        if is_loss_scaled(optimizer):
            raise CaptureError("NFDT's replicas share no loss scale. Received: a LossScaleOptimizer; hfdt run takes it")
        self.number, self._optimizer, self._meeting = number, optimizer, meeting
        self.variables = list(variables)
        self._raw = [tensor_variable(v) for v in variables]
        self._sizes = [int(v.shape.num_elements()) for v in self._raw]
        self._rule, self._poll = rule, poll
        self._present = [True] * len(self._raw)
        self._core: Core | None = None
        self._applier: _Applier | None = None
        self._waiting: list[Pushed] = []
        self._answering: Pushed | None = None
        self.samples = 0  # of the batch at hand
        self.taus: list[int] = []

    # -- in the step -----------------------------------------------------------------------------------------------
    def step(self, apply: Apply, gradients: Sequence[Any], variables: list[Any]) -> None:
        """In place of the optimizer's apply, on any rank."""
        present = self._present = [g is not None for g in gradients]
        flat = _flat([g for g in gradients if g is not None])
        if isinstance(self._meeting, Guest):
            pulled = _python(self._push, [flat])
            self._assign(pulled)
            return
        first = _python(self._take_own, [flat, self._read()])
        apply(self._unflat(first, present), variables)
        _python(self._done, [self._read()])
        self._serve_in_step(apply, present, variables)

    def serve(self, apply: Apply, push: Pushed) -> None:
        """Rank 0, outside a step: apply one push."""
        self._waiting.append(push)
        self._serve_in_step(apply, self._present, self.variables)

    def _serve_in_step(self, apply: Apply, present: list[bool], variables: list[Any]) -> None:
        def body(_: Any) -> list[Any]:
            update = _python(self._take, [self._read()])
            apply(self._unflat(update, present), variables)
            _python(self._answer, [self._read()])
            return [self._more()]

        _follow(tf.while_loop(lambda more: more, body, [self._more()]))

    def _more(self) -> Any:
        return tf.ensure_shape(_python(self._has_come, [], tf.bool), [])

    def _read(self) -> Any:
        return _flat([v.read_value() for v in self._raw])

    def _assign(self, pulled: Any) -> None:
        pulled = tf.ensure_shape(pulled, [sum(self._sizes) + 1])
        for variable, value in zip(self._raw, tf.split(pulled[:-1], self._sizes), strict=True):
            variable.assign(tf.cast(tf.reshape(value, variable.shape), variable.dtype))
        iterations = tensor_variable(self._optimizer.iterations)
        iterations.assign(tf.cast(pulled[-1], iterations.dtype))

    def _unflat(self, vector: Any, present: list[bool]) -> list[Any]:
        sizes = [s for s, there in zip(self._sizes, present, strict=True) if there]
        parts = iter(tf.split(tf.ensure_shape(vector, [sum(sizes)]), sizes))
        raw = zip(self._raw, present, strict=True)
        return [tf.cast(tf.reshape(next(parts), v.shape), v.dtype) if there else None for v, there in raw]

    # -- NumPy, from within the step -------------------------------------------------------------------------------
    def _push(self, gradient: Vector) -> Vector:
        assert isinstance(self._meeting, Guest)
        _, weights = self._meeting.push({"optimizer": self.number, "samples": self.samples}, gradient)
        return weights

    def _take_own(self, gradient: Vector, params: Vector) -> Vector:
        return self._pushed(0, gradient, params, self.samples)

    def _take(self, params: Vector) -> Vector:
        self._answering = self._waiting.pop(0)
        return self._pushed(self._answering.rank, self._answering.vector, params, self._answering.header["samples"])

    def _done(self, params: Vector) -> Vector:
        self._pulled(0, params)
        return params[:1]

    def _answer(self, params: Vector) -> Vector:
        assert self._answering is not None and isinstance(self._meeting, Host)
        sent = self._pulled(self._answering.rank, params)
        iterations = np.float32(tensor_variable(self._optimizer.iterations).numpy())
        self._meeting.answer(self._answering.rank, {}, np.append(sent, iterations))
        return params[:1]

    def _has_come(self) -> Any:
        self._waiting += self._poll(self.number)
        return np.bool_(bool(self._waiting))

    def _pushed(self, worker: int, gradient: Vector, params: Vector, samples: int) -> Vector:
        self._start(params)
        assert self._core is not None and self._applier is not None
        self._applier.params = self._cut(params)
        values = self._cut(gradient)
        tau = self._core.push(worker, self._core.slots[worker].last_push + 1, Gradient(values, samples))
        self._core.take_log()
        self.taus.append(tau or 0)
        return np.concatenate([np.ravel(u) for u in self._applier.update]).astype(np.float32)

    def _pulled(self, worker: int, params: Vector) -> Vector:
        assert self._core is not None and self._applier is not None
        self._applier.params = self._cut(params)
        sent = self._core.pull(worker)
        if sent is None:
            raise CaptureError("scripts with loops of their own take rules that never make a worker wait; --rule asgd")
        return np.concatenate([np.ravel(s) for s in sent]).astype(np.float32)

    def _start(self, params: Vector) -> None:
        if self._core is None:
            self._applier = _Applier(self._cut(params))
            self._core = Core(self._rule, self._applier, self._meeting.size)
            for worker in range(self._meeting.size):
                self._core.pull(worker)  # all begin with the same weights

    def _cut(self, vector: Vector) -> list[Any]:
        if len(vector) != sum(self._sizes):  # gradients of some variables only: the rule sees one array
            return [vector]
        parts = np.split(vector, np.cumsum(self._sizes)[:-1])
        return [p.reshape(v.shape) for p, v in zip(parts, self._raw, strict=True)]


_last: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # graph -> what its next call follows


def _plain(update: Update) -> bool:
    """Whether the script's optimizer, as it is, is what applies it."""
    return (
        update.momentum == "captured" and update.steps is None and np.isscalar(update.lr_scale) and update.lr_scale == 1
    )


def _python(function: Callable[..., Any], inputs: list[Any], dtype: Any = tf.float32) -> Any:
    """Call `function` on NumPy arrays, after all earlier such calls of the graph: TensorFlow promises no order."""
    if tf.executing_eagerly():
        return tf.numpy_function(function, inputs, dtype)
    before = _last.get(tf.compat.v1.get_default_graph())
    with tf.control_dependencies([before] if before is not None else []):
        result = tf.numpy_function(function, inputs, dtype, stateful=True)
    _follow(result)
    return result


def _follow(results: Any) -> None:
    """The graph's next call comes after these."""
    if not tf.executing_eagerly():
        _last[tf.compat.v1.get_default_graph()] = tf.nest.flatten(results)[0].op


def _flat(tensors: Sequence[Any]) -> Any:
    return tf.concat([tf.reshape(tf.cast(tf.convert_to_tensor(t), tf.float32), [-1]) for t in tensors], axis=0)
