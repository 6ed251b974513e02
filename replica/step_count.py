"""The counts of a replicated script's training: steps by assignments, updates of optimizers, samples."""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from fdt import compat
from fdt.keras.variables import tensor_variable
from fdt.patches import Patch
from replica.entry import RowEntry
from replica.tensors import unrecorded


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
        if self._entry.entered != self.batch:
            self.batch = self._entry.entered
            self.samples += self._entry.rows[0]


class StepCount:
    """Steps, each of one or more updates. An update is of a set of variables, or of optimizers.

    An update of what was not updated in the last step joins it: a GAN's second network. If it is then updated again
    before the others, one more step is counted: a second model is trained.

    Args:
        samples: The count of samples.
        begin: Called when a step begins.

    Attributes:
        steps: The number of steps.
        repeats: Whether some step has no batch of its own, so that samples are not known.
    """

    def __init__(self, samples: SampleCount, begin: Callable[[], None] = lambda: None) -> None:
        self._samples, self._begin = samples, begin
        self._updates: list[set[int]] = []  # of the last step
        self._batch = 0
        self.steps, self.repeats = 0, False

    def updated(self, parts: set[int], *, taken: bool = True, repeated: bool = False) -> None:
        """Count an update.

        Args:
            parts: Numbers of what is updated.
            taken: Whether a gradient was computed since the last update; without one, this is the last update's rest.
            repeated: Whether a call has updated the same before, of the same batch.
        """
        again = next((n for n, update in enumerate(self._updates) if not update.isdisjoint(parts)), None)
        if self._updates and not taken:
            self._updates[-1] |= parts
        elif self._updates and again is None:
            self._updates.append(parts)
        elif taken:
            if again:  # what joined the last step is updated alone: that was a step of its own
                self._begin_step(repeated=repeated)
            self._begin_step(repeated=bool(again) or repeated)
            self._updates = [parts]

    def _begin_step(self, *, repeated: bool) -> None:
        self._begin()
        self.repeats |= self._samples.batch == self._batch and not repeated
        self._batch = self._samples.batch
        self.steps += 1


class OptimizerUpdates(StepCount):
    """The updates of Keras's optimizers: in functions, loops and branches by what their `iterations` has grown."""

    def __init__(self, samples: SampleCount) -> None:
        super().__init__(samples)
        self._counters: list[weakref.ref[Any]] = []

    def patches(self, flavor: str) -> list[Patch]:
        """Return the replacements in `flavor`: "keras" or "tf_keras"."""
        keras = compat.of(flavor)
        kinds = [kind for kind in keras.OPTIMIZERS if "LossScale" not in kind.__name__]  # that calls another one
        return [Patch(kind, keras.APPLY, self._apply) for kind in kinds]

    def _apply(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(optimizer, *args, **kwargs)
        if optimizer._iterations is not None:
            counter = tensor_variable(optimizer._iterations)
            if not any(each() is counter for each in self._counters):
                self._counters.append(weakref.ref(counter))
            if tf.executing_eagerly():
                self._written(counter.handle)
        return result

    def written(self, handles: Sequence[Any]) -> None:
        """Count the counters among variables that an operation outside of an optimizer's eager update assigns."""
        for handle in handles:
            self._written(handle)

    def _written(self, handle: Any) -> None:
        self.updated_all({n: 1 for n, counter in self._of([handle])})

    def updated_all(self, times: dict[int, int]) -> None:
        """Count the updates of a call: how many each optimizer has made."""
        for done in range(max(times.values(), default=0)):
            self.updated({n for n, count in times.items() if count > done}, repeated=done > 0)

    @contextlib.contextmanager
    def called(self, handles: Sequence[Any]) -> Iterator[None]:
        """Count the updates of a function, which assigns these variables, within the context."""
        counters = self._of(handles)
        before = {n: _value(counter) for n, counter in counters}
        yield
        self.updated_all({n: _value(counter) - before[n] for n, counter in counters})

    def _of(self, handles: Sequence[Any]) -> list[tuple[int, Any]]:
        wanted = {id(handle) for handle in handles}
        found = [(n, each()) for n, each in enumerate(self._counters)]
        return [(n, counter) for n, counter in found if counter is not None and id(counter.handle) in wanted]


def _value(counter: Any) -> int:
    with unrecorded():
        return int(counter.read_value().numpy())
