"""Which matrix products a row of whole layers consists of."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

__all__ = ["BatchedProduct", "Products"]


class BatchedProduct(NamedTuple):
    """C[m x n] = A[m x k] B[k x n], ``batch`` products of this shape in each of ``calls`` calls.

    ``calls`` is a fraction where a row does a part of a call's work.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    calls: float = 1.0

    @property
    def flops(self) -> float:
        """Floating-point operations of all calls (a multiply-add is two)."""
        return 2.0 * self.m * self.n * self.k * self.batch * self.calls

    @property
    def elements(self) -> float:
        """Elements of all operands and results, each once a call."""
        return (self.m * self.k + self.k * self.n + self.m * self.n) * self.batch * self.calls


class Products:
    """An immutable list of products; equal lists are one object (in a process), so that lists are compared at no cost.

    entries : in order
    flops : of all of them
    elements : what the ``memory_bytes`` of a row hold for them, in elements of the row's dtype; the rest of these bytes
        is other operations'.  Left out, each operand and result once a call
    """

    __slots__ = ("__weakref__", "elements", "entries", "flops")
    entries: tuple[BatchedProduct, ...]
    flops: float
    elements: float
    _known: ClassVar[WeakValueDictionary[tuple[Any, ...], Products]] = WeakValueDictionary()

    def __new__(cls, entries: Iterable[tuple[float, ...]], elements: float | None = None) -> Products:  # noqa: PYI034 - the class is final in all but name
        """``ValueError`` for an empty list, sizes that are no whole numbers from 1 on, and calls of 0 or less."""
        listed = tuple(_checked(*entry) for entry in entries)
        moved = sum(p.elements for p in listed) if elements is None else float(elements)
        key = listed, moved
        found = cls._known.get(key)
        if found is None:
            if not listed or not (isfinite(moved) and moved >= 0):
                raise ValueError("products: at least one is needed, and elements from 0 on; a row of none has no list")
            found = super().__new__(cls)
            for name, value in (
                ("entries", listed), ("flops", sum(p.flops for p in listed)), ("elements", moved),
            ):  # fmt: skip
                object.__setattr__(found, name, value)
            cls._known[key] = found
        return found

    def __setattr__(self, name: str, value: object) -> None:
        """Refused: others have the same object."""
        raise AttributeError(f"{name}: a list of products cannot be changed")

    def __reduce__(self) -> tuple[type[Products], tuple[Any, ...]]:
        """Out of a pickle comes the one object of its process."""
        return Products, (tuple(map(tuple, self.entries)), self.elements)

    def __repr__(self) -> str:
        """All that it holds."""
        return f"Products({[tuple(p) for p in self.entries]}, {self.elements})"


def _checked(m: float, n: float, k: float, batch: float = 1, calls: float = 1.0) -> BatchedProduct:
    for name, value in (("m", m), ("n", n), ("k", k), ("batch", batch)):
        if not isfinite(value) or value != int(value) or value < 1:
            raise ValueError(f"products: {name}: a whole number from 1 on is needed, not {value}")
    if not (isfinite(calls) and calls > 0):
        raise ValueError(f"products: calls: a number above 0 is needed, not {calls}")
    return BatchedProduct(int(m), int(n), int(k), int(batch), float(calls))
