"""The counts of a replicated script's training: steps by assignments, updates of optimizers, samples."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from fdt import compat
from fdt.keras.variables import tensor_variable
from fdt.patches import Patch
from replica.entry import RowEntry
from replica.tensors import unrecorded

_Keys = Callable[[Any], frozenset[Hashable]]  # of an optimizer's variables


class SampleCount:
    """The rows of the batches that gradients are computed of, each batch once.

    Args:
        entry: The entry of rows.

    Attributes:
        samples: This rank's rows.
        batch: A number of the last batch that was counted.
    """

    def __init__(self, entry: RowEntry) -> None:
        self._entry = entry
        self.samples = self.batch = 0

    def gradient(self) -> None:
        """Count the newest batch, before its gradient is computed."""
        self._entry.gradient()
        if self._entry.entered != self.batch:
            self.batch = self._entry.entered
            self.samples += self._entry.rows[0]


class StepCount:
    """The count of steps. A step has one or more updates, each of a set of variables.

    An update of variables that the last step did not update belongs to that step: a GAN's second network. If these
    variables are updated again before the others, they were a step of their own: a second model is trained.

    Args:
        samples: The count of samples.
        begin: Called when a step begins.

    Attributes:
        steps: The number of steps.
        repeats: Whether some step has no batch of its own, so that samples are not known.
    """

    def __init__(self, samples: SampleCount, begin: Callable[[], None] = lambda: None) -> None:
        self._samples, self._begin = samples, begin
        self._updates: list[set[Hashable]] = []  # of the last step
        self._batch = 0
        self.steps, self.repeats = 0, False

    def updated(self, parts: Set[Hashable], *, taken: bool = True, repeated: bool = False) -> None:
        """Count an update.

        Args:
            parts: Keys of what is updated.
            taken: Whether a gradient was computed since the last update; without one, this is the last update's rest.
            repeated: Whether a call has updated the same before, of the same batch.
        """
        again = next((n for n, update in enumerate(self._updates) if not update.isdisjoint(parts)), None)
        if self._updates and not taken:
            self._updates[-1] |= parts
        elif self._updates and again is None:
            self._updates.append(set(parts))
        elif taken:
            if again:  # what joined the last step is updated alone: that was a step of its own
                self._begin_step(repeated=repeated)
            self._begin_step(repeated=bool(again) or repeated)
            self._updates = [set(parts)]

    def _begin_step(self, *, repeated: bool) -> None:
        self._begin()
        self.repeats |= self._samples.batch == self._batch and not repeated
        self._batch = self._samples.batch
        self.steps += 1


@dataclass(frozen=True)
class _Iterations:
    """An optimizer's `iterations`.

    Attributes:
        variable: The variable, while it lives.
        micro_batches: Calls of one update: `gradient_accumulation_steps`.
        parts: What an update assigns: keys of the variables that the optimizer is built for.
    """

    variable: weakref.ref[Any]
    micro_batches: int
    parts: frozenset[Hashable]

    def updates(self) -> int:
        """Return the number of updates so far."""
        return self._calls() // self.micro_batches

    def ends_an_update(self) -> bool:
        """Return whether the last call was the last one of an update."""
        return self.micro_batches == 1 or self._calls() % self.micro_batches == 0

    def _calls(self) -> int:
        variable = self.variable()
        with unrecorded():
            return 0 if variable is None else int(variable.read_value().numpy())


class OptimizerUpdates(StepCount):
    """The updates of Keras's optimizers: in functions, loops and branches by what their `iterations` has grown.

    Optimizers of a `tf.distribute` strategy are not counted: their `iterations` are several variables.
    """

    def __init__(self, samples: SampleCount) -> None:
        super().__init__(samples)
        self._counters: list[_Iterations] = []

    def patches(self, flavor: str) -> list[Patch]:
        """Return the replacements in `flavor`: "keras" or "tf_keras"."""
        keras = compat.of(flavor)
        kinds = [kind for kind in keras.OPTIMIZERS if "LossScale" not in kind.__name__]  # that calls another one
        return [Patch(kind, keras.APPLY, functools.partial(self._apply, keras.variable_keys)) for kind in kinds]

    def _apply(self, keys: _Keys, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(optimizer, *args, **kwargs)
        variable = None if optimizer._iterations is None else tensor_variable(optimizer._iterations)
        if variable is None or isinstance(variable, tf.distribute.DistributedValues):
            return result
        if not self._of([variable.handle]):
            self._counters = [each for each in self._counters if each.variable() is not None]
            micro_batches = getattr(optimizer, "gradient_accumulation_steps", None) or 1
            parts = keys(optimizer) or frozenset([object()])
            self._counters.append(_Iterations(weakref.ref(variable), micro_batches, parts))
        if tf.executing_eagerly():
            self.written([variable.handle])
        return result

    def written(self, handles: Sequence[Any]) -> None:
        """Count the counters among variables that an operation outside of a function has counted up."""
        self._count([(each, 1) for each in self._of(handles) if each.ends_an_update()])

    @contextlib.contextmanager
    def called(self, handles: Sequence[Any]) -> Iterator[None]:
        """Count the updates of a function, which assigns these variables, within the context."""
        before = [(each, each.updates()) for each in self._of(handles)]
        yield
        self._count([(each, each.updates() - count) for each, count in before])

    def _count(self, times: Sequence[tuple[_Iterations, int]]) -> None:
        for done in range(max((count for _, count in times), default=0)):
            parts = {part for each, count in times if count > done for part in each.parts}
            self.updated(parts, repeated=done > 0)

    def _of(self, handles: Sequence[Any]) -> list[_Iterations]:
        wanted = {id(handle) for handle in handles}
        return [each for each in self._counters if (v := each.variable()) is not None and id(v.handle) in wanted]
