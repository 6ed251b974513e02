"""Something kept for each of some objects."""

import itertools
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_numbers = itertools.count()


class IdentityMap(Generic[T]):
    """Values by object, each kept as an attribute of its object.

    So a value may hold its object, as an operation holds its graph, and both go together: in a `WeakKeyDictionary` such
    a value would keep its key for ever.
    """

    def __init__(self) -> None:
        self._name = f"_fdt_beside_{next(_numbers)}"

    def get(self, owner: Any) -> T | None:
        return getattr(owner, self._name, None)

    def put(self, owner: Any, value: T) -> None:
        setattr(owner, self._name, value)
