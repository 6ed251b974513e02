"""Values that every worker must have as rank 0 has them: numbers that the script reads, and variables.

`ReadNumbers`: numbers that the script reads behind a step are rank 0's on every worker.

`AssignedWeights`: variables that the script trains without an optimizer, besides those of one, as by
`temperature.assign_sub(rate * change)`. No worker pushes their gradients. So every worker computes each step of such a
script, as one machine would, and all get rank 0's values when they synchronise.

`SyncedSessions`: when sessions that train synchronise, all workers get rank 0's values for their variables.
"""

import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.sessions import values
from client_shim.replica.sessions.feeds import SessionCall
from client_shim.replica.sessions.plans import collected
from client_shim.replica.steps import by_script, script_frames
from fdt.compat.tensorflow import BaseSession, ops
from fdt.keras.variables import tensor_variable
from fdt.patches import Patch, replace
from fdt.process_group import ReplicaGroup
from replica.exchange import arrays_of_rank_0

METHODS = ("__float__", "__int__", "__index__", "numpy")

_Known = dict[int, weakref.ref[Any]]  # variables by id


def rank_0s(group: ReplicaGroup, value: Any, kind: str) -> Any:
    """Return what rank 0's script reads in the place of `value`; `kind`: what it must have in common with it."""
    frames = (f"{os.path.basename(f.f_code.co_filename)}:{f.f_lineno}" for f in script_frames())
    return group.rank_0_reads(" ".join([kind, *frames]), value)


class ReadNumbers:
    """The numbers of a worker's script.

    Args:
        group: The ranks.
        own: Returns whether a number that is read now is this worker's: before the first step all workers compute the
            same; within a step, until its gradients are applied, it may decide whether they are.
    """

    def __init__(self, group: ReplicaGroup, own: Callable[[], bool]) -> None:
        self._group, self._own = group, own

    def of_tensor(self, tensor: Any) -> Any:
        """Return a tensor of the number that rank 0 reads in the place of `tensor`."""
        if self._own():
            return tensor
        number = tensor.numpy().item()
        of_rank_0 = rank_0s(self._group, number, tensor.dtype.name)
        if of_rank_0 == number:
            return tensor
        with tf.init_scope():
            return tf.constant(of_rank_0, tensor.dtype)

    def of_result(self, result: Any) -> Any:
        """Return what `train_on_batch` gives rank 0; arrays stay this worker's."""
        return tf.nest.map_structure(self._of_float, result)

    def _of_float(self, number: Any) -> Any:
        plain = isinstance(number, (float, np.floating))
        return type(number)(rank_0s(self._group, float(number), "float")) if plain else number


@contextlib.contextmanager
def agreed_reads(agreed: Callable[[Any], Any], methods: Sequence[str]) -> Iterator[None]:
    """Within the context, a number that the script reads from tensor `t` by one of `methods` is that of `agreed(t)`."""
    busy = [False]
    with contextlib.ExitStack() as stack:
        for name in methods:
            original = getattr(ops._EagerTensorBase, name)
            replace(stack, ops._EagerTensorBase, name, _reading(original, agreed, busy))
        yield


def _reading(original: Any, agreed: Callable[[Any], Any], busy: list[bool]) -> Any:
    @functools.wraps(original)
    def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if busy[0] or not by_script() or not _is_number(tensor):
            return original(tensor, *args, **kwargs)
        busy[0] = True
        try:
            tensor = agreed(tensor)
        finally:
            busy[0] = False
        return original(tensor, *args, **kwargs)

    return read


def _is_number(tensor: Any) -> bool:
    kinds = tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool
    return bool(kinds and tensor.shape.rank == 0)


class AssignedWeights:
    """Finds these variables: a tape gives their gradients, their values change, and no optimizer updates them.

    `owned` returns the variables that optimizers update.
    """

    def __init__(self, owned: Callable[[], Sequence[tf.Variable]]) -> None:
        self._owned = owned
        self._values: dict[int, Any] = {}  # by id: the first value of a variable that no optimizer has updated yet
        self._sources: _Known = {}
        self._found: _Known = {}

    def patch(self) -> Patch:
        """Return the patch of TensorFlow's tape."""
        return Patch(tf.GradientTape, "gradient", self._gradient)

    def variables(self) -> list[tf.Variable]:
        """Return the variables, in the order in which they were found."""
        if not (self._values or self._found):
            return []
        owned = {id(variable) for variable in self._owned()}
        for key, before in list(self._values.items()):
            variable = self._sources[key]()
            if variable is None or key in owned:
                del self._values[key]
            elif not np.array_equal(variable.numpy(), before):
                self._found[key] = self._sources[key]
                del self._values[key]
        found = (known() for key, known in self._found.items() if key not in owned)
        return [variable for variable in found if variable is not None]

    def _gradient(self, original: Any, tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = original(tape, target, sources, *args, **kwargs)
        for source, gradient in zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True):
            variable = tensor_variable(source)
            if gradient is not None and isinstance(variable, tf.Variable):
                self._note(variable)
        return gradients

    def _note(self, variable: tf.Variable) -> None:
        key = id(variable)
        if key in self._sources and self._sources[key]() is variable:
            return
        self._found.pop(key, None)  # of another variable that is gone
        with tf.init_scope():
            if tf.executing_eagerly() and variable.is_initialized():
                self._sources[key], self._values[key] = weakref.ref(variable), variable.numpy()


class SyncedSessions:
    """The sessions that train. `met`: whether no worker has trained since the last synchronisation."""

    def __init__(self, group: ReplicaGroup) -> None:
        self._group = group
        self.met = True
        self.original: Any = BaseSession.run
        self._count = 0
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._open: dict[int, Any] = {}  # kept alive until the synchronisation: rank 0's sessions serve
        self._names: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
        self._same: weakref.WeakSet[Any] = weakref.WeakSet()

    def train(self, call: SessionCall, variables: Sequence[Any]) -> bool:
        """Register a training run that reaches `variables`. Return whether all workers must synchronise before it."""
        session = call.session
        if session not in self._numbers:
            self._numbers[session] = self._count
            self._count += 1
        self._open[self._numbers[session]] = session
        self._names.setdefault(session, set()).update(str(v.op.name) for v in variables)
        self.original, self.met = call.original, False
        return session not in self._same

    def differ(self, session: Any) -> None:
        """Note that each worker has written the session's variables itself."""
        self._same.discard(session)

    def has(self, session: Any) -> bool:
        """Return whether the session has trained since the last synchronisation."""
        return not self.met and session in self._open.values()

    def number(self, session: Any) -> int:
        """Return the session's number."""
        return self._numbers[session]

    def session(self, number: int) -> Any:
        """Return the session of a number; None if it is gone."""
        return next((session for session, its in self._numbers.items() if its == number), None)

    def meet(self) -> None:
        """Synchronise all workers: they get rank 0's variables. Rank 0 serves pushes until the last worker arrives."""
        self.met = True
        mine = [[number, sorted(self._names[s])] for number, s in sorted(self._open.items()) if not s._closed]
        for number, names in self._group.broadcast(mine, "sessions"):
            self._become_rank_0s(number, names)
        self._open.clear()

    def _become_rank_0s(self, number: int, names: Sequence[str]) -> None:
        session = self.session(number)
        if session is not None and session._closed:
            session = None
        known = collected(session.graph) if session is not None else {}
        call = SessionCall(self.original, session)
        variables = [known[name] for name in names] if known else []
        arrays = [np.asarray(a) for a in values.read(call.plainly, variables)]
        rank_0s = arrays_of_rank_0(self._group, {"": arrays}, "variables")[""]
        if self._group.rank and variables:
            values.write_changed(call.plainly, variables, rank_0s, arrays)
        if session is not None:
            self._same.add(session)
