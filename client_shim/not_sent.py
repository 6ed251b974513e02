"""Refusal of steps and data that depend on the state of this process.

Workers import libraries anew, have random numbers of their own, and are sent batches ahead of their steps.
"""

import contextlib
import functools
import inspect
import itertools
import random
import re
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any, NoReturn, cast

import numpy as np

from client_shim.call import FitCall
from client_shim.capture.data import is_dataset
from client_shim.replica.steps import of_script
from client_shim.script_code import described, held_by, of_library, with_inner
from client_shim.script_reads import Reads, reads_of, script_function
from fdt.errors import REMEDY, NeedsReplica

_TABLES = {"MutableHashTable", "DenseHashTable"}
_GENERATORS = (np.random.RandomState, np.random.Generator, random.Random)
# Methods and functions that no step calls.
_BESIDE = {"fit", "evaluate", "predict", "summary", "save", "save_weights", "load_weights", "get_config", "__repr__"}
_BESIDE |= {"get_file", "load_data", "load_model", "plot_model", "save_model", "get_logger", "print_msg"}
_BESIDE |= {"set_random_seed", "to_categorical", "image_dataset_from_directory"}


def refuse_not_sent(call: FitCall, code: Iterable[tuple[Any, Reads]]) -> None:
    """Refuse a `fit` whose result on workers would differ from the result in this process.

    Args:
        call: The call of `fit`, with a built model.
        code: The script's code in a step, as `changed_objects.step_code` returns it.

    Raises:
        NeedsReplica: The script replaced a method of a library's class or a function of its modules, or makes the
            function that Keras calls for a step; Python's or NumPy's random numbers are a part of what Keras traces; a
            step reads a table that the script or the step may change; or the training data are computed from the
            weights that are trained.
    """
    model, validates = call.model, call.arguments.get("validation_data") is not None
    for name in ("make_train_function", "train_function", *["make_test_function"] * validates):
        own = script_function(getattr(model, name))
        if own and not of_library(own):
            _refuse(f"the script defines {described(own)} for Keras's {name}, and workers call train_step")
    for place in itertools.chain(_replaced_methods(call), _replaced_functions()):
        _refuse(f"{place}, and workers import the library anew")
    for obj, reads in code:
        drawn = next((name for name, value in reads.values if _draws(value)), "")
        if drawn:
            _refuse(f"{described(obj)} draws from {drawn} while Keras traces the step, and workers draw other numbers")
        table = next((name for name, value in reads.values if _holds_table(value)), "")
        if table:
            _refuse(f"{described(obj)} looks up {table}, a table that may change, and workers have copies of it")
    if reader := _reader(call):
        _refuse(f"{reader} computes training data from the trained weights, before the step that uses the data")


def _replaced_methods(call: FitCall) -> Iterator[str]:
    """Yield the methods of the libraries' classes that the script has replaced, as "Dense.call is replaced by ..."."""
    layers, optimizers = list(call.model._flatten_layers()), call.flavor.optimizers(call.model)
    held = [value for each in (*layers, *optimizers) for value in vars(each).values()]
    parts = [*layers, *optimizers, *held_by([call.model.loss, *with_inner(call.model.metrics), *held])]
    for kind in {kind: None for part in parts for kind in type(part).__mro__ if of_library(kind)}:
        for name, value in vars(kind).items():
            own = _by_script(value) if name not in _BESIDE else None
            if own is not None:
                yield f"the script replaced {kind.__name__}.{name} by {described(own)}"


def _replaced_functions() -> Iterator[str]:
    """Yield the functions of the libraries' modules that the script has replaced, in the same words."""
    for path, module in list(sys.modules.items()):
        if path.partition(".")[0] not in ("keras", "tf_keras", "tensorflow"):
            continue
        for name, value in list(getattr(module, "__dict__", {}).items()):  # 90,000: 30 ms
            if type(value) is FunctionType:
                own = value if of_script(value.__code__.co_filename) else None
            else:
                own = _by_script(value) if callable(value) and not isinstance(value, type) else None
            if own is not None and name not in _BESIDE and _names(module, name):
                yield f"the script replaced {path.replace('._api.v2', '')}.{name} by {described(own)}"


def _names(module: ModuleType, name: str) -> bool:
    """Return whether the source of a module has a name; a name that the script adds replaces nothing."""
    try:
        return re.search(rf"\b{re.escape(name)}\b|\bimport \*", inspect.getsource(module)) is not None
    except (OSError, TypeError):
        return True


def _by_script(value: Any) -> Any:
    """Return the script's function behind a member of a class or module, or the member if its class is the script's.

    None is returned for others.
    """
    found, kind = script_function(value), cast("Any", type(value))
    return value if found is None and _calls_script(kind) else found


@functools.cache
def _calls_script(kind: type) -> bool:
    return any(script_function(getattr(kind, name, None)) for name in ("__get__", "__call__"))


def _draws(value: Any) -> bool:
    """Return whether a value is a generator of random numbers, a module of them, or a method of one."""
    if type(value).__name__ in ("builtin_function_or_method", "method", "cython_function_or_method"):
        value = getattr(value, "__self__", value)
    return value is random or value is np.random or isinstance(value, _GENERATORS)


def _holds_table(value: Any) -> bool:
    """Return whether a value is or holds a table that may change; Keras's layers may count tokens in theirs."""
    counting = set[int]()
    for each in held_by([value]):
        if _TABLES.intersection(kind.__name__ for kind in type(each).__mro__) and id(each) not in counting:
            return True
        if type(each).__module__.partition(".")[0] in ("keras", "tf_keras"):
            counting.update(map(id, getattr(each, "__dict__", {}).values()))
    return False


def _reader(call: FitCall) -> str:
    """Return the name of what computes training data from trainable variables; "": none is found."""
    data, trained = call.arguments["x"], call.flavor.trainable(call.model)
    ids = {id(variable) for variable in trained}
    if is_dataset(data):
        from client_shim.capture.orders import functions_of

        maps, handles = functions_of(data), {id(_handle(variable)) for variable in trained}
        captured = any(id(tensor) in handles for each in maps for tensor in each.function.captured_inputs)
        own = [getattr(each, "_func", None) for each in maps]
        return "a map of the dataset" if captured or _reads(own, [], ids) else ""
    name = getattr(data, "__name__", "") if type(data).__name__ == "generator" else ""
    functions = [data, *(getattr(type(data), each, None) for each in ("__getitem__", "__iter__", "__next__"))]
    if not _reads(functions, [data], ids):
        return ""
    return f"the generator {name}" if name else described(data)


def _reads(functions: list[Any], owners: list[Any], ids: set[int]) -> bool:
    """Return whether functions read one of the variables with these ids, or a layer that has it."""
    for _, value in reads_of(functions, owners).values:
        if id(value) in ids:
            return True
        owned: Iterable[Any] = ()
        if isinstance(getattr(type(value), "trainable_variables", None), property):
            with contextlib.suppress(Exception):  # a model of tf_keras that is not built, or the script's property
                owned = value.trainable_variables
        if any(id(variable) in ids for variable in owned):
            return True
    return False


def _handle(variable: Any) -> Any:
    return getattr(getattr(variable, "_value", variable), "handle", None)


def _refuse(reason: str) -> NoReturn:
    raise NeedsReplica(f"{reason}; {REMEDY}", reason, trained=False)  # ScriptRun.remembering knows of earlier fits
