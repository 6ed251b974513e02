"""What functions of the script read: attributes of their object, global names, variables of enclosing functions."""

import dis
import functools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from client_shim.replica.bindings import contents
from client_shim.replica.steps import of_script

# The methods that a library calls as it computes a step.
_STEP = (
    *("train_step", "call", "__call__", "compute_loss", "compute_metrics", "update_state", "result"),
    *("update_step", "apply", "apply_gradients"),
)
_READ_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_READ_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")


@dataclass
class Reads:
    """What code reads.

    Attributes:
        values: Global names and variables of enclosing functions, as "ALPHA" or "config.ALPHA", with their values.
        attributes: The names of the attributes that are read of any object.
        stored: The names of the attributes that are set.
        keys: The strings in the code, among them the keys that are read of dicts.
    """

    values: dict[str, Any] = field(default_factory=dict)
    attributes: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)


def step_reads(obj: Any) -> Reads:
    """Return what a step reads by a function, or by the methods of an object that a library calls in a step."""
    if isinstance(obj, (FunctionType, MethodType)):
        return code_reads([obj])
    return code_reads([getattr(type(obj), name, None) for name in _STEP], type(obj))


def code_reads(functions: Iterable[Any], owner: type | None = None) -> Reads:
    """Return what functions of the script read, with the script's functions that they call.

    Args:
        functions: Functions; whatever is no function of the script is left out.
        owner: The class whose methods they may call.
    """
    reads, seen, remaining = Reads(), set[FunctionType](), deque(functions)
    while remaining:
        function = script_function(remaining.popleft())
        if function is None or function in seen:
            continue
        seen.add(function)
        read = dict(zip(function.__code__.co_freevars, contents(function), strict=True))
        attributes = set[str]()
        for code in _with_inner(function.__code__):
            read |= _globals(code, function.__globals__, attributes, reads.stored)
            reads.keys |= {constant for constant in code.co_consts if isinstance(constant, str)}
        reads.values |= read
        reads.attributes |= attributes
        remaining += read.values()
        remaining += [getattr(owner, name, None) for name in sorted(attributes)]
    return reads


def script_function(obj: Any) -> FunctionType | None:
    """Return the function of the script behind a method, a partial, a tf.function or a wrapper; None: there is none."""
    for _ in range(8):
        inner = getattr(obj, "python_function", None) or getattr(obj, "__wrapped__", None)
        inner = obj.func if isinstance(obj, functools.partial) else inner
        obj = getattr(obj, "__func__", obj) if inner is None else inner
    return obj if isinstance(obj, FunctionType) and of_script(obj.__code__.co_filename) else None


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _globals(code: CodeType, scope: dict[str, Any], attributes: set[str], stored: set[str]) -> dict[str, Any]:
    """Return the global names that `code` reads; add those of attributes. `np.random` is a name of its own."""
    read, name, module = dict[str, Any](), "", None
    for instruction in dis.get_instructions(code):
        kind, argument = instruction.opname, instruction.argval
        if kind in _READ_GLOBAL and argument in scope:
            read[argument] = scope[argument]
        if kind in _READ_ATTRIBUTE:
            attributes.add(argument)
            if isinstance(module, ModuleType):
                argument = f"{name}.{argument}"
                read[argument] = getattr(module, instruction.argval, None)
        if kind == "STORE_ATTR":
            stored.add(argument)
        name, module = str(argument), read.get(argument) if isinstance(argument, str) else None
    return read
