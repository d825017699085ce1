"""What a back end of the live executor promises: parts of this host in which matrix products are executed and timed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from morphling.errors import InputError
from morphling.fleet.gemm import stored_row
from morphling.types import AnyArray, DType, item_bytes

__all__ = ["BackEnd", "Partition", "Product", "Timing", "Unavailable"]


class Unavailable(InputError):  # noqa: N818 - what it says of a back end, as `Infeasible` of a plan
    """A back end that this host does not have; the message says why, and what would help."""


@dataclass(frozen=True, order=True)
class Product:
    """C[m x n] = A[m x k] B[k x n] as it is executed.

    layout : ``nn``, ``nt``, ``tn`` or ``tt``: whether A and B are stored as they are (row-major) or transposed
    lda, ldb : elements from one stored row to the next; 0 = rows without gaps
    """

    m: int
    n: int
    k: int
    dtype: DType = DType.FLOAT32
    layout: str = "nn"
    lda: int = 0
    ldb: int = 0

    @property
    def flops(self) -> float:
        """Floating-point operations (a multiply-add is two)."""
        return 2.0 * self.m * self.n * self.k

    @property
    def operand_bytes(self) -> int:
        """Bytes of A, B and C, each once."""
        return item_bytes(self.dtype) * (self.m * self.k + self.k * self.n + self.m * self.n)

    @property
    def stored_bytes(self) -> int:
        """Bytes of storage that A, B and C take, gaps included."""
        return item_bytes(self.dtype) * (
            self.stored_a[0] * self.row_a + self.stored_b[0] * self.row_b + self.m * self.n
        )

    @property
    def row_a(self) -> int:
        """Elements from one stored row of A to the next."""
        return self.lda or stored_row(self.m, self.k, self.layout[0] == "t")

    @property
    def row_b(self) -> int:
        """Elements from one stored row of B to the next."""
        return self.ldb or stored_row(self.k, self.n, self.layout[1] == "t")

    @property
    def stored_a(self) -> tuple[int, int]:
        """Rows and columns of A as it is stored."""
        return (self.k, self.m) if self.layout[0] == "t" else (self.m, self.k)

    @property
    def stored_b(self) -> tuple[int, int]:
        """Rows and columns of B as it is stored."""
        return (self.n, self.k) if self.layout[1] == "t" else (self.k, self.n)

    def __str__(self) -> str:
        """``256x768x64 float32 nn 768 64``: m x k x n, dtype, layout and strides."""
        return f"{self.m}x{self.k}x{self.n} {self.dtype.label} {self.layout} {self.row_a} {self.row_b}"


@dataclass(frozen=True, order=True)
class Partition:
    """A part of the host.  ``size`` : threads or streaming multiprocessors, as read back; ``name`` says both."""

    size: int
    name: str


@dataclass(frozen=True)
class Timing:
    """One product measured.

    seconds : of one call, in the back end's clock
    calls : how many were timed
    spread : how much longer the longest timed block was than the shortest, as a share of it; 0 for a single one
    calm : whether the host was as fast as it can be beside it
    """

    seconds: float
    calls: int
    spread: float
    calm: bool = True


class BackEnd(ABC):
    """Partitions of this host, one product at a time; opening it (the constructor) raises `Unavailable`.

    reference : the product whose time tells whether the host is as fast as it was
    reference_set : compute-bound products that the rate of a partition is taken from
    streaming : a matrix times a vector, far larger than caches: what memory bandwidth is taken from
    stale_faster, stale_slower : shares by which the host may be faster or slower by the reference than when its
        measurements were kept; beyond, they are stale
    disturbed : share by which the reference may be slower beside a measurement before that is made again
    """

    name: ClassVar[str]
    clock: ClassVar[str]
    stale_faster: ClassVar[float]
    stale_slower: ClassVar[float]
    disturbed: ClassVar[float]
    paces: ClassVar[bool] = False

    reference: Product
    reference_set: tuple[Product, ...]
    streaming: Product

    @abstractmethod
    def partitions(self) -> tuple[Partition, ...]:
        """Smallest first."""

    @abstractmethod
    def dtypes(self) -> tuple[DType, ...]:
        """Number formats that it executes at speed."""

    @abstractmethod
    def measure(self, product: Product, partition: Partition) -> Timing:
        """Execute with random, warm operands and time it; ``RunError`` if the host has no memory for it."""

    @abstractmethod
    def multiply(self, a: AnyArray, b: AnyArray, dtype: DType, partition: Partition) -> AnyArray:
        """The product of two float32 matrices, executed in that dtype; float32[m, n]."""

    def paced(self, product: Product, partition: Partition, flops_per_s: float) -> Timing:
        """Execute in real time at a device's rate (FLOP/s), by block of rows and pause; wall time.

        Only where ``paces`` says so.
        """
        raise Unavailable(
            f"limiting: the {self.name} back end does not pace products ({product} in {partition.name} at "
            f"{flops_per_s:.3g} FLOP/s); use limiting: virtual"
        )

    @abstractmethod
    def fingerprint(self) -> dict[str, str]:
        """What the host's speed depends on; measurements of one fingerprint are not used for another."""

    def facts(self) -> dict[str, Any]:
        """What else is worth knowing of it, plain JSON values."""
        return {}

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what was opened; nothing is measured after it."""
