"""Encoding of plain values (numbers, strings, arrays, lists, dicts) as JSON and arrays, without pickle or code.

Callbacks keep their state in attributes: EarlyStopping its best weights, a user's own callback a list of losses, which
may be an attribute of its class. Plain state is saved, and restored *into* the existing lists and dicts, which the
script may hold, too.
"""

import sys
import types
import zlib
from collections import deque
from typing import Any

import numpy as np

from fdt.tensors import NUMBERS
from fdt.typing import Array

_PLAIN = (type(None), bool, int, float, str)
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, type, np.ufunc)
_MUTABLE = (list, dict, set, deque, np.ndarray)
_LIBRARIES = ("keras", "tf_keras", "numpy")
_SKIPPED = ("model", "_model", "params", "_params", "validation_data")  # attributes that Keras sets on each callback


class NotPlain(Exception):
    """The value cannot be represented by JSON and arrays."""


def encode(value: Any, arrays: list[Array]) -> Any:
    """Return JSON for `value` and append its arrays to `arrays`. Raises NotPlain."""
    try:
        return _encoded(value, arrays)
    except RecursionError:  # the value contains itself
        raise NotPlain(type(value).__name__) from None


def _encoded(value: Any, arrays: list[Array]) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return _array("number" if isinstance(value, np.generic) else "array", np.asarray(value), arrays)
    if type(value) is deque and value.maxlen is not None:
        return {"bounded_deque": [value.maxlen, *(_encoded(item, arrays) for item in value)]}
    for name, kind in _KINDS.items():
        if type(value) is kind:
            return {name: [_encoded(item, arrays) for item in value]}
    if type(value) is dict:
        return {"dict": [[_encoded(k, arrays), _encoded(v, arrays)] for k, v in value.items()]}
    if isinstance(value, (types.FunctionType, np.ufunc)):
        return _named(value)
    if type(value).__name__ == "EagerTensor":
        return _array("tensor", np.asarray(value.numpy()), arrays)
    raise NotPlain(type(value).__name__)


def decode(encoded: Any, arrays: list[Array]) -> Any:
    """Return the value that `encode` encoded."""
    if not isinstance(encoded, dict):
        return encoded
    ((name, inner),) = encoded.items()
    if name == "dict":
        return {decode(k, arrays): decode(v, arrays) for k, v in inner}
    if name == "function":
        return _function(*inner)
    if name == "bounded_deque":
        return deque((decode(item, arrays) for item in inner[1:]), inner[0])
    if name in _KINDS:
        return _KINDS[name](decode(item, arrays) for item in inner)
    array = np.array(arrays[inner])
    if name == "number":
        return array[()]
    if name == "tensor":
        import tensorflow as tf

        return tf.constant(array)
    return array


def sums(obj: Any) -> dict[str, int]:
    """Return checksums of the plain attributes of `obj`: its settings and perhaps its data."""
    found = {name: _sum_of(name, value) for name, value in _state(obj).items() if name not in _SKIPPED}
    return {name: sum_ for name, sum_ in found.items() if sum_ is not None}


def attributes(obj: Any, arrays: list[Array], known: dict[str, int]) -> tuple[dict[str, Any], list[str]]:
    """Return the plain attributes of `obj`, and the names of other attributes that may change.

    Attributes with their `known` checksum are left out.
    """
    plain, others = {}, []
    for name, value in _state(obj).items():
        if name in _SKIPPED or (name in known and _sum_of(name, value) == known[name]):
            continue
        mine: list[Array] = []
        try:
            encoded = encode(value, mine)
        except NotPlain:
            others += [] if isinstance(value, _CODE) else [name]
            continue
        plain[name] = _moved(encoded, len(arrays))
        arrays += mine
    return plain, others


def put_back(obj: Any, encoded: dict[str, Any], arrays: list[Array]) -> None:
    """Set the attributes that `attributes` returned; lists, dicts and arrays of `obj` are filled in place."""
    for name, value in encoded.items():
        kind, _, attribute = name.rpartition(".")
        owners = (
            [each for each in _classes(obj) if each.__name__ == kind and attribute in vars(each)] if kind else [obj]
        )
        for owner in owners[:1]:
            _put(owner, attribute, decode(value, arrays))


def _state(obj: Any) -> dict[str, Any]:
    """Return the attributes of `obj`, and as "Class.name" the plain values and containers of its own classes."""
    shared = {
        f"{kind.__name__}.{name}": value
        for kind in reversed(_classes(obj))
        for name, value in vars(kind).items()
        if (type(value) in _PLAIN or isinstance(value, (*_MUTABLE, np.generic))) and not name.startswith("__")
    }
    own = vars(obj).items()  # `self.losses += [loss]` makes the class's list an attribute of `obj`, too
    return shared | {n: v for n, v in own if not isinstance(v, _MUTABLE) or v is not getattr(type(obj), n, None)}


def _classes(obj: Any) -> list[type]:
    """Return the classes of `obj` that are not Keras's."""
    return [kind for kind in type(obj).__mro__ if kind.__module__.partition(".")[0] not in _LIBRARIES]


def _sum_of(name: str, value: Any) -> int | None:
    """Return the checksum of an attribute; of a class's table that is not plain, that of its items' identities."""
    if (found := _sum(value)) is not None or "." not in name:
        return found
    return hash(tuple(map(id, [*value, *(value.values() if isinstance(value, dict) else ())])))


def _sum(value: Any) -> int | None:
    """Return a checksum of `value`; None where it is not plain."""
    if isinstance(value, np.ndarray):
        return zlib.crc32(value.tobytes()) if value.dtype != object else 0
    arrays: list[Array] = []
    try:
        structure = repr(encode(value, arrays)).encode()
    except NotPlain:
        return None
    return zlib.crc32(b"".join([structure, *(array.tobytes() for array in arrays)]))


_KINDS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "deque": deque}


def _array(name: str, array: Array, arrays: list[Array]) -> Any:
    if array.dtype.name not in NUMBERS:
        raise NotPlain(array.dtype.name)
    arrays.append(array.copy())
    return {name: len(arrays) - 1}


def _named(function: Any) -> Any:
    """Return the name of a function that callbacks compare by: keras.ops.less, np.less. Raises NotPlain for others."""
    module, name = "numpy" if isinstance(function, np.ufunc) else str(function.__module__), function.__name__
    if _function(module, name) is not function:
        raise NotPlain(name)
    return {"function": [module, name]}


def _function(module: str, name: str) -> Any:
    """Return a function of the libraries; None where there is none of that name."""
    found = getattr(sys.modules.get(module), name, None) if module.partition(".")[0] in _LIBRARIES else None
    return found if isinstance(found, (types.FunctionType, np.ufunc)) else None


def _moved(encoded: Any, by: int) -> Any:
    """Return the encoded value `encoded` with its array numbers raised by `by`."""
    if not isinstance(encoded, dict):
        return encoded
    ((name, inner),) = encoded.items()
    if isinstance(inner, int):
        return {name: inner + by}
    if name == "dict":
        return {name: [[_moved(k, by), _moved(v, by)] for k, v in inner]}
    return {name: [_moved(item, by) for item in inner]}


def _put(owner: Any, name: str, value: Any) -> None:
    current = vars(owner).get(name)
    bound = getattr(value, "maxlen", None)  # of a deque; older checkpoints have none
    if type(current) is not type(value) or current is value or bound not in (None, getattr(current, "maxlen", None)):
        setattr(owner, name, value)
    elif isinstance(current, (list, deque)):
        current.clear()
        current.extend(value)
    elif isinstance(current, (dict, set)):
        current.clear()
        current.update(value)
    elif isinstance(current, np.ndarray) and current.shape == value.shape and current.dtype == value.dtype:
        current[...] = value
    else:
        setattr(owner, name, value)
