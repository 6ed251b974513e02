"""Rules by name: `dc_asgd`, `dc_asgd(lam=0.1)`, or a file of one's own, `my_rule.py(k=3)`.

A rule's parameters are the keyword arguments of its file's `rule(...)`; adding a file to nfdt/rules adds an algorithm.
"""

import ast
import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fdt.errors import UsageError
from nfdt import rules
from nfdt.rule import Rule

DEFAULT = "dc_asgd"  # for SGD; `default_for` says what others get


def names() -> list[str]:
    """The rules of nfdt/rules, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(rules.__path__))


def default_for(optimizer: str) -> str:
    """The rule for an optimizer's class name when none is asked for.

    dc_asgd is derived for SGD. An adaptive optimizer divides by the size of what it is given, and the term g*g*(w-w_m)
    moves that size, so others get plain asgd.
    """
    return DEFAULT if optimizer.lower() == "sgd" else "asgd"


def parameters(name: str) -> dict[str, inspect.Parameter]:
    """A rule's parameters, typed and with defaults. Raises UsageError for an unknown rule."""
    return dict(inspect.signature(_factory(name)).parameters)


def describe(name: str) -> str:
    """The first line of the rule's docstring."""
    module = inspect.getmodule(_factory(name))
    return (inspect.getdoc(module) or "").split("\n", 1)[0]


def make(text: str, arguments: Mapping[str, str] | None = None) -> Rule:
    """Build the rule that `text` spells; `arguments` ("lam": "0.1") go over those in its parentheses.

    Raises UsageError naming what is unknown and what would be valid.
    """
    name, given = _parse(text)
    known = parameters(name)
    values = given | {key: _literal(value) for key, value in (arguments or {}).items()}
    for key in values:
        if key not in known:
            raise UsageError(f"rule {name} has no such parameter; it has {', '.join(known) or 'none'}. Received: {key}")
    try:
        made = _factory(name)(**{key: _typed(name, known[key], value) for key, value in values.items()})
    except ValueError as error:
        raise UsageError(str(error)) from None
    assert isinstance(made, Rule), f"{name}: rule() must return a Rule"
    return made


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    name, parenthesis, rest = text.strip().partition("(")
    if not parenthesis:
        return name, {}
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        assert isinstance(call, ast.Call) and not call.args
        return name, {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, AssertionError, ValueError):
        raise UsageError(f"a rule is written name or name(parameter=value, ...). Received: {text}") from None


def _factory(name: str) -> Callable[..., Rule]:
    factory: Callable[..., Rule] = _module(name).rule
    return factory


def _module(name: str) -> Any:
    if name.endswith(".py"):
        return _load(Path(name))
    if name not in names():
        raise UsageError(f"--rule must be one of {', '.join(names())}, or a .py file. Received: {name}")
    return importlib.import_module(f"nfdt.rules.{name}")


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"--rule must name a file that exists. Received: {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "rule"):
        raise UsageError(f"a rule's file must define rule(...) -> Rule (nfdt/rule.py). Received: {path}")
    return module


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _typed(name: str, parameter: inspect.Parameter, value: Any) -> Any:
    wanted = parameter.annotation
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(wanted, type) and (not isinstance(value, wanted) or (wanted is int and isinstance(value, bool))):
        raise UsageError(f"rule {name}: {parameter.name} must be {wanted.__name__}. Received: {value!r}")
    return value
