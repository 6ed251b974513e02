"""HFDT's rules by name: the files of hfdt/rules. How a rule is spelled: fdt/rulebook.py.

Some parameters have an option of their own on the command line, `--dane-mu 0.1` for `--rule "dane(mu=0.1)"`.
"""

from collections.abc import Mapping
from typing import Any

from fdt.errors import UsageError
from fdt.rulebook import Rulebook, parse, spell
from hfdt import rules
from hfdt.rule import Rule

DEFAULT = "allreduce"

# Option (as click names it) -> the rules that have it, and the parameter it is.
OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "local_steps": (("local_sgd",), "local_steps"),
    "local_epochs": (("dane", "admm"), "local_epochs"),
    "local_solver": (("dane", "admm"), "solver"),
    "dane_eta": (("dane",), "eta"),
    "dane_mu": (("dane",), "mu"),
    "admm_rho": (("admm",), "rho"),
    "redundancy": (("coded",), "redundancy"),
    "coding": (("coded",), "coding"),
    "placement": (("coded",), "placement"),
}

_book = Rulebook(rules, Rule, "hfdt/rule.py")
names, parameters, describe, make = _book.names, _book.parameters, _book.describe, _book.make


def spelled(text: str | None, given: Mapping[str, Any]) -> str | None:
    """The rule `text` (None: the default) with those of OPTIONS that are given; None where nothing was asked for.

    Raises UsageError for a rule that cannot be made, and for options of another one.
    """
    name, chosen = parse(text or DEFAULT)
    for option, (owners, parameter) in OPTIONS.items():
        value = given.get(option)
        if value is None:
            continue
        if name not in owners:
            flag = f"--{option.replace('_', '-')}"
            raise UsageError(f"{flag} goes with --rule {' or '.join(owners)}. Received: {flag} with rule {name}")
        chosen[parameter] = value
    if text is None and not chosen:
        return None
    whole = spell(name, chosen)
    make(whole)
    return whole
