"""The search for the part of a step that does not add up over slices of a batch: a layer, a loss or an add_loss."""

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from fdt.data import source
from fdt.patches import Patch, patched
from fdt.typing import Tensor
from hfdt.collectives import Comm
from hfdt.exactness.trial import COARSE, Result, StepTrial
from hfdt.exactness.untouched import Untouched
from hfdt.worker.step_context import Reading, StepTerms


@dataclass
class StepComponent:
    """A tensor of the step. `owner`: the layer or loss that made it; `kind`: "output", "loss" or "add_loss"."""

    kind: str
    owner: Any
    name: str


def find(trainable: Any, terms: StepTerms, batch: Any, state: Untouched, tolerance: float) -> str:
    """Return the required change and its reason, as a phrase to which the consequence can be appended. A collective."""
    parts: list[StepComponent] = []
    watched = _Watched(trainable.flavor.keras, parts)
    trial = StepTrial(trainable, replace(terms, reading=Reading.MEAN), batch, watched)
    if trial.tolerance >= COARSE:
        return _of_the_step(trainable, terms)
    state.restart()
    sliced = trial.sliced(batch)
    state.restart()
    alone = trial.alone(batch)
    return _judged(trainable, terms, batch, parts, sliced, alone, tolerance)


def _judged(
    trainable: Any,
    terms: StepTerms,
    batch: Any,
    parts: list[StepComponent],
    sliced: Result,
    alone: Result,
    tolerance: float,
) -> str:
    comm, sums = terms.comm, False
    pairs = list(zip(parts, sliced.seen, alone.seen, strict=True))
    for part, ours, theirs in pairs:
        if part.kind == "output" and _agreed(comm, _differs(ours, theirs[: len(ours)], tolerance)):
            layer = f"layer {part.owner.name!r}{place_of(type(part.owner), 'call')}"
            return f"{layer} must compute each row without the batch's other rows, but {_DIFFERENT}"
    share = _share(batch, comm)
    for part, ours, theirs in pairs:
        if part.kind == "output":
            continue
        mean, total = (comm.sum([ours * tf.cast(w, ours.dtype)], "hfdt.culprit")[0] for w in (share, 1.0))
        if not _agreed(comm, _differs(mean, theirs, tolerance)):
            continue
        if part.kind == "loss" and not _agreed(comm, _differs(total, theirs, tolerance)):
            sums = True
        elif part.kind == "loss":
            return f"the loss {part.name} must be a mean or a sum over samples, but {_DIFFERENT}"
        else:
            return f"the loss that {part.name} adds must be a mean over samples, but {_DIFFERENT}"
    if sums:
        return (
            f"the terms of the loss must all be means or all be sums over samples, but they are both, and {_DIFFERENT}"
        )
    return _of_the_step(trainable, terms)


_DIFFERENT = "the results of a batch's slices do not add up to those of the batch"


def _of_the_step(trainable: Any, terms: StepTerms) -> str:
    model, method = trainable.model, "compute_loss" if terms.own_step else "train_step"
    place = place_of(type(model), method)
    own = place or not terms.own_step
    what = f"{type(model).__name__}.{method}{place}" if own else f"the loss {named(getattr(model, 'loss', None))}"
    return f"{what} must be a mean or a sum over samples, but {_DIFFERENT}"


def named(loss: Any) -> str:
    """Return the name of a loss, with its place in the script."""
    if isinstance(loss, str):
        return loss
    function = getattr(loss, "fn", loss)
    function = getattr(function, "python_function", function)
    if inspect.isfunction(function):
        return f"{function.__name__}{_place(function)}"
    return f"{type(loss).__name__}{place_of(type(loss), 'call')}"


def place_of(cls: type, method: str) -> str:
    """Return the file and line of a script's method, as " (train.py:3)"; "" for a method of Keras."""
    return _place(getattr(cls, method, None))


def _place(function: Any) -> str:
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    if code is None or "/keras/" in code.co_filename or "/tf_keras/" in code.co_filename:
        return ""
    return f" ({Path(code.co_filename).name}:{code.co_firstlineno})"


def _share(batch: Any, comm: Comm) -> Tensor:
    _, share = source.cut_batch(batch, comm.rank, comm.size)
    return tf.cast(share[0], tf.float64) / tf.cast(share[1], tf.float64)


def _differs(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    if ours.shape != theirs.shape:
        return True
    return float(tf.norm(ours - theirs)) > tolerance * (float(tf.norm(theirs)) + 1e-30)


def _agreed(comm: Comm, yes: bool) -> bool:
    """Return rank 0's decision: its slice has the batch's first rows."""
    return bool(comm.sum([tf.constant(float(yes and comm.rank == 0), tf.float64)], "hfdt.culprit")[0])


class _Watched:
    """A recorder of the tensors of a traced step, which fills `parts` with their descriptions."""

    def __init__(self, keras: Any, parts: list[StepComponent]) -> None:
        self._keras, self._parts = keras, parts

    @contextlib.contextmanager
    def __call__(self, batch: Any) -> Iterator[list[Tensor]]:
        graph = tf.compat.v1.get_default_graph()
        seen: list[Tensor] = []
        keras = self._keras

        def see(kind: str, owner: Any, name: str, tensor: Any) -> None:
            """Record a tensor, except those of inner graphs such as loops, which cannot be fetched."""
            if tf.is_tensor(tensor) and getattr(tensor, "graph", None) is graph and tensor.dtype.is_floating:
                self._parts.append(StepComponent(kind, owner, name))
                seen.append(tensor)

        def call(original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
            out = original(layer, *args, **kwargs)
            for tensor in tf.nest.flatten(out):
                if tf.is_tensor(tensor) and tensor.shape.rank and tensor.shape[0] is None:
                    see("output", layer, layer.name, tensor)
            return out

        def lose(original: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
            out = original(loss, *args, **kwargs)
            if tf.is_tensor(out) and out.shape.rank == 0:
                see("loss", loss, named(loss), out)
            return out

        def add(original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
            for tensor in tf.nest.flatten(args[:1]):
                see("add_loss", layer, f"layer {layer.name!r}{place_of(type(layer), 'call')}", tf.reduce_sum(tensor))
            return original(layer, *args, **kwargs)

        patches = [
            Patch(keras.layers.Layer, "__call__", call),
            Patch(keras.losses.Loss, "__call__", lose),
            Patch(keras.layers.Layer, "add_loss", add),
        ]
        with patched(patches):
            yield seen
