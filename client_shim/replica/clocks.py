"""Clock agreement: where the script's own code reads a clock, every rank gets rank 0's; libraries keep their own."""

import builtins
import contextlib
import copyreg
import datetime
import functools
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from client_shim.replica.steps import by_script, is_main, of_script
from fdt.patches import replace
from fdt.process_group import ReplicaGroup

_READ = ("time", "perf_counter", "monotonic", "process_time", "thread_time")
# the position of the argument that may be missing
_OF_NOW = {"localtime": 0, "gmtime": 0, "ctime": 0, "asctime": 0, "strftime": 1}
_BROKEN_DOWN = ("asctime", "strftime")  # these take a struct_time
_time, _localtime = time.time, time.localtime


def agreed_clocks(stack: contextlib.ExitStack, group: ReplicaGroup) -> None:
    """Patch `time` and `datetime` until `stack` closes, so that the scripts of all ranks read rank 0's clock."""
    for name in (name for each in _READ for name in (each, f"{each}_ns")):
        replace(stack, time, name, functools.partial(_clock, group, getattr(time, name), name))
    for name in _OF_NOW:
        replace(stack, time, name, functools.partial(_of_now, group, getattr(time, name), name))
    known = _datetime(group)
    replace(stack, builtins, "__import__", functools.partial(_importing, builtins.__import__, known))


def _clock(group: ReplicaGroup, original: Callable[[], Any], name: str) -> Any:
    now = original()
    return type(now)(group.broadcast(now, name)) if by_script() else now


def _of_now(group: ReplicaGroup, original: Any, name: str, *args: Any) -> Any:
    """Replace `localtime` and similar functions, which read the clock if they receive no time."""
    given = args[: _OF_NOW[name]]
    if args[len(given) :] not in ((), (None,)) or not by_script():
        return original(*args)
    now = float(group.broadcast(_time(), "time"))
    return original(*given, _localtime(now) if name in _BROKEN_DOWN else now)


def _importing(original: Any, known: ModuleType, name: str, namespace: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Import a patched `datetime` into the script's modules, because the classes of `datetime` cannot be patched."""
    found = original(name, namespace, *args, **kwargs)
    of_it = found is datetime and of_script(str((namespace or {}).get("__file__", "<")))
    return known if of_it else found


class _ClockType(type):
    """Metaclass of the replacements of Python's own classes and of the script's subclasses of them.

    It makes isinstance and issubclass treat Python's own instances as instances of the replacements.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        return issubclass(type(instance), cls)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.__mro__[1]) if "_fdt_own" in vars(cls) else super().__subclasscheck__(kind)


def _real(name: str) -> Any:
    return getattr(datetime, name)


def _reduced(kind: Any) -> Any:
    """Pickle a replacement as Python's own class."""
    return (_real, (kind.__name__,)) if "_fdt_own" in vars(kind) else kind.__qualname__


copyreg.pickle(_ClockType, _reduced)


def _datetime(group: ReplicaGroup) -> ModuleType:
    """Return a copy of the module `datetime` whose classes take `now` and `today` from rank 0."""

    def now() -> float:
        return float(group.broadcast(_time(), "time")) if is_main() else _time()

    class Date(datetime.date, metaclass=_ClockType):
        _fdt_own = True

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return datetime.date.__new__(datetime.date if cls is Date else cls, *args, **kwargs)

        @classmethod
        def today(cls) -> Any:
            return cls.fromtimestamp(now())

    class DateTime(datetime.datetime, metaclass=_ClockType):
        _fdt_own = True

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return datetime.datetime.__new__(datetime.datetime if cls is DateTime else cls, *args, **kwargs)

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(now(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(now(), datetime.timezone.utc).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return cls.fromtimestamp(now())

    known = ModuleType(datetime.__name__, datetime.__doc__)
    vars(known).update({**vars(datetime), "date": Date, "datetime": DateTime})
    for name, kind in (("date", Date), ("datetime", DateTime)):
        kind.__name__ = kind.__qualname__ = name
    return known
