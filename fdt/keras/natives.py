"""Objects of a model that pickle alone cannot write: Python's own, TensorFlow's, and the search for any other.

Python's are weak references, locks and thread values. TensorFlow's are variables, functions, tables and wrapped
containers. The search finds the attribute that cannot be pickled, starting from the object whose record failed.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from fdt.compat.tensorflow import data_structures, lookup_ops, object_identity, polymorphic_function, tf_export

CHECKPOINTING = (  # attributes that TensorFlow creates again when they are read
    "_self_unconditional_checkpoint_dependencies",
    "_self_unconditional_dependency_names",
    "_self_unconditional_deferred_dependencies",
    "_self_name_based_restores",
    "_self_saveable_object_factories",
    "_self_update_uid",
    "_coalesced_children",  # of an optimizer whose checkpoint was read
)
_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def reduce_plain(obj: Any, _: Any) -> Any:
    """Reduce objects that Python cannot pickle, or that have no meaning in another process."""
    if isinstance(obj, weakref.ref):
        target = obj()
        return (_dead_reference, ()) if target is None else (weakref.ref, (target,))
    caches = weakref.WeakKeyDictionary, weakref.WeakSet, weakref.WeakValueDictionary
    if type(obj) in caches or isinstance(obj, threading.local):
        return type(obj), ()
    if isinstance(obj, _LOCKS):
        return type(obj) if obj.__class__ is _LOCKS[1] else threading.Lock, ()
    return NotImplemented


class _Gone:
    pass


def _dead_reference() -> Any:
    return weakref.ref(_Gone())


class ValueLookup(Protocol):
    """The part of a pickler that variables need."""

    def value_of(self, variable: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """Return the initial value of a placeholder of `variable`: an array, or Zeros."""

    def keep_value(self, variable: Any) -> None:
        """Write `variable` with its value."""


class Zeros:
    """Zeros that are unpickled as one tensor. Variables that start from one object share its memory until assigned."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype

    def __reduce__(self) -> Any:
        return _zeros, (self.shape, self.dtype)


def _zeros(shape: tuple[int, ...], dtype: str) -> Any:
    with tf.init_scope():
        return tf.zeros(shape, dtype)


def reduce_native(obj: Any, pickler: ValueLookup) -> Any:
    """Return the reduction of a TensorFlow object; NotImplemented when it needs none."""
    if isinstance(obj, tf.Variable):
        return reduce_variable(obj, pickler)
    if isinstance(obj, tf.random.Generator):
        pickler.keep_value(obj.state)
        return NotImplemented
    if isinstance(obj, polymorphic_function.Function):
        options = (obj._autograph, obj._jit_compile, obj._reduce_retracing)
        return _function, (obj._python_function, obj.input_signature, *options)
    if isinstance(obj, data_structures._DictWrapper):
        return data_structures._DictWrapper, (), dict(obj), None, None, _fill_dict
    if isinstance(obj, data_structures.ListWrapper):
        return data_structures.ListWrapper, ([],), list(obj), None, None, _fill_list
    if isinstance(obj, object_identity.ObjectIdentityDictionary):
        return type(obj), (), list(obj.items()), None, None, _fill_items
    if isinstance(obj, object_identity.ObjectIdentitySet):
        return type(obj), (), list(obj), None, None, _fill_set
    if isinstance(obj, tf.__internal__.FuncGraph) or (isinstance(obj, tf.Tensor) and not hasattr(obj, "numpy")):
        return _nothing, ()  # remains of a trace
    table = reduce_table(obj)
    return table if table is not NotImplemented else _reduce_symbol(obj)


def reduce_variable(variable: Any, pickler: ValueLookup) -> Any:
    """Return a placeholder of the same shape. It keeps `_unique_id`, by which optimizers look up their slots."""
    shape = [None if d is None else int(d) for d in variable.shape]
    fixed = tuple(int(d) for d in (tf.shape(variable) if None in shape else variable.shape))
    name = variable.name.split(":")[0]
    arguments = (shape, variable.dtype.name, variable.trainable, name, variable._unique_id)
    options = (variable.aggregation.name, variable.synchronization.name)
    return _variable, (*arguments, *options, pickler.value_of(variable, fixed, variable.dtype.name))


def _variable(
    shape: list[int | None],
    dtype: str,
    trainable: bool,
    name: str,
    unique_id: str,
    aggregation: str,
    synchronization: str,
    value: Any,
) -> Any:
    with tf.init_scope():
        variable = tf.Variable(
            tf.convert_to_tensor(value, dtype),
            trainable=trainable,
            name=name,
            shape=shape,
            aggregation=tf.VariableAggregation[aggregation],
            synchronization=tf.VariableSynchronization[synchronization],
        )
    variable._unique_id = unique_id
    return variable


def _function(function: Any, signature: Any, autograph: bool, jit_compile: bool | None, reduce_retracing: bool) -> Any:
    return tf.function(function, signature, autograph, jit_compile, reduce_retracing)


def _reduce_symbol(obj: Any) -> Any:
    """Reduce public functions of TensorFlow that have no importable name, as its dispatcher wraps them."""
    if not callable(obj) or not str(getattr(obj, "__module__", "")).startswith("tensorflow."):
        return NotImplemented
    if isinstance(obj, type):
        return NotImplemented
    try:
        name = tf_export.get_canonical_name_for_symbol(obj, add_prefix_to_v1_names=True)
    except AttributeError:
        return NotImplemented
    if not name or tf_export.get_symbol_from_name(name) is not obj:
        return NotImplemented  # a wrapper has the name of the wrapped function
    return tf_export.get_symbol_from_name, (name,)


def _nothing() -> None:
    return None


def _fill_dict(wrapper: Any, items: dict[Any, Any]) -> None:
    wrapper.__wrapped__.update(items)
    wrapper._self_non_string_key = any(not isinstance(key, str) for key in items)
    wrapper._update_snapshot()


def _fill_list(wrapper: Any, items: list[Any]) -> None:
    wrapper._storage.extend(items)
    list.extend(wrapper, items)
    wrapper._last_wrapped_list_snapshot = list(wrapper._storage)


def _fill_items(mapping: Any, items: list[tuple[Any, Any]]) -> None:
    for key, value in items:
        mapping[key] = value


def _fill_set(target: Any, items: list[Any]) -> None:
    target.update(items)


def reduce_table(obj: Any) -> Any:
    """Return the reduction of a table; NotImplemented for other objects and rarer kinds of tables."""
    if isinstance(obj, lookup_ops.StaticHashTable):
        return _static, _contents(obj)
    if isinstance(obj, lookup_ops.MutableHashTable):
        return _mutable, _contents(obj)
    return NotImplemented


def _contents(table: Any) -> tuple[str, str, Any, Any, Any]:
    keys, values = table.export()
    order = np.argsort(keys.numpy(), kind="stable")  # a table has no order; equal contents must be equal bytes
    default = table._default_value.numpy()
    return table.key_dtype.name, table.value_dtype.name, default, keys.numpy()[order], values.numpy()[order]


def _static(key_dtype: str, value_dtype: str, default: Any, keys: Any, values: Any) -> Any:
    with tf.init_scope():
        contents = tf.lookup.KeyValueTensorInitializer(tf.constant(keys, key_dtype), tf.constant(values, value_dtype))
        return tf.lookup.StaticHashTable(contents, tf.constant(default, value_dtype))


def _mutable(key_dtype: str, value_dtype: str, default: Any, keys: Any, values: Any) -> Any:
    with tf.init_scope():
        table = tf.lookup.experimental.MutableHashTable(key_dtype, value_dtype, tf.constant(default, value_dtype))
        table.insert(tf.constant(keys, key_dtype), tf.constant(values, value_dtype))
        return table


Part = tuple[str, Any]  # the next element of the path, and the object there


class PickleRecord(NamedTuple):
    """An object's attributes, as fdt/keras/pickling.py writes them."""

    obj: Any
    state: dict[str, Any]
    finish: Callable[[Any, dict[str, Any]], None]
    parent: "PickleRecord | None"  # the record in which `obj` was found first; None: it is the model

    @property
    def label(self) -> str:
        """The model's class; another object's class and name; without a name, its parent's label and its class."""
        kind, name = type(self.obj).__name__, getattr(self.obj, "name", None)
        if self.parent is None:
            return kind
        return f"{kind} {name!r}" if isinstance(name, str) else f"{self.parent.label}: {kind}"


def find_culprit(
    model: Any,
    record: PickleRecord | None,
    fails: Callable[[Any, set[int]], bool],
    is_later: Callable[[Any], bool],
    *,
    repeats: bool,
) -> str:
    """Find the deepest attribute that fails by itself.

    Args:
        model: The object that is pickled.
        record: The record that failed; None where it was `model` itself, without its attributes.
        fails: Returns whether this part fails when the objects of these ids are left out.
        is_later: Returns whether this object's attributes are a record of their own, and so not part of the failed one.
        repeats: Whether an object may contain another of its class. Otherwise the search stops at the first of them.

    Returns:
        The path and the class of the object there: `Dense 'dense_3'.handle (TextIOWrapper)`.
    """
    path, obj = (type(model).__name__, model) if record is None else (record.label, record.obj)
    parts: Iterable[Part] = _attributes(record.state) if record is not None else [_class(model)]
    known, kinds = {id(obj)}, {type(obj)}
    while True:
        failing = ((name, part) for name, part in parts if id(part) not in known and fails(part, known))
        name, part = next(failing, ("", None))
        if not name or (type(part) in kinds and not repeats):
            return f"{path} ({type(obj).__name__})"
        path, obj = path + name, part
        known.add(id(obj))
        kinds.add(type(obj))
        parts = [_class(obj)] if is_later(obj) else _parts(obj)


def _parts(obj: Any) -> Iterator[Part]:
    if isinstance(obj, dict):
        yield from ((f"[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, (list, tuple, set)):
        yield from ((f"[{index}]", value) for index, value in enumerate(obj))
    elif callable(obj) and hasattr(obj, "__code__"):
        names = obj.__code__.co_names
        yield from ((f" (global {n!r})", obj.__globals__[n]) for n in names if n in obj.__globals__)
        cells = [cell.cell_contents for cell in obj.__closure__ or ()]
        yield from zip([f" (variable {n!r})" for n in obj.__code__.co_freevars], cells, strict=False)
    elif isinstance(obj, type):
        yield from ((f".{name}", value) for name, value in vars(obj).items() if callable(value))
    else:
        yield from _attributes(getattr(obj, "__dict__", {}))
        yield _class(obj)


def _attributes(state: dict[str, Any]) -> Iterator[Part]:
    return ((f".{name}", value) for name, value in state.items())


def _class(obj: Any) -> Part:
    return f" (class {type(obj).__name__})", type(obj)
