"""Analysis of bytecode: the attributes, global names and closure variables that the script's functions read."""

import contextlib
import dis
import functools
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import getattr_static
from types import CodeType, FunctionType, GeneratorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple

from client_shim.replica.bindings import contents
from client_shim.replica.steps import of_script

# The methods that a library calls as it computes a step.
STEP = (
    *("train_step", "test_step", "call", "__call__", "compute_loss", "compute_metrics", "update_state", "result"),
    *("update_step", "apply", "apply_gradients", "minimize", "compute_gradients", "_compute_gradients"),
    *("_resource_apply_dense", "_resource_apply_sparse"),
)
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
_STORES = ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF")
_PASSED_OVER = ("EXTENDED_ARG", "CACHE", "PRECALL")
_CHANGES = {"append", "add", "update", "extend", "setdefault", "insert", "pop"}  # methods that change a container
_WRAPPED = 5  # wrappers around a function
_MOST = 300  # functions and objects that are read


class _CodeNames(NamedTuple):
    """The names in a function's code. `chains`: names of attributes of a module, such as ("np", "random")."""

    read: frozenset[str]
    chains: frozenset[tuple[str, ...]]
    attributes: frozenset[str]
    stored: frozenset[str]
    strings: frozenset[str]
    imported: frozenset[str]


@dataclass
class Reads:
    """Names and values that code reads.

    Attributes:
        values: Pairs of a name, such as "ALPHA", "np.random" or "self.beta", and its value now.
        keys: The strings in the code, among them the keys that are read of dicts.
        stored: The names of attributes and variables that the code sets, and of containers that it may change.
    """

    values: list[tuple[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)


def step_reads(obj: Any) -> Reads:
    """Return what a step reads through a function, or through the methods of an object that a library calls."""
    if script_function(obj) is not None:
        return reads_of([obj])
    return reads_of([getattr_static(obj, name, None) for name in STEP], [obj])


def reads_of(functions: Iterable[Any], owners: Iterable[Any] = ()) -> Reads:
    """Return what functions of the script read, with the script's functions and methods that they call.

    Args:
        functions: Functions and generators; others than those of the script are left out.
        owners: The objects whose attributes they read.
    """
    search = _ReadSearch(owners)
    for function in functions:
        search.follow(function)
    search.run()
    return search.reads


def script_function(obj: Any) -> FunctionType | None:
    """Return the function of the script behind a method, a property, a partial or a wrapper; None: there is none.

    No code of the script runs, such as a `__getattr__`.
    """
    for _ in range(_WRAPPED):
        kind = type(obj)
        if isinstance(obj, FunctionType) and of_script(obj.__code__.co_filename):
            return obj  # its closure has what it wraps
        if kind in (functools.partial, functools.partialmethod, functools.cached_property):
            obj = obj.func
        elif kind in (MethodType, staticmethod, classmethod):
            obj = obj.__func__
        elif kind is property:
            obj = obj.fget
        else:
            held = _attributes(obj)
            obj = held.get("_python_function", held.get("__wrapped__"))
        if obj is None:
            break
    return None


class _ReadSearch:
    """The search of what code reads, from functions to what they call."""

    def __init__(self, owners: Iterable[Any]) -> None:
        self.reads = Reads()
        self._owners = {id(owner): ("self", owner) for owner in owners}
        self._attributes: set[str] = set()
        self._seen: dict[int, Any] = {}
        self._named: set[tuple[int, str]] = set()

    def run(self) -> None:
        """Read attributes of the owners until no function reads a further one."""
        while fresh := [
            (label, owner, name)
            for label, owner in self._owners.values()
            for name in sorted(self._attributes)
            if (id(owner), name) not in self._named
        ]:
            for label, owner, name in fresh:
                self._named.add((id(owner), name))
                for kind in type(owner).__mro__:  # all of them: code may call super()
                    self.follow(vars(kind).get(name))
                value = getattr_static(owner, name, None)
                if isinstance(value, MemberDescriptorType):  # of __slots__
                    value = _in_slot(value, owner)
                if value is not None:
                    self._found(f"{label}.{name}", value)

    def follow(self, function: Any) -> None:
        """Read the code of a function or a generator."""
        if isinstance(function, GeneratorType):
            self._follow_generator(function)
            return
        found = script_function(function)
        if found is None or len(self._seen) > _MOST:
            return
        if isinstance(function, functools.partial) and id(function) not in self._seen:
            self._seen[id(function)] = function
            given = {f"argument {i}": value for i, value in enumerate(function.args)}
            self._read(_names(found.__code__), {**given, **function.keywords})
        if id(found) in self._seen:
            return
        self._seen[id(found)] = found
        names = _names(found.__code__)
        values = dict(zip(found.__code__.co_freevars, contents(found), strict=True))
        values |= {name: found.__globals__[name] for name in names.read if name in found.__globals__}
        values |= dict(_of_modules(names, values))
        values |= _defaults(found)
        self._read(names, values)

    def _follow_generator(self, generator: Any) -> None:
        frame = generator.gi_frame
        if frame is None or id(generator) in self._seen or not of_script(generator.gi_code.co_filename):
            return
        self._seen[id(generator)] = generator
        names = _names(generator.gi_code)
        values = {name: frame.f_globals[name] for name in names.read if name in frame.f_globals}
        self._read(names, {**values, **frame.f_locals})  # among locals are the variables of enclosing functions

    def _read(self, names: _CodeNames, values: Mapping[str, Any]) -> None:
        self.reads.keys |= names.strings
        self.reads.stored |= names.stored
        self._attributes |= names.attributes
        for name, value in values.items():
            self._found(name, value)

    def _found(self, name: str, value: Any) -> None:
        self.reads.values.append((name, value))
        self.follow(value)
        if _is_of_script(type(value)) and len(self._owners) < _MOST and id(value) not in self._owners:
            self._owners[id(value)] = name, value
            self.follow(getattr_static(value, "__call__", None))
        elif isinstance(value, type) and _is_of_script(value):
            self._owners.setdefault(id(value), (name, value))


def _is_of_script(kind: type) -> bool:
    """Return whether a class is the script's, or one for settings such as SimpleNamespace."""
    if kind.__name__ in ("SimpleNamespace", "Namespace"):
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return bool(file) and kind.__module__ != "builtins" and of_script(str(file))


def _in_slot(slot: Any, owner: Any) -> Any:
    try:
        return slot.__get__(owner)
    except AttributeError:  # nothing is in it
        return None


def _attributes(obj: Any) -> Mapping[str, Any]:
    try:
        held = object.__getattribute__(obj, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return held if isinstance(held, Mapping) else {}


def _defaults(function: FunctionType) -> dict[str, Any]:
    """Return the default values of a function's parameters, by name."""
    code, given = function.__code__, function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    return {
        **dict(zip(positional[len(positional) - len(given) :], given, strict=True)),
        **(function.__kwdefaults__ or {}),
    }


def _of_modules(names: _CodeNames, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what is read of modules, such as "np.random", and modules that a function itself imports."""
    for chain in names.chains:
        value = values.get(chain[0])
        for depth, name in enumerate(chain[1:], 2):
            if not isinstance(value, ModuleType):
                break
            with contextlib.suppress(Exception):  # of a module that imports its members when they are read
                value = getattr(value, name)
                yield ".".join(chain[:depth]), value
    for name in names.imported:
        module = sys.modules.get(name)
        if module is not None:
            yield (
                name,
                getattr(module, "random", module) if name == "numpy" and "random" in names.attributes else module,
            )


@functools.lru_cache(maxsize=10_000)
def _names(code: CodeType) -> _CodeNames:
    read, chains, attributes, stored = set[str](), set[tuple[str, ...]](), set[str](), set[str]()
    strings, imported = set[str](), set[str]()
    for each in _with_inner(code):
        chain: tuple[str, ...] = ()
        names, changes, loaded = set[str](), False, ("", "")  # `loaded`: locals of the two instructions before
        instructions = [i for i in dis.get_instructions(each) if i.opname not in _PASSED_OVER]
        parameters = set(each.co_varnames[: each.co_argcount + each.co_kwonlyargcount])  # a partial gives them values
        fresh = _fresh(instructions) - parameters
        strings |= {constant for constant in each.co_consts if isinstance(constant, str)}
        for instruction in instructions:
            kind, argument = instruction.opname, instruction.argval
            chain = (argument,) if kind in _GLOBALS else (*chain, argument) if kind in _ATTRIBUTES and chain else ()
            if kind in _GLOBALS or kind in _ATTRIBUTES:
                names.add(argument)
                (read if kind in _GLOBALS else attributes).add(argument)
            if len(chain) > 1:
                chains.add(chain)
            if kind in _STORES:
                stored.add(argument)
            if kind == "IMPORT_NAME":
                imported.add(argument)
            changes |= kind == "STORE_SUBSCR" and loaded[0] not in fresh  # the container, then the key
            changes |= kind in _ATTRIBUTES and argument in _CHANGES and loaded[1] not in fresh
            loaded = loaded[1], argument if kind == "LOAD_FAST" else ""
        stored |= {f"{name}[]" for name in {*names, *each.co_freevars, *parameters}} if changes else set()
    found = (frozenset(read), frozenset(chains), frozenset(attributes), frozenset(stored))
    return _CodeNames(*found, frozenset(strings), frozenset(imported))


def _fresh(instructions: Iterable[dis.Instruction]) -> set[str]:
    """Return the local variables that are set to new containers alone: to change these changes nothing of others."""
    found, other = set[str](), set[str]()
    for before, instruction in itertools.pairwise(instructions):
        if instruction.opname == "STORE_FAST":
            (found if before.opname in ("BUILD_LIST", "BUILD_MAP", "BUILD_SET") else other).add(instruction.argval)
    return found - other


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
