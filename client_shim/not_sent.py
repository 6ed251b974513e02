"""Refusal of what a step or its data read of this process and workers do not have.

Workers import libraries anew, have random numbers of their own, and are sent batches ahead of their steps.
"""

import random
from collections.abc import Iterator
from inspect import getattr_static
from types import CellType, FunctionType, GeneratorType
from typing import Any, NoReturn

import numpy as np

from client_shim.call import FitCall
from client_shim.capture.data import is_dataset
from client_shim.changed_objects import REMEDY, update_objects
from client_shim.replica.steps import of_script
from client_shim.script_code import described, of_library, script_objects
from client_shim.script_reads import code_reads, script_function, step_reads
from fdt.errors import NeedsReplica

_GENERATORS = (np.random.RandomState, np.random.Generator, random.Random)


def refuse_not_sent(call: FitCall, *, trained: bool) -> None:
    """Refuse what workers cannot compute as this process would.

    Args:
        call: The call of `fit`, with a built model.
        trained: An earlier `fit` has trained.

    Raises:
        NeedsReplica: The script replaced a method of a library's class, or makes the function that Keras calls for a
            step; Python's or NumPy's random numbers are a part of what Keras traces; or the training data are computed
            from the weights that are trained.
    """
    model = call.model
    for name in ("make_train_function", "make_test_function", "train_function"):
        if own := script_function(getattr(model, name)):
            _refuse(f"{described(own)} is or makes what Keras calls for a step, and workers call train_step", trained)
    for place in _replaced_methods(call):
        _refuse(f"{place}, and workers import the library anew", trained)
    for obj in (*script_objects(model), *update_objects(call)):
        reads = step_reads(obj)
        drawn = next((name for name, value in reads.values.items() if _draws(value)), "")
        drawn = drawn or next((f"self.{n}" for n in sorted(reads.attributes) if _draws(getattr_static(obj, n, 0))), "")
        if drawn:
            _refuse(f"{described(obj)} draws from {drawn} while Keras traces the step: workers draw others", trained)
    if reader := _reader(call):
        _refuse(f"{reader} computes training data from the weights that are trained, ahead of the steps", trained)


def _replaced_methods(call: FitCall) -> Iterator[str]:
    """Yield the methods of the libraries' classes that the script has replaced, as "Dense.call is replaced by ..."."""
    optimizers = call.flavor.optimizers(call.model)
    schedules = [value for each in optimizers for value in vars(each).values()]
    parts = (*call.model._flatten_layers(), *call.model.metrics, call.model.loss, *optimizers, *schedules)
    for kind in {kind: None for part in parts for kind in type(part).__mro__ if of_library(kind)}:
        for name, value in vars(kind).items():
            if isinstance(value, FunctionType) and of_script(value.__code__.co_filename):
                yield f"the script replaced {kind.__name__}.{name} by {described(value)}"


def _draws(value: Any) -> bool:
    """Return whether a value is a generator of random numbers, a module of them, or a method of one."""
    value = getattr(value, "__self__", value)
    return value is random or value is np.random or isinstance(value, _GENERATORS)


def _reader(call: FitCall) -> str:
    """Return what computes training data from trainable variables of the model; "": nothing is known to."""
    data, trained = call.arguments["x"], call.flavor.trainable(call.model)
    if is_dataset(data):
        from client_shim.capture.orders import captures

        handles = {id(_handle(variable)) for variable in trained}
        return "a map of the dataset" if any(id(tensor) in handles for tensor in captures(data)) else ""
    ids = {id(variable) for variable in trained}
    of_the_model = any(id(v) in ids for value in _read_by(data) for v in getattr(value, "trainable_variables", ()))
    if not of_the_model:
        return ""
    return f"the generator {data.__name__}" if isinstance(data, GeneratorType) else described(data)


def _read_by(data: Any) -> list[Any]:
    """Return what the code of a generator, or of an object of the script's class, reads as it yields batches."""
    if isinstance(data, GeneratorType):
        if data.gi_frame is None:  # it is exhausted
            return []
        local, code = data.gi_frame.f_locals, data.gi_code  # among its locals are the variables of enclosing functions
        cells = tuple(CellType(local.get(name)) for name in code.co_freevars)
        reads = code_reads([FunctionType(code, data.gi_frame.f_globals, closure=cells)], type(local.get("self")))
        owners = [*local.values()]
    else:
        functions = [getattr(type(data), name, None) for name in ("__getitem__", "__iter__", "__next__")]
        reads, owners = code_reads(functions, type(data)), [data]
    owners += reads.values.values()
    return [*owners, *(getattr_static(owner, name, None) for owner in owners for name in reads.attributes)]


def _handle(variable: Any) -> Any:
    return getattr(getattr(variable, "_value", variable), "handle", None)


def _refuse(reason: str, trained: bool) -> NoReturn:
    raise NeedsReplica(f"{reason}; {REMEDY}", reason, trained=trained)
