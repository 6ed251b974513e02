"""The registry of an engine's algorithms, by name: `dc_asgd`, `dc_asgd(lam=0.1)`, or a file, `my_algorithm.py(k=3)`.

An algorithm's parameters are the keyword arguments of `rule(...)` in its file. A new file in an engine's package of
algorithms adds an algorithm. Each engine has its registry: nfdt/algorithms/__init__.py, hfdt/algorithms/__init__.py.
Compressors are registered alike: nfdt/compressors, hfdt/compressors.
"""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from fdt.cli import flag
from fdt.errors import UsageError

CHECKED = {int, float, str, bool, type(None)}  # types of parameters that are checked
LARGEST_INT, LARGEST_FLOAT = 2**31 - 1, 3.4e38  # of int32 and of float32
Made = TypeVar("Made")
Options = Mapping[str, tuple[tuple[str, ...], str]]  # click's option name -> (algorithms, parameter)


@dataclass(frozen=True)
class AlgorithmRegistry(Generic[Made]):
    """The algorithms of one engine.

    Attributes:
        rules: The package with one file for each algorithm. Each file has a function `rule(...)`, or as `function` is.
        kind: The class of the objects that `rule` returns.
        defined_in: The file that defines this class, for authors of algorithms.
        function: The name of that function.
        noun: "an algorithm" or "a compressor".
        option: The option that names one.
    """

    rules: types.ModuleType
    kind: type[Made]
    defined_in: str
    function: str = "rule"
    noun: str = "an algorithm"
    option: str = "--algorithm"

    def names(self) -> list[str]:
        """Return the names of the package's algorithms, sorted."""
        return sorted(module.name for module in pkgutil.iter_modules(self.rules.__path__))

    def parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """Return an algorithm's parameters, typed and with defaults. Raises UsageError for an unknown algorithm."""
        factory = self._factory(name)
        return {name: _evaluated(p, factory) for name, p in inspect.signature(factory).parameters.items()}

    def defaults(self, name: str) -> str:
        """Return the text of an algorithm with its default parameters, for example "dc_asgd(lam=0.04)"."""
        return spell(name, {key: p.default for key, p in self.parameters(name).items() if p.default is not p.empty})

    def describe(self, name: str) -> str:
        """Return the first line of the algorithm's module docstring."""
        module = inspect.getmodule(self._factory(name))
        return (inspect.getdoc(module) or "").split("\n", 1)[0]

    def make(self, text: str, arguments: Mapping[str, str] | None = None) -> Made:
        """Build an algorithm.

        Args:
            text: "name", "name(parameter=value, ...)", or the same with a .py file.
            arguments: Parameters as text, for example {"lam": "0.1"}; they override those in `text`.

        Raises:
            UsageError: A name or value is invalid, or a number is beyond int32 or float32; the message says what is
                valid.
        """
        name, given = parse(text, self.noun)
        known = self.parameters(name)
        more = next((p.name for p in known.values() if p.kind is p.VAR_KEYWORD), None)  # of `rule(..., **more)`
        others = known.pop(more) if more else None
        values = given | {key: _literal(value) for key, value in (arguments or {}).items()}
        for key in values:
            _check_value(f"{name}: {key}", values[key])
            if key not in known and others is None:
                raise UsageError(
                    f"{name} has no such parameter; its parameters: {', '.join(known) or 'none'}. Received: {key}"
                )
        try:
            typed = {k: _typed(name, known[k], v) if k in known else v for k, v in values.items()}
            made = self._factory(name)(**typed)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if not isinstance(made, self.kind):
            raise UsageError(
                f"{self._form()}. Received: {name}, whose {self.function}() returned {type(made).__name__}"
            )
        return made

    def spelled(self, text: str | None, default: str, options: Options, given: Mapping[str, Any]) -> str | None:
        """Return the text of the algorithm that the command line chooses; None where it chooses none.

        Args:
            text: The value of --algorithm; None: `default`.
            default: The engine's default algorithm.
            options: Options that stand for a parameter of some algorithms.
            given: The command line's options.

        Raises:
            UsageError: The algorithm cannot be made, or an option belongs to another algorithm.
        """
        name, chosen = parse(text or default)
        for option, (owners, parameter) in options.items():
            value = given.get(option)
            if value is None:
                continue
            if name not in owners:
                shown = flag(option)
                raise UsageError(f"{shown} needs --algorithm {' or '.join(owners)}. Received: {shown} with {name}")
            chosen[parameter] = value
        if text is None and not chosen:
            return None
        if name.endswith(".py"):
            name = str(Path(name).absolute())  # a server's workers have another working directory
        whole = spell(name, chosen)
        self.make(whole)
        return whole

    def _factory(self, name: str) -> Callable[..., Made]:
        factory: Callable[..., Made] = getattr(self._module(name), self.function)
        return factory

    def _form(self) -> str:
        return f"{self.noun}'s file must define {self.function}(...) -> {self.kind.__name__} ({self.defined_in})"

    def _module(self, name: str) -> Any:
        if name.endswith(".py"):
            return self._load(Path(name))
        if name not in self.names():
            valid = f"{', '.join(self.names())}, or a .py file"
            raise UsageError(f"{self.option} must be one of {valid}. Received: {name}")
        return importlib.import_module(f"{self.rules.__name__}.{name}")

    def _load(self, path: Path) -> Any:
        """Return the file's module, executed once: pickles name its classes, so each process has one of each.

        It is executed anew when the file has changed.
        """
        if not path.is_file():
            raise UsageError(f"{self.option} must name a file that exists. Received: {path}")
        name = f"file_{hashlib.sha256(bytes(path.absolute())).hexdigest()}"  # the same in each process
        source, known = path.read_bytes(), sys.modules.get(name)
        module = known
        if module is None or vars(module).get("__source__") != source:
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            try:
                exec(compile(source, path, "exec"), vars(module))  # a .pyc file may be that of an older source
            except BaseException:
                del sys.modules[name]
                if known is not None:
                    sys.modules[name] = known
                raise
            vars(module)["__source__"] = source
        if not hasattr(module, self.function):
            raise UsageError(f"{self._form()}. Received: {path}")
        return module


def _evaluated(parameter: inspect.Parameter, factory: Any) -> inspect.Parameter:
    """Return a parameter whose annotation is no text, unless it cannot be evaluated (a name for type checkers only)."""
    if isinstance(parameter.annotation, str):
        with suppress(Exception):
            return parameter.replace(annotation=eval(parameter.annotation, factory.__globals__))
    return parameter


def parse(text: str, noun: str = "an algorithm") -> tuple[str, dict[str, Any]]:
    """Parse `name` or `name(parameter=value, ...)` into (name, parameters).

    A value is a literal, a name without quotes (a string), or `Name(key=value, ...)`, the object
    {"class_name": "Name", "config": {...}} as Keras writes it. Raises UsageError for any other text.
    """
    name, parenthesis, rest = text.strip().partition("(")
    if not parenthesis:
        return name, {}
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        assert isinstance(call, ast.Call) and not call.args
        return name, _keywords(call)
    except (SyntaxError, AssertionError, ValueError):
        raise UsageError(f"{noun} must be NAME or NAME(parameter=value, ...). Received: {text}") from None


def _value(node: ast.expr) -> Any:
    """Return the value of one parameter. Raises ValueError if it has none."""
    if isinstance(node, ast.Name):
        return {"true": True, "false": False, "null": None}.get(node.id, node.id)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        return {"class_name": node.func.id, "config": _keywords(node)}
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {ast.literal_eval(k): _value(v) for k, v in zip(node.keys, node.values, strict=True) if k}
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    return ast.literal_eval(node)


def _keywords(call: ast.Call) -> dict[str, Any]:
    """Return the arguments of a call. Raises ValueError for `**`, and for a name that stands twice."""
    names = [k.arg for k in call.keywords]
    if None in names or len({*names}) < len(names):
        raise ValueError("an argument needs a name of its own")
    return {str(k.arg): _value(k.value) for k in call.keywords}


def spell(name: str, parameters: Mapping[str, Any]) -> str:
    """Return the text that `parse` parses."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in parameters.items())})" if parameters else name


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _check_value(name: str, value: Any) -> None:
    """Raise UsageError for an empty text, and for a number that the arithmetic of an algorithm cannot hold."""
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_value(name, item)
    if value == "":
        raise UsageError(f"{name} must not be empty")
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        bits = value.bit_length()  # Python does not print a number of thousands of digits
        raise UsageError(f"{name} must be a whole number up to {LARGEST_INT}. Received: one of {bits} bits")
    if isinstance(value, float) and not abs(value) <= LARGEST_FLOAT:
        raise UsageError(f"{name} must be a number up to {LARGEST_FLOAT}. Received: {value}")


def _typed(name: str, parameter: inspect.Parameter, value: Any) -> Any:
    wanted = parameter.annotation
    kinds = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if set(kinds) <= CHECKED and type(value) not in kinds:
        text = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
        raise UsageError(f"{name}: {parameter.name} must be {text}. Received: {value!r}")
    return value
