"""A map from objects to values, by identity."""

import itertools
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_numbers = itertools.count()


class IdentityMap(Generic[T]):
    """Values by object, each stored as an attribute of its object.

    So a value may reference its object, as an operation references its graph, and both are freed together. In a
    `WeakKeyDictionary` such a value would keep its key alive forever.
    """

    def __init__(self) -> None:
        self._name = f"_fdt_beside_{next(_numbers)}"

    def get(self, owner: Any) -> T | None:
        return getattr(owner, self._name, None)

    def put(self, owner: Any, value: T) -> None:
        setattr(owner, self._name, value)
