"""NFDT's rules by name: the files of nfdt/rules. How a rule is spelled: fdt/rulebook.py."""

from typing import Any

from fdt.rulebook import Rulebook
from nfdt import rules
from nfdt.rule import Rule

DEFAULT = "ddc_asgd"

_book = Rulebook(rules, Rule, "nfdt/rule.py")
names, parameters, describe, make = _book.names, _book.parameters, _book.describe, _book.make


def default_for(optimizer: Any) -> str:
    """The rule for an optimizer when none is asked for."""
    from nfdt.momentum import can_be_off  # TensorFlow: not for those who only ask for names

    return DEFAULT if can_be_off(optimizer) else f"{DEFAULT}(momentum='captured')"
