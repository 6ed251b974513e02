"""Steps that a worker skips: regions of eager code that workers execute in turn.

The regions are the callbacks of client_shim/replica/skippable_regions.py. A worker takes every n-th step, from the tape
to its gradients. The step number rises when gradients are applied, so micro-batches whose gradients are accumulated
belong to one worker. Every worker must draw equally many random numbers from the script's generators.
"""

import contextlib
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from client_shim.replica.steps import loop_at_work, script_frames
from fdt.compat.tensorflow import context
from nfdt.replica.round_robin import Region, RoundRobin

_BATCH = 64  # a longer list does not contain the arrays of a batch


class SkippableRegions:
    """Skippable regions of eager steps.

    `count` receives the number of samples of this worker's steps; `meet` is called when a loop of such steps ends.
    """

    def __init__(self, turns: RoundRobin, count: Callable[[int], None], meet: Callable[[], None]) -> None:
        self._turns, self._count, self._meet = turns, count, meet
        self._running: int | None = None  # key of the running region
        self._regions: dict[int, Region] = {}  # by key: the region of the last models that its code was used for
        self._drawing: set[int] = set()  # regions that draw random numbers: every worker then runs every step of them
        self._shapes: Any = None  # shapes of the running region's inputs
        self._drawn: Any = None  # random numbers that it draws
        self._apart = contextlib.ExitStack()  # restores TensorFlow's seed after it
        self.rows = 0  # number of samples of the step's batch
        self._anew = True  # whether the next tape is the first of its step; a GAN has several
        self._depth = 0

    def inside(self) -> bool:
        """Return whether a tape is open, or its region is not at its end."""
        return self._depth > 0 or (self._running is not None and self._turns.running())

    def mine(
        self,
        key: int,
        names: Mapping[str, Any],
        reads: tuple[str, ...],
        cut: Callable[[], Any] | None = None,
        picked: Callable[[], Any] = tuple,
    ) -> bool:
        """Return whether the region runs. In another's turn it also runs while no earlier result fits.

        Args:
            key: Identity of the region.
            names: The script's names.
            reads: Names that the region reads.
            cut: Returns the slices that the region takes itself; None: the region must always run.
            picked: Returns source, container and index of the values that the region picks, as in `models[i]`.
        """
        if self._depth:
            return True
        given_up, self._running = self._running == key, None  # left by `continue` before `keep`
        self._apart.close()
        site = None if not tf.executing_eagerly() or self._turns.calling else loop_at_work()
        if site is None or not site.trains:
            return True
        held = {**_held(names, reads), **_picked(picked)}
        region = self._regions[key] = self._turns.region(self, key, held)
        self._shapes = None if cut is None else _shapes(held, cut)
        ready = self._shapes is not None and region.runs > 1 and key not in self._drawing
        runs = self._turns.begin(region, site, self._shapes, ready=ready, given_up=given_up)
        self._running, self.rows = key if runs else None, 0
        if runs:
            self._drawn = Draws(held.values())
            apart(f"{key} {region.number}", self._apart)
        return runs

    def keep(self, key: int, values: dict[str, Any]) -> None:
        """Store the result of the region's run."""
        if self._running != key:
            return
        self._apart.close()
        region = self._regions[key]
        self._turns.keep(region, self._shapes, values)
        if region.runs > 1 and self._drawn.drawn():  # the first run may build the model
            self._drawing.add(key)
        if not self.rows:
            self._found(0)
        self._running = None
        self._anew = self._anew or "" in values  # the region ends with a return of its function

    def last(self, key: int) -> Mapping[str, Any]:
        """Return the result of the region's last run."""
        values: Mapping[str, Any] = self._regions[key].values
        return values

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Mark a tape; nested tapes belong to its step."""
        if not self._depth and self._running is None:
            self.rows = 0
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def part(self, value: Any) -> Any:
        """Count the samples: the rows of the first array that the tape reads."""
        if not self.rows and self._depth and tf.executing_eagerly():
            first = next(iter(tf.nest.flatten(value)), None) if isinstance(value, (list, tuple, dict)) else value
            if isinstance(first, (np.ndarray, tf.Tensor)) and not isinstance(first, tf.Variable) and len(first.shape):
                self._found(int(first.shape[0]))
        return value

    def _found(self, rows: int) -> None:
        self.rows = rows
        if self._running is not None and self._anew and self._turns.now() == "mine":
            self._count(rows)
            self._anew = False

    array = part

    def whole(self, value: Any) -> Any:
        """End the step at the `return` of the function that has taken it; return `value`, unchanged."""
        self.done()
        return value

    def done(self) -> None:
        """End the step: the next tape starts another."""
        self._anew = self._anew or not self._depth

    def left(self, first: int) -> None:
        """Handle the end of a script's loop: all workers synchronise if it is the loop of the last steps."""
        if self._turns.around is None or not tf.executing_eagerly():
            return
        loop = self._turns.around.outermost
        frame = next(script_frames(), None)
        over = frame is not None and loop.code is frame.f_code and loop.first == first
        if over or not loop.running():
            self._apart.close()
            self._turns.leave()
            self._meet()


def _held(names: Mapping[str, Any], reads: tuple[str, ...]) -> dict[str, Any]:
    """Return the values that the region reads, also from its module."""
    frame = next(script_frames(), None)
    known = {**(frame.f_globals if frame is not None else {}), **names}
    return {name: known[name] for name in reads if name in known}


def _picked(picked: Callable[[], Any]) -> dict[str, Any]:
    """Return the values that the region picks of lists and dicts, such as the model of `models[i]`."""
    found = {}
    with contextlib.suppress(Exception):  # the error of the script is raised where it picks
        for text, container, index in picked():
            if isinstance(container, (list, tuple, dict)):
                found[text] = container[index]
    return found


def _shapes(held: Mapping[str, Any], cut: Callable[[], Any]) -> Any:
    """Return the shapes of the arrays and slices that the region reads; None if they cannot be computed before it."""
    try:
        return {name: _shape(value) for name, value in held.items()}, [_rows(value) for value in cut()]
    except Exception:  # a name that an inner comprehension binds, or an error of the script
        return None


def _shape(value: Any) -> Any:
    """Return the shape of an array, or of those in a batch; None for other values."""
    if isinstance(value, (tuple, dict)) or (isinstance(value, list) and len(value) < _BATCH):
        return [_shape(each) for each in (value.values() if isinstance(value, dict) else value)]
    return tuple(value.shape) if isinstance(value, (np.ndarray, tf.Tensor)) and value.ndim else None


def _rows(value: Any) -> Any:
    """Return the shape or length of a sliced value: an array, a table, a list."""
    return tuple(value.shape) if hasattr(value, "shape") else len(value)


class Draws:
    """State of the random generators that a step may use: NumPy's and Python's global ones, and those in `values`.

    `values` are the values that the step reads. TensorFlow's generators are a worker's own and not included.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        kinds = np.random.Generator, np.random.RandomState, random.Random
        self._generators = [value for value in values if isinstance(value, kinds)]
        self._before = self._states()

    def drawn(self) -> bool:
        """Return whether a number was drawn since this object was created."""
        return self._states() != self._before

    def _states(self) -> bytes:
        states = [np.random.get_state(), random.getstate(), *map(_state, self._generators)]
        return pickle.dumps(states)


def apart(seed: str, stack: contextlib.ExitStack) -> None:
    """Seed TensorFlow's eager operations by `seed` until `stack` closes.

    Later draws, such as the order of a shuffled dataset, stay equal on workers that did not execute this code.
    """
    known = context.context()
    if getattr(known, "_rng", None) is not None:  # the script has set a seed
        stack.callback(setattr, known, "_rng", known._rng)
        known._rng = random.Random(seed)


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate()
