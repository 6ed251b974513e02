"""The placement rules, by kind of operation. Importing this package fills `replica.plan.RULES`."""

from replica.rules import contraction, elementwise, lists, reduction, rows, shape

__all__ = ["contraction", "elementwise", "lists", "reduction", "rows", "shape"]
