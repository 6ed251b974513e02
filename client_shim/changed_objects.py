"""Objects of the script that a training step reads and a callback may change: workers have copies of them.

Variables are sent to workers whenever they change. Other objects are not: a number, a dict or a list that the model's
code refers to. Keras reads them as it traces the first step, or in each step where the model runs eagerly: with
`run_eagerly`, or with `tf.config.run_functions_eagerly(True)`.
"""

import enum
import hashlib
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from types import BuiltinFunctionType, FunctionType
from typing import Any, NoReturn

import numpy as np

from client_shim.call import FitCall, without_nothing
from client_shim.capture.program import digest_of
from client_shim.replica.steps import where
from client_shim.script_code import described, of_library, script_objects, script_parts, update_objects
from client_shim.script_reads import Reads, step_reads
from fdt.errors import REMEDY, CaptureError, NeedsReplica

_PLAIN = (bool, int, float, complex, str, bytes, enum.Enum, np.generic, range)
_MUTABLE = (dict, list, set, deque)
_CONTAINERS = (*_MUTABLE, tuple, frozenset)
_ITEMS = 10_000  # of a container that are compared


def refuse_in_eager_steps(call: FitCall, *, trained: bool, divided: bool) -> None:
    """Refuse a model that runs eagerly, with code of the script, unless each step has a copy of what it reads.

    Args:
        call: The call of `fit`.
        trained: An earlier `fit` has trained.
        divided: Several workers compute one step. Its Python then counts more steps than one machine's (the probe's
            are among them), and decides by a part of a batch. Otherwise code is refused that changes a value of the
            script's, such as a count of its steps: the script has another copy, and a worker may run it once more.

    Raises:
        NeedsReplica: Callbacks, or the step itself, may change what each step reads.
    """
    if not _eager(call.model):
        return
    forced = _functions_eager()  # on this machine: workers trace the step
    cause = "tf.config.run_functions_eagerly is on" if forced else "the model runs eagerly"
    parts, own = script_parts(call.model), _of_script(call.callbacks)
    updates = [described(each) for each in update_objects(call.flavor, call.model)]
    if own and (parts or updates):
        _refuse(f"{cause}, so each step reads objects that the callback {own[0]} may change", trained)
    if forced or divided:
        run = [*parts, *updates] if forced else parts
    else:
        run = [described(obj) for obj, reads in step_code(call) if any(_changes(reads, *each) for each in reads.values)]
    if run:
        _refuse(f"{cause}, so each step runs the Python code of {run[0]}", trained)


def build(call: FitCall, spec: Any, *, trained: bool) -> None:
    """Build what the first step would build: it is traced, and code of an eager model may read values.

    Args:
        call: The call of `fit`, its model not built.
        spec: The elements of its data.
        trained: An earlier `fit` has trained.

    Raises:
        NeedsReplica: The trace failed, and the model runs eagerly.
    """
    try:
        call.flavor.build(call.model, without_nothing(spec))
    except Exception as e:
        if not _eager(call.model):
            raise
        reason = f"the model runs eagerly and is not built, and its code cannot be traced ({type(e).__name__})"
        raise NeedsReplica(f"{reason}; {REMEDY}", reason, trained=trained) from e


def _eager(model: Any) -> bool:
    """Return whether one machine runs the step's Python in each step."""
    return bool(model.run_eagerly) or _functions_eager()


def _functions_eager() -> bool:
    import tensorflow as tf

    return bool(tf.config.functions_run_eagerly())


def step_code(call: FitCall) -> list[tuple[Any, Reads]]:
    """Return the objects that run code of the script in a step, each with what its code reads."""
    return [(obj, step_reads(obj)) for obj in (*script_objects(call.model), *update_objects(call.flavor, call.model))]


def refuse_changed(call: FitCall, digest: str, when: str, *, trained: bool) -> None:
    """Refuse objects that callbacks have changed since the program was captured.

    Args:
        call: The call of `fit`.
        digest: The digest of the program that was sent to workers.
        when: The end of the reason.
        trained: An earlier `fit` has trained.

    Raises:
        NeedsReplica: The model would have another digest now.
    """
    own = _of_script(call.callbacks)
    if own and _digest(call) != digest:
        _refuse(f"the callback {own[0]} changed an object that the training step reads, {when}", trained)


def eager_check(call: FitCall) -> Callable[[], Any] | None:
    """Return a check that callbacks change nothing that Keras's own code reads in each eager step; None: none can.

    It raises NeedsReplica, or returns itself.
    """
    own = _of_script(call.callbacks)
    if not own or not _eager(call.model):
        return None
    before = _traced_parts(call.model)

    def check() -> Callable[[], Any]:
        changed = _first_change(before, _traced_parts(call.model))
        if changed:
            _refuse(f"the model runs eagerly, and the callback {own[0]} changed {changed}", trained=True)
        return check

    return check


def refuse_changed_between_fits(
    traced: MutableMapping[Any, Any], call: FitCall, code: Iterable[tuple[Any, Reads]]
) -> None:
    """Refuse a model that was changed since its last `fit` without compile: Keras trains what it traced there.

    Args:
        traced: What the last `fit` of each model traced; this one is added, unless it is refused.
        call: The call of `fit`.
        code: The script's code in a step, as `step_code` returns it.

    Raises:
        NeedsReplica: Keras would not regard the change.
    """
    model = call.model
    compiled, parts = getattr(model, "_compile_config", None), {**_traced_parts(model), **_traced_values(code)}
    before, known = traced.get(model, (None, {}))
    kept = compiled is not None and before is compiled and model.train_function is None and not _eager(model)
    changed = _first_change(known, parts) if kept else ""
    if changed:
        reason = (
            f"{changed} changed since the last fit of {model.name!r} without compile(), "
            f"and Keras may train with the old value until compile(). Received: fit at {where()}"
        )
        raise NeedsReplica(f"{reason}; call compile() after the change, or {REMEDY}", reason, trained=True)
    traced[model] = compiled, parts  # not after a refusal, which the script may catch


def _first_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    return next((name for name in before if now.get(name) != before[name]), "")


def _traced_parts(model: Any) -> dict[str, Any]:
    """Return what Keras reads as it traces a step, by name: an optimizer, its settings, those of Keras's own layers."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # of a LossScaleOptimizer
    settings = _settings(optimizer)
    if not isinstance(settings.get("learning_rate"), dict):  # no schedule, but a variable, which each step reads
        settings.pop("learning_rate", None)
    own = [layer for layer in model._flatten_layers() if not hasattr(layer, "layers")]
    return {
        "the list of trainable variables": [id(variable) for variable in model.trainable_variables],
        "the optimizer": id(model.optimizer),
        "steps_per_execution": getattr(model, "steps_per_execution", None),  # tf_keras reads a variable
        "a setting of the optimizer": repr(settings),
        **{f"a setting of layer {layer.name!r}": repr(_settings(layer)) for layer in own},
    }


def _traced_values(code: Iterable[tuple[Any, Reads]]) -> dict[str, str]:
    """Return the plain values that the script's code reads as Keras traces a step, by name.

    Values that the code itself changes are left out: Keras's trace changes them, too.
    """
    found, arrays = defaultdict[str, list[str]](list), dict[int, tuple[Any, str]]()
    for obj, reads in code:
        for name, value in reads.values:
            changed = _changes(reads, name, value)
            _, text = arrays.get(id(value), (None, ""))  # layers may share a large one
            if not changed and not text:
                text = _plain(value, reads.keys)
                if isinstance(value, np.ndarray):
                    arrays[id(value)] = value, text
            found[f"{name}, which {described(obj)} reads,"].append("" if changed else text)
    return {name: repr(texts) for name, texts in found.items() if any(texts)}


def _changes(reads: Reads, name: str, value: Any) -> bool:
    """Return whether code changes a value that it reads."""
    last = name.rpartition(".")[2]
    return last in reads.stored or (f"{last}[]" in reads.stored and isinstance(value, _MUTABLE))


def _plain(value: Any, keys: set[str], depth: int = 3) -> str:
    """Return a text of a value that a graph has as a constant; "" for another.

    Args:
        value: The value.
        keys: The keys that are read of a dict with settings.
        depth: Containers within containers that are read.
    """
    given = value
    if _is_eager(value):
        value = value.numpy() if value.dtype.name not in ("resource", "variant") else None
    if value is os.environ or value is os.getenv:
        return repr({name: os.environ.get(name) for name in sorted(keys)})
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        value = value.tolist()
    if value is None or isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, np.ndarray):
        content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)  # no copy of a table of embeddings
        return f"{value.dtype}{value.shape}{hashlib.blake2b(content.data).hexdigest()}"
    if isinstance(value, (BuiltinFunctionType, FunctionType)):
        return f"{value.__module__}.{value.__qualname__}{hash(getattr(value, '__code__', None))}"
    if not isinstance(value, _CONTAINERS) or not depth:
        return ""
    if len(value) > _ITEMS:
        return f"{len(value)} at {id(given)}"
    if isinstance(value, (set, frozenset)):
        return repr(sorted(_plain(each, keys, depth - 1) for each in value))
    items: Iterable[tuple[Any, Any]] = enumerate(value)
    if isinstance(value, dict):  # a class of the script's may have an attribute `items`, and a proxy is no dict
        items = dict.items(value) if dict in type(value).__mro__ else value.items()
    read = {str(name): _plain(each, keys, depth - 1) for name, each in items}
    return repr({name: text for name, text in read.items() if name in keys} or read)


def _settings(part: Any) -> dict[str, Any]:
    """Return the settings of an optimizer or a layer of Keras, and arrays that it has learnt; none of the script's own.

    An adapted Normalization holds its mean and variance as arrays, which a trace has as constants.
    """
    try:
        return {**part.get_config(), **_arrays(part)} if of_library(part) else {}
    except Exception:  # noqa: BLE001 - it calls the script's code, which may fail where it is not asked for
        return {}


def _arrays(part: Any) -> dict[str, str]:
    own = vars(part).items()
    return {name: _plain(v, set()) for name, v in own if isinstance(v, np.ndarray) or _is_eager(v)}


def _is_eager(value: Any) -> bool:
    return type(value).__name__ == "EagerTensor"


def _digest(call: FitCall) -> str:
    try:
        return digest_of(call.flavor, call.model)
    except CaptureError:  # an object that cannot be pickled has been added
        return ""


def _refuse(reason: str, trained: bool) -> NoReturn:
    raise NeedsReplica(f"{reason}, and workers have copies of it; {REMEDY}", reason, trained=trained)


def _of_script(callbacks: Iterable[Any]) -> list[str]:
    """Return those of `callbacks` that run code of the script, as "Anneal (train.py:12)"."""
    own = [c for c in callbacks if not of_library(c) or type(c).__name__ == "LambdaCallback"]
    return [type(c).__name__ if of_library(c) else described(c) for c in own]
