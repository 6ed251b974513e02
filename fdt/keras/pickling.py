"""Pickling of a model: its Python objects by value, its variables as shapes.

Keras's own configs omit what scripts do: constructor arguments that are layers or functions, attributes set later, an
overridden `compile`, a `get_config` that misses an argument. So the object graph itself is pickled. Classes and
functions of the script go by value (cloudpickle), variables as placeholders that the job's state fills, and some
objects of the framework as constructor arguments. `Reduce` functions add what one flavor of Keras needs.

Layers refer to one another through their nodes. If attributes were written where an object is found, the recursion
would be as deep as the model. So a layer (node, optimizer, loss, ...) is written without its attributes where it is
found, and its attributes follow in a record of their own, in the order of finding; records refer to objects by pickle's
memo. `loads` creates the objects as it finds them and fills them record by record. A constructor, `__reduce__` or
`__setstate__` of the script that receives a layer gets it without its attributes, as pickle does in a cycle.
"""

import ast
import contextlib
import inspect
import io
import linecache
import pickle
import sys
import textwrap
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import tensorflow as tf

from fdt.errors import CaptureError, NeedsReplica
from fdt.keras import natives
from fdt.tensors import NUMBERS

Reduce = Callable[[Any, "ModelPickler"], Any]  # returns a Later, a value as of __reduce__, or NotImplemented

_afterwards = threading.local()  # .calls: `loads` runs them once all objects are complete


class Later(NamedTuple):
    """The reduction `make(*arguments)`, followed in a record by `finish(object, state)`."""

    make: Callable[..., Any]
    arguments: tuple[Any, ...]
    state: dict[str, Any]
    finish: Callable[[Any, dict[str, Any]], None]


class ModelPickler(cloudpickle.Pickler):
    """Pickles a model. `pickled_variables`: ids of the variables whose values are in the job's state instead.

    Attributes:
        script_variables: Numeric variables that the model's code refers to without owning them, in the order found.
            Their values are in the job's state, too.
    """

    def __init__(self, file: io.BytesIO, reduces: Sequence[Reduce], pickled_variables: frozenset[int]) -> None:
        super().__init__(file, protocol=5)
        self._reduces = (*reduces, natives.reduce_plain, natives.reduce_native)
        self._pickled_variables = pickled_variables
        self.script_variables: list[Any] = []
        self._constants: set[int] = set()  # ids of the variables that are written with their values
        self._records: deque[natives.PickleRecord] = deque()
        self._functions: dict[int, Any] = {}  # by the id of their code object
        self._strings: dict[str, str] = {}
        self._zeros: dict[tuple[tuple[int, ...], str], natives.Zeros] = {}
        self.record: natives.PickleRecord | None = None  # the record being written
        self._sources: dict[str, list[str]] = {}  # of functions of notebooks, by the name of their cell

    def dump_records(self, obj: Any) -> None:
        """Pickle `obj`, each found object's attributes, one pickle each, None, sources, and script variables."""
        self.dump(obj)
        while self._records:
            self.record = self._records.popleft()
            self.dump((self.record.obj, self.record.state, self.record.finish))
        self.dump(None)
        self.dump(self._sources)
        self.dump(self.script_variables)

    def keep_value(self, variable: Any) -> None:
        """Write `variable`, which no group of the state has, with its value: the state of a random generator."""
        self._constants.add(id(variable))

    def value_of(self, variable: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """Return the initial value of a placeholder of `variable`: zeros when the job's state has its value."""
        if id(variable) not in self._pickled_variables:
            value = np.asarray(variable)
            fixed = tf.TensorShape(variable.shape).is_fully_defined()
            if id(variable) in self._constants or value.dtype.name not in NUMBERS or not fixed:
                return value
            self.script_variables.append(variable)
        return self._zeros.setdefault((shape, dtype), natives.Zeros(shape, dtype))

    def persistent_id(self, obj: Any) -> Any:
        """Write a string as the first one that equals it, so that equal programs are equal bytes.

        Pickle refers back to a string only if it is the same object, and that differs from one `fit` to the next.
        """
        return self._strings.setdefault(obj, obj) if type(obj) is str else None

    def shared(self, function: Any) -> Any:
        """Return the first function given here with this one's code; a function with a closure is returned itself.

        Keras creates equal lambdas in every layer, and each would be written by value.
        """
        return function if function.__closure__ else self._functions.setdefault(id(function.__code__), function)

    def reduction(self, obj: Any) -> Any:
        """Return the result of the first `Reduce` function that handles `obj`; NotImplemented where none does."""
        found = (reduce(obj, self) for reduce in self._reduces)
        reduced = next((each for each in found if each is not NotImplemented), NotImplemented)
        return _at_once(reduced) if isinstance(reduced, Later) and _hashes_itself(obj) else reduced

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):  # cloudpickle omits the file, by which the source is found, from 3.1.3 on
            return _code_of_file, (*self.dispatch_table[types.CodeType](obj), obj.co_filename)
        reduced = self.reduction(obj)
        if reduced is NotImplemented:
            return super().reducer_override(obj)
        if not isinstance(reduced, Later):
            return reduced
        self._records.append(natives.PickleRecord(obj, reduced.state, reduced.finish, self.record))
        return reduced.make, reduced.arguments

    def _dynamic_function_reduce(self, func: Any) -> Any:
        make, arguments, (state, slots), *rest = super()._dynamic_function_reduce(func)
        file = func.__code__.co_filename
        if (cached := linecache.cache.get(file)) and len(cached) == 4 and cached[1] is None:  # there is no such file
            self._sources[file] = list(cached[2])
        slots["__globals__"].update(_annotation_globals(func))
        return make, arguments, (state, slots), *rest


def _annotation_globals(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the globals that `function`'s annotations name; cloudpickle includes only those that the code names."""
    if not function.__annotations__:
        return {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return {}
    hints = [getattr(node, "returns", getattr(node, "annotation", None)) for node in ast.walk(tree)]
    names = {node.id for hint in hints if hint for node in ast.walk(hint) if isinstance(node, ast.Name)}
    return {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}


def _code_of_file(make: Callable[..., types.CodeType], arguments: tuple[Any, ...], file: str) -> types.CodeType:
    return make(*arguments).replace(co_filename=file)


_REMEDY = "use `--capture replica`: every rank runs the script"


def dumps(
    obj: Any, reduces: Sequence[Reduce], pickled_variables: frozenset[int] = frozenset(), constants: Sequence[Any] = ()
) -> tuple[bytes, list[Any]]:
    """Pickle `obj`.

    Args:
        obj: A model.
        reduces: Reductions of one flavor of Keras.
        pickled_variables: Ids of the variables of the model's groups, whose values are in the job's state.
        constants: Variables that are written with their values.

    Returns:
        The pickles, and the script variables.

    Raises:
        NeedsReplica: An attribute, which it names, cannot be pickled.
    """
    out = io.BytesIO()
    pickler = ModelPickler(out, reduces, pickled_variables)
    for variable in constants:
        pickler.keep_value(variable)
    try:
        pickler.dump_records(obj)
    except CaptureError:
        raise
    except Exception as error:
        reason, remedy = _refusal(obj, pickler, error, lambda: _Probe(io.BytesIO(), reduces, pickled_variables))
        raise NeedsReplica(f"{reason}. {remedy}", reason, trained=False) from error
    return out.getvalue(), pickler.script_variables


def loads(data: bytes | memoryview) -> tuple[Any, list[Any]]:
    """Return the object that `dumps` pickled, and its script variables."""
    unpickler = _Unpickler(io.BytesIO(data))
    with _collecting() as calls:
        obj = unpickler.load()
        while (record := unpickler.load()) is not None:
            target, state, finish = record
            finish(target, state)
        for file, lines in unpickler.load().items():  # where AutoGraph and tracebacks look for a function's source
            linecache.cache[file] = sum(map(len, lines)), None, lines, file
        script_variables = unpickler.load()
        for call in calls:
            call()
    return obj, script_variables


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        return pid  # a string


def afterwards(call: Callable[[], None]) -> None:
    """Call `call` when the objects being loaded are complete (ids renewed, lists filled)."""
    _afterwards.calls.append(call)


def by_state(obj: Any, state: dict[str, Any], finish: Callable[[Any, dict[str, Any]], None]) -> Later:
    """Return the reduction "new object of the class, then finish(obj, state)", which permits references in a cycle.

    Attributes are sorted, so that those set again by a `fit` do not change the bytes of the next program.
    """
    return Later(new, (type(obj),), dict(sorted(state.items())), finish)


def new(cls: Any) -> Any:
    """Return an object of `cls` without a call of `__init__`."""
    try:
        return cls.__new__(cls)
    except TypeError:  # a __new__ that needs arguments
        return object.__new__(cls)


def set_state(obj: Any, state: dict[str, Any]) -> None:
    """Set the attributes of `obj`, bypassing `__setattr__`, which may track them."""
    obj.__dict__.update(state)


@contextlib.contextmanager
def _collecting() -> Iterator[list[Callable[[], None]]]:
    outer = getattr(_afterwards, "calls", None)
    _afterwards.calls = []
    try:
        yield _afterwards.calls
    finally:
        _afterwards.calls = outer


def _hashes_itself(obj: Any) -> bool:
    """Return whether a dict or set that is filled with the object calls a `__hash__` that may use its attributes."""
    its_own: Any = type(obj).__hash__
    return its_own not in (object.__hash__, None)


def _at_once(reduced: Later) -> Any:
    make, arguments, state, finish = reduced
    return make, arguments, state, None, None, finish


class _Probe(ModelPickler):
    """Omits objects that are known to contain the culprit, so that a part fails only by its own content."""

    known: set[int]

    def persistent_id(self, obj: Any) -> Any:
        return "known" if id(obj) in self.known else super().persistent_id(obj)


def _refusal(obj: Any, pickler: ModelPickler, error: Exception, probe: Callable[[], _Probe]) -> tuple[str, str]:
    """Return why `obj` cannot be pickled, and the remedy."""
    deep = _is_recursion(error)

    def fails(part: Any, known: set[int]) -> bool:
        pickler = probe()
        pickler.known = known
        try:
            pickler.dump(part)
        except Exception as error:
            return _is_recursion(error) == deep
        return False

    def is_later(part: Any) -> bool:
        return isinstance(pickler.reduction(part), Later)

    where = natives.find_culprit(obj, pickler.record, fails, is_later, repeats=not deep)
    if deep:
        limit = sys.getrecursionlimit()
        reason = f"{where} is nested deeper than Python's recursion limit, {limit}, and cannot be sent to workers"
        return reason, f"Keep such objects in a list, or outside of the model's classes and functions, or {_REMEDY}"
    reason = f"the model refers to {where}, which cannot be pickled: {_first_line(error)}"
    return reason, f"Keep it outside of the model's classes and functions, or {_REMEDY}"


def _is_recursion(error: BaseException) -> bool:
    return isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)  # cloudpickle wraps it


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
