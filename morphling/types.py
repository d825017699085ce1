"""Ids, column dtypes and the few constants that every storey shares.

Virtual time inside the engine is ``int64`` nanoseconds; link rates are whole bits per second;
payloads are whole bytes.  Suffixes say so: ``_ns``, ``_s``, ``_bytes``, ``_bps``, ``_flops``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "FAR_NS",
    "SECOND_NS",
    "BoolArray",
    "DType",
    "FloatArray",
    "Int32Array",
    "IntArray",
    "Kind",
    "Overlap",
    "Phase",
    "item_bytes",
    "ns_from_s",
    "s_from_ns",
]

IntArray: TypeAlias = NDArray[np.int64]
Int32Array: TypeAlias = NDArray[np.int32]
FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]
AnyArray: TypeAlias = NDArray[Any]

SECOND_NS = 1_000_000_000
FAR_NS = 1 << 62
"""A time that never comes; no scenario may last longer than this (146 years)."""


class Kind(IntEnum):
    """What a row is."""

    GEMM = 0
    ELEMENTWISE = 1
    OPTIMIZER = 2
    TRANSFER = 3


class Phase(IntEnum):
    """The pass of a training step that a GEMM belongs to."""

    FORWARD = 0
    BACKWARD_INPUT = 1
    BACKWARD_WEIGHT = 2
    RECOMPUTE = 3


class DType(IntEnum):
    """Number format of a row's operands."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    TFLOAT32 = 3
    INT8 = 4

    @classmethod
    def named(cls, name: str) -> DType:
        """Return the dtype called ``name`` (``float32``, ``float16``, …); ``KeyError`` if there is none."""
        return cls[name.upper()]

    @property
    def label(self) -> str:
        """The name used in YAML."""
        return self.name.lower()


_ITEM_BYTES = {DType.FLOAT32: 4, DType.FLOAT16: 2, DType.BFLOAT16: 2, DType.TFLOAT32: 4, DType.INT8: 1}


def item_bytes(dtype: DType) -> int:
    """Bytes of one element."""
    return _ITEM_BYTES[dtype]


class Overlap(IntEnum):
    """How a row's download, compute and upload overlap.

    A positive value ``k`` means that the row is cut into ``k`` equal tiles that flow through the three stages
    like a pipeline, with fill and drain; ``k = 1`` is no overlap at all.  ``PERFECT`` starts the three stages
    together, so that the row takes the longest of them.
    """

    PERFECT = 0
    NONE = 1


def ns_from_s(seconds: float) -> int:
    """Nearest whole nanosecond to ``seconds``."""
    return round(seconds * SECOND_NS)


def s_from_ns(ns: int) -> float:
    """Seconds as a float (exact to 1 ns below 104 days)."""
    return ns / SECOND_NS
