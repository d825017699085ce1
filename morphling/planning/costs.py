"""What a rectangle of C costs on a device: time, bytes and memory, exactly and relaxed to areas.

The formulas that every planner here shares belong in this file; searching for a plan does not.

C[m x n] = A[m x k] B[k x n].  A device that receives ``alpha`` rows of A and ``beta`` columns of B returns the
``alpha x beta`` block of C.  With b bytes an item, rates F (FLOP/s), D and U (bytes/s) and weights w:

    x_d = b k (w_a alpha + w_b beta) / D        download
    x_c = 2 alpha beta k / F                    compute
    x_u = b w_c alpha beta / U                  upload
    t   = latency per transfer that is not empty + launch + max(x) + (sum(x) - max(x)) / tiles

``tiles`` is the number of equal pieces that flow through the three stages like a pipeline: 1 is no overlap, and None
(or 0) is perfect overlap, max(x).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from morphling.errors import PlanError
from morphling.types import BoolArray, FloatArray, IntArray

__all__ = ["Costs", "Gemm", "Rates", "tile_bytes"]

TINY = 1e-100
"""Added to denominators that are zero where a stage is free; the quotient is then as good as infinite."""


@dataclass(frozen=True)
class Gemm:
    """One product C[m x n] = A[m x k] B[k x n] and what of it travels.

    ``weight_a``, ``weight_b``, ``weight_c`` multiply the bytes of rows of A, columns of B and cells of C: 0 where the
    shard is already on the device (or the result stays there), 2 where an fp32 result of fp16 operands is returned.
    """

    m: int
    n: int
    k: int
    item_bytes: int = 2
    weight_a: float = 1.0
    weight_b: float = 1.0
    weight_c: float = 1.0

    def __post_init__(self) -> None:
        """Raise ``ValueError`` on an empty shape or a negative weight."""
        if min(self.m, self.n, self.k, self.item_bytes) <= 0:
            raise ValueError(f"GEMM {self.m} x {self.n} x {self.k} with {self.item_bytes} bytes an item is empty")
        if not all(0 <= w < np.inf for w in (self.weight_a, self.weight_b, self.weight_c)):
            raise ValueError("byte weights must be finite and not negative")


@dataclass(frozen=True, eq=False)
class Rates:
    """What a planner must know of N devices, each float64[N].

    flops : FLOP/s, NaN where the device lacks the dtype;  down, up : bytes/s, 0 = no link now;
    latency_s : one way;  launch_s : fixed cost of a kernel;  memory_bytes : budget of one rectangle (inf = no limit).
    """

    flops: FloatArray
    down: FloatArray
    up: FloatArray
    latency_s: FloatArray
    launch_s: FloatArray
    memory_bytes: FloatArray

    @classmethod
    def of(
        cls,
        flops: ArrayLike,
        down: ArrayLike,
        up: ArrayLike,
        *,
        latency_s: ArrayLike = 0.0,
        launch_s: ArrayLike = 0.0,
        memory_bytes: ArrayLike = np.inf,
    ) -> Rates:
        """From arrays or scalars, repeated to the length of ``flops``.

        Raises ``ValueError`` on unequal lengths, NaN (but in ``flops``), a negative value, a compute rate of 0, or an
        infinite rate or time.
        """
        size = np.atleast_1d(np.asarray(flops)).shape

        def column(
            name: str, value: ArrayLike, *, nan: bool = False, inf: bool = False, zero: bool = True
        ) -> FloatArray:
            out = np.ascontiguousarray(np.broadcast_to(np.asarray(value, np.float64), size))
            bad = (np.isnan(out) & (not nan)) | (np.isinf(out) & (not inf)) | (out < 0) | ((out == 0) & (not zero))
            if bad.any():
                i = int(np.argmax(bad))
                raise ValueError(f"{name} of device {i} is {out[i]}")
            return out

        return cls(
            flops=column("flops", flops, nan=True, zero=False),
            down=column("down", down),
            up=column("up", up),
            latency_s=column("latency_s", latency_s),
            launch_s=column("launch_s", launch_s),
            memory_bytes=column("memory_bytes", memory_bytes, inf=True),
        )

    def __len__(self) -> int:
        return len(self.flops)

    def take(self, devices: IntArray | BoolArray) -> Rates:
        """The chosen devices only."""
        return Rates(
            self.flops[devices],
            self.down[devices],
            self.up[devices],
            self.latency_s[devices],
            self.launch_s[devices],
            self.memory_bytes[devices],
        )

    def capped(self, egress: float | None, ingress: float | None) -> Rates:
        """With links shared max-min fairly through a coordinator that sends ``egress``, receives ``ingress`` bytes/s.

        A device gets at least this much while all of them transfer at once, and more when some have finished.
        """
        down, up = water_fill(self.down, egress), water_fill(self.up, ingress)
        return self if down is self.down and up is self.up else replace(self, down=down, up=up)


def water_fill(rates: FloatArray, capacity: float | None) -> FloatArray:
    """Max-min fair shares of ``capacity``: min(rate, level) with the level at which they sum to it; same unit."""
    if capacity is None or rates.sum() <= capacity:
        return rates
    order = np.sort(rates)
    left = capacity - np.concatenate([[0.0], np.cumsum(order)[:-1]])
    level = left / np.arange(len(order), 0, -1)
    # The water level is the first one that its own device can use up.
    shares: FloatArray = np.minimum(rates, level[np.argmax(order >= level)])
    return shares


def tile_bytes(alpha: ArrayLike, beta: ArrayLike, k: int, item_bytes: int) -> FloatArray:
    """Memory of a rectangle, bytes: b (alpha k + k beta + alpha beta)."""
    a, b = np.asarray(alpha, np.float64), np.asarray(beta, np.float64)
    total: FloatArray = item_bytes * (a * k + k * b + a * b)
    return total


class Costs:
    """The cost model of one GEMM on N devices, with its coefficients worked out once.

    All devices must have a compute rate, and a link where the GEMM moves bytes; ``PlanError`` otherwise.
    """

    def __init__(self, gemm: Gemm, rates: Rates, tiles: int | None) -> None:
        if tiles is not None and tiles < 0:
            raise ValueError(f"tiles is {tiles}; it must be at least 1, or None for perfect overlap")
        self.gemm, self.rates, self.tiles = gemm, rates, tiles
        g = gemm
        self.receives, self.sends = g.weight_a + g.weight_b > 0, g.weight_c > 0
        if (
            np.isnan(rates.flops).any()
            or (self.receives and not rates.down.all())
            or (self.sends and not rates.up.all())
        ):
            raise PlanError("a device without a compute rate or a link cannot be given a rectangle")
        self.share = 1.0 / tiles if tiles else 0.0
        byte_s = g.item_bytes * g.k / rates.down if self.receives else np.zeros(len(rates))
        self.row_s, self.column_s = byte_s * g.weight_a, byte_s * g.weight_b
        self.compute_s = 2.0 * g.k / rates.flops
        self.upload_s = g.item_bytes * g.weight_c / rates.up if self.sends else np.zeros(len(rates))
        self.fixed_s = rates.launch_s + rates.latency_s * (int(self.receives) + int(self.sends))
        # Whichever of compute and upload is longer is so for every rectangle, so two constraints describe three stages:
        # download the longest:      x_d + cell_download area <= T;   otherwise:  share x_d + cell_other area <= T.
        low, high = np.minimum(self.compute_s, self.upload_s), np.maximum(self.compute_s, self.upload_s)
        self.cell_download = self.share * (low + high)
        self.cell_other = high + self.share * low
        self.items = rates.memory_bytes / g.item_bytes

    def __len__(self) -> int:
        return len(self.rates)

    def take(self, devices: IntArray) -> Costs:
        """The chosen devices only, in that order."""
        out = object.__new__(Costs)
        out.gemm, out.rates = self.gemm, self.rates.take(devices)
        out.tiles, out.share = self.tiles, self.share
        out.receives, out.sends = self.receives, self.sends
        for name in (
            "row_s", "column_s", "compute_s", "upload_s", "fixed_s", "cell_download", "cell_other", "items"
        ):  # fmt: skip
            setattr(out, name, getattr(self, name)[devices])
        return out

    def shared(self, egress: float | None, ingress: float | None) -> Costs:
        """The costs at fair shares of the coordinator's rates (`Rates.capped`)."""
        rates = self.rates.capped(egress, ingress)
        return self if rates is self.rates else Costs(self.gemm, rates, self.tiles)

    def at_most(self, down: float | None, up: float | None) -> Costs:
        """The costs with no link faster than ``down`` and ``up`` bytes/s (None = as it is)."""
        rates = replace(
            self.rates,
            down=self.rates.down if down is None else np.minimum(self.rates.down, down),
            up=self.rates.up if up is None else np.minimum(self.rates.up, up),
        )
        return Costs(self.gemm, rates, self.tiles)

    def flipped(self) -> Costs:
        """The costs of the transposed product, in which rows and columns change places."""
        g, out = self.gemm, self.take(np.arange(len(self)))
        out.gemm = Gemm(g.n, g.m, g.k, g.item_bytes, g.weight_b, g.weight_a, g.weight_c)
        out.row_s, out.column_s = out.column_s, out.row_s
        return out

    def times(self, alpha: ArrayLike, beta: ArrayLike) -> FloatArray:
        """Seconds of each device's own rectangle, float64[N]; 0 where it is empty."""
        a, b = np.asarray(alpha, np.float64), np.asarray(beta, np.float64)
        stages = np.stack([self.row_s * a + self.column_s * b, self.compute_s * a * b, self.upload_s * a * b])
        longest = stages.max(axis=0)
        seconds = self.fixed_s + longest + (stages.sum(axis=0) - longest) * self.share
        return np.where((a > 0) & (b > 0), seconds, 0.0)

    def memory_columns(self, alpha: FloatArray) -> FloatArray:
        """Most columns that ``alpha`` rows leave memory for, float64[N]; below 0 where not even the rows fit."""
        return np.minimum((self.items - alpha * self.gemm.k) / (self.gemm.k + alpha), float(self.gemm.n))

    def columns(self, time_s: FloatArray | float, alpha: FloatArray) -> FloatArray:
        """Most columns (real, 0 … n) that each device finishes in ``time_s`` when it has ``alpha`` rows, float64[N]."""
        left = time_s - self.fixed_s
        rows_s = self.row_s * alpha
        beta = (left - rows_s) / (self.column_s + self.cell_download * alpha + TINY)
        if self.share < 1.0:
            other = (left - self.share * rows_s) / (self.share * self.column_s + self.cell_other * alpha + TINY)
            beta = np.minimum(beta, other)
        return np.maximum(np.minimum(beta, self.memory_columns(alpha)), 0.0)

    def slopes(self, time_s: float, alpha: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """``columns`` and its derivatives with respect to ``alpha`` and to time, each float64[N]."""
        k, left, rows_s = self.gemm.k, time_s - self.fixed_s, self.row_s * alpha
        below = self.column_s + self.cell_download * alpha + TINY
        beta = (left - rows_s) / below
        by_alpha, by_time = -(self.row_s + beta * self.cell_download) / below, 1.0 / below
        if self.share < 1.0:
            below = self.share * self.column_s + self.cell_other * alpha + TINY
            other = (left - self.share * rows_s) / below
            tight = other < beta
            by_alpha = np.where(tight, -(self.share * self.row_s + other * self.cell_other) / below, by_alpha)
            by_time = np.where(tight, 1.0 / below, by_time)
            beta = np.minimum(beta, other)
        limit = (self.items - alpha * k) / (k + alpha)
        tight = limit < beta
        by_alpha = np.where(tight, -(k + limit) / (k + alpha), by_alpha)
        beta = np.where(tight, limit, beta)
        free = (beta > 0) & (beta < self.gemm.n)
        clipped = np.clip(beta, 0.0, float(self.gemm.n))
        return clipped, np.where(free, by_alpha, 0.0), np.where(free & ~tight, by_time, 0.0)

    def memory_area(self) -> FloatArray:
        """Largest rectangle that fits each device's memory, cells, float64[N]."""
        g, short = self.gemm, float(min(self.gemm.m, self.gemm.n))
        unlimited = np.isinf(self.items)
        items = np.where(unlimited, 0.0, self.items)
        side = items / (g.k + np.sqrt(float(g.k) ** 2 + items))
        area = np.where(side <= short, side**2, short * np.maximum(items - short * g.k, 0.0) / (g.k + short))
        area = np.where(items >= 2 * g.k + 1, np.minimum(area, float(g.m) * g.n), 0.0)
        return np.where(unlimited, float(g.m) * g.n, area)

    def areas(self, time_s: float, limit: FloatArray | None = None) -> FloatArray:
        """Largest area (cells, real) that each device finishes in ``time_s`` in its best shape, float64[N].

        ``limit`` is ``memory_area()`` if memory counts.  No rectangle of a device does better, so that a time in which
        the areas do not sum to m n is too short for any plan.
        """
        cells = float(self.gemm.m) * self.gemm.n
        left = np.maximum(time_s - self.fixed_s, 0.0)
        area = self._area_under(1.0, self.cell_download, left)
        if self.share < 1.0:
            area = np.minimum(area, self._area_under(self.share, self.cell_other, left))
        return np.minimum(area, cells if limit is None else limit)

    def _area_under(self, share: float, cell_s: FloatArray, left: FloatArray) -> FloatArray:
        """Largest area with ``share x_d(area) + cell_s area <= left``, where x_d is that of the best shape."""
        g = self.gemm
        wa, wb = g.weight_a, g.weight_b
        # The best shape has w_a alpha = w_b beta until one side is as long as C; beyond, the other side grows alone.
        rows_first = g.m * wa <= g.n * wb
        side, own_s, other_s = (g.m, self.row_s, self.column_s) if rows_first else (g.n, self.column_s, self.row_s)
        affine = np.maximum(left - share * own_s * side, 0.0) / (cell_s + share * other_s / side + TINY)
        if wa == 0 or wb == 0:
            return affine
        corner = float(g.m) ** 2 * wa / wb if rows_first else float(g.n) ** 2 * wb / wa
        half = share * np.sqrt(self.row_s * self.column_s)
        root = left / (half + np.sqrt(half**2 + cell_s * left) + TINY)
        square = root * root
        return np.where(square <= corner, square, affine)
