"""NFDT's rules by name: the files of nfdt/rules. How a rule is spelled: fdt/rulebook.py."""

from fdt.rulebook import Rulebook
from nfdt import rules
from nfdt.rule import Rule

DEFAULT = "dc_asgd"  # for SGD; `default_for` says what others get

_book = Rulebook(rules, Rule, "nfdt/rule.py")
names, parameters, describe, make = _book.names, _book.parameters, _book.describe, _book.make


def default_for(optimizer: str) -> str:
    """The rule for an optimizer's class name when none is asked for.

    dc_asgd is derived for SGD. An adaptive optimizer divides by the size of what it is given, and the term g*g*(w-w_m)
    moves that size, so others get plain asgd.
    """
    return DEFAULT if optimizer.lower() == "sgd" else "asgd"
