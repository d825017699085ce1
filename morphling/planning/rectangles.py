"""What a tiling is: rectangles of C, who was left out and why; checking it, and cutting it at GEMM borders."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from morphling.planning.costs import Gemm
from morphling.types import BoolArray, FloatArray, Int32Array, IntArray

__all__ = ["LeftOut", "Parts", "Span", "Tiling", "check_tiling", "split_columns"]


Span: TypeAlias = tuple[IntArray, IntArray]
"""Starts and ends, half open."""


class LeftOut(IntEnum):
    """Why a device has no rectangle."""

    USED = 0
    NO_DTYPE = 1
    NO_LINK = 2
    NO_MEMORY = 3
    TOO_SLOW = 4
    NOT_SELECTED = 5

    @property
    def label(self) -> str:
        """The words used in reports."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, eq=False)
class Tiling:
    """R rectangles that cover C[m x n] exactly once, at most one a device, band by band from the top, left to right.

    device : int32[R];  row0, row1, col0, col1 : int64[R], half open
    time_s : when the last device is done, and the coordinator's links have carried all bytes
    device_s : float64[R], seconds of each rectangle (at fair shares of the coordinator's links)
    bounds : seconds that no tiling beats: ``uplink``, ``compute``, ``download``, ``coordinator``, and ``relaxed``, the
        smallest time in which the devices' best areas (all stages, latency, memory) sum to C, and ``whole``, that or
        longer, because no rectangle is less than a row or column wide (counted where only one operand travels)
    left_out : int64[N], `LeftOut` of every device of the fleet
    """

    gemm: Gemm
    device: Int32Array
    row0: IntArray
    row1: IntArray
    col0: IntArray
    col1: IntArray
    time_s: float
    device_s: FloatArray
    bounds: dict[str, float]
    left_out: IntArray

    def __len__(self) -> int:
        return len(self.device)

    @property
    def rows(self) -> IntArray:
        """Rows of each rectangle (alpha)."""
        return self.row1 - self.row0

    @property
    def columns(self) -> IntArray:
        """Columns of each rectangle (beta)."""
        return self.col1 - self.col0

    @property
    def imbalance(self) -> float:
        """(max - mean) / mean of the rectangles' times."""
        return float(self.device_s.max() / self.device_s.mean() - 1.0)

    def left_out_counts(self) -> dict[str, int]:
        """Reason → number of devices without a rectangle."""
        counts = np.bincount(self.left_out, minlength=len(LeftOut))
        return {reason.label: int(counts[reason]) for reason in LeftOut if reason and counts[reason]}


@dataclass(frozen=True, eq=False)
class Parts:
    """Rectangles of a tiling over concatenated columns, cut where one GEMM ends and the next begins; P >= R rows.

    gemm : int32[P], which GEMM;  tile : int64[P], which rectangle of the tiling;  device : int32[P]
    row0, row1, col0, col1 : int64[P]; columns count from the start of their own GEMM
    first : bool[P]; the first part of its rectangle, which pays for the rows of A (later ones have them cached)
    Parts of a rectangle follow each other in the order of the GEMMs.
    """

    gemm: Int32Array
    tile: IntArray
    device: Int32Array
    row0: IntArray
    row1: IntArray
    col0: IntArray
    col1: IntArray
    first: BoolArray

    def __len__(self) -> int:
        return len(self.tile)


def split_columns(tiling: Tiling, boundaries: ArrayLike) -> Parts:
    """Cut rectangles at ``boundaries``, the increasing column at which each GEMM ends; the last must be n.

    ``ValueError`` otherwise.
    """
    ends = np.asarray(boundaries, np.int64)
    if not len(ends) or ends[0] < 1 or np.any(np.diff(ends) < 1) or ends[-1] != tiling.gemm.n:
        raise ValueError(f"column boundaries {ends.tolist()} do not rise to n = {tiling.gemm.n}")
    starts = np.concatenate([[0], ends[:-1]])
    lowest = np.searchsorted(ends, tiling.col0, side="right")
    count = np.searchsorted(ends, tiling.col1, side="left") - lowest + 1
    tile = np.repeat(np.arange(len(tiling)), count)
    place = np.arange(len(tile)) - np.repeat(np.cumsum(count) - count, count)
    gemm = lowest[tile] + place
    return Parts(
        gemm=gemm.astype(np.int32),
        tile=tile,
        device=tiling.device[tile],
        row0=tiling.row0[tile],
        row1=tiling.row1[tile],
        col0=np.maximum(tiling.col0[tile], starts[gemm]) - starts[gemm],
        col1=np.minimum(tiling.col1[tile], ends[gemm]) - starts[gemm],
        first=place == 0,
    )


def check_tiling(tiling: Tiling, m: int, n: int) -> None:
    """Raise ``ValueError`` unless every cell of C[m x n] is covered exactly once and no device has two rectangles.

    Knows tilings by bands: of rows cut into columns, or of columns cut into rows.
    """
    if len(np.unique(tiling.device)) != len(tiling):
        raise ValueError("a device has two rectangles")
    if not len(tiling) or (tiling.rows <= 0).any() or (tiling.columns <= 0).any():
        raise ValueError("a rectangle is empty")
    fault = _band_fault((tiling.row0, tiling.row1), (tiling.col0, tiling.col1), m, n)
    if fault and _band_fault((tiling.col0, tiling.col1), (tiling.row0, tiling.row1), n, m):
        raise ValueError(f"C[{m} x {n}] is not covered exactly once: {fault}")


def _band_fault(rows: Span, columns: Span, high: int, wide: int) -> str | None:
    """What is wrong with rectangles as bands from 0 to ``high``, each cut from 0 to ``wide``; None if nothing is."""
    (top, bottom), (left, right) = rows, columns
    order = np.lexsort((left, top))
    top, bottom, left, right = top[order], bottom[order], left[order], right[order]
    opens = np.concatenate([[True], top[1:] != top[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    tops, bottoms = top[opens], bottom[opens]
    if (bottom != bottoms[np.cumsum(opens) - 1]).any():
        return "two rectangles of a band differ in height"
    if tops[0] != 0 or bottoms[-1] != high or (tops[1:] != bottoms[:-1]).any():
        return f"the bands do not meet from 0 to {high}"
    if (left[opens] != 0).any() or (right[closes] != wide).any() or (left[1:] != right[:-1])[~opens[1:]].any():
        return f"the rectangles of a band do not meet from 0 to {wide}"
    return None
