"""Reductions of Python's own objects that pickle cannot write: weak references, locks and values of threads."""

import threading
import weakref
from typing import Any

_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def reduce_plain(obj: Any, _: Any) -> Any:
    """Reduce objects that Python cannot pickle, or that have no meaning in another process."""
    if isinstance(obj, weakref.ref):
        target = obj()
        return (_dead_reference, ()) if target is None else (weakref.ref, (target,))
    if type(obj) in (weakref.WeakKeyDictionary, weakref.WeakSet, weakref.WeakValueDictionary):
        return type(obj), ()  # caches
    if isinstance(obj, _LOCKS):
        return type(obj) if obj.__class__ is _LOCKS[1] else threading.Lock, ()
    if isinstance(obj, threading.local):
        return _local_like, (type(obj),)
    return NotImplemented


class _Gone:
    pass


def _dead_reference() -> Any:
    return weakref.ref(_Gone())


def _local_like(cls: type) -> Any:
    return cls()
