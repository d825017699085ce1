"""Matrix products executed as the tiles of a plan: views of the host's tensors, results written into slices of one.

No device has tensors of its own, so the host holds one copy however large the fleet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch

from morphling.emulate.tiles import Part, ProductShape, Tiles
from morphling.errors import RunError

__all__ = ["Cut", "Threads", "numerics_error", "tolerance"]

WORTH_THREADS = 4e6
"""FLOPs of a product from which on tiles are handed to threads: below it handing them out costs more than it saves."""


def tolerance(dtype: torch.dtype, k: int) -> float:
    """Largest relative error of a product assembled from tiles that rounding explains, relative to its largest element.

    A sum of k terms in another order differs by about ``sqrt(k)`` roundings of the accumulator (float32, or the dtype
    itself if that is wider), and the result is rounded once more to the dtype; 16 and 4 are margins of ours.
    """
    own = float(torch.finfo(dtype).eps)
    accumulator = min(own, float(torch.finfo(torch.float32).eps))
    return (0.0 if own == accumulator else 4 * own) + 16 * accumulator * max(k, 1) ** 0.5


def numerics_error(assembled: torch.Tensor, unsharded: torch.Tensor) -> float:
    """Largest absolute difference over the largest element; inf if an element was never written (NaN only in one)."""
    if bool((assembled.isnan() != unsharded.isnan()).any()):
        return float("inf")
    finite = unsharded.isfinite() & assembled.isfinite()
    if bool((assembled.eq(unsharded) | finite | unsharded.isnan()).logical_not().any()):
        return float("inf")
    a, b = assembled[finite].double(), unsharded[finite].double()
    if not b.numel():
        return 0.0
    most, off = float(b.abs().max()), float((a - b).abs().max())
    return off / most if most else off


class Threads:
    """One-thread workers that share the tiles of a product, as many as torch has threads.

    With two threads inside each small product, most of the time would go into their meeting again; and a thread of a
    pool uses all cores unless it says otherwise itself.
    """

    def __init__(self) -> None:
        self.pool: ThreadPoolExecutor | None = None
        self.size = 0
        self.lock = threading.Lock()

    def count(self) -> int:
        """How many there are now: torch's own number, which a script may change."""
        return int(torch.get_num_threads())

    def run(self, calls: Sequence[Callable[[], None]]) -> None:
        """Make the calls at the same time; the first error is raised."""
        with self.lock:
            if self.pool is None or self.size < len(calls):
                self.close()
                self.size = len(calls)
                self.pool = ThreadPoolExecutor(self.size, "morphling-tiles", initializer=_alone)
            futures = [self.pool.submit(call) for call in calls]
        for future in futures:
            future.result()

    def close(self) -> None:
        """End the threads."""
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None


def _alone() -> None:
    """A worker computes with one thread, below autograd."""
    torch.set_num_threads(1)
    torch._C._set_grad_enabled(False)  # noqa: SLF001 - the public context manager ends with its block


class Cut:
    """Tiles made ready to execute, over and over."""

    def __init__(self, tiles: Tiles, threads: Threads | None = None) -> None:
        self.tiles, self.threads = tiles, threads
        self.shape: ProductShape = tiles.shape
        self.chunks: dict[int, list[tuple[Part, ...]]] = {}

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """In the order of execution."""
        return self.tiles.parts()

    def run(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        beta: float = 1,
        alpha: float = 1,
        poison: bool = False,
    ) -> torch.Tensor:
        """``alpha A B`` (plus ``beta bias``, of C's shape) as tiles; [m x n], or [count x m x n] if A and B have three.

        ``poison`` : fill the result with NaN before, so that an element that no tile writes shows.  ``RunError`` naming
        the tile if the host has no memory for it.
        """
        lead = a.shape[:-2]
        out = torch.empty((*lead, self.shape.m, self.shape.n), dtype=a.dtype, device=a.device)
        if poison:
            out.fill_(float("nan"))
        operands = (
            (a, b, out, bias) if lead else tuple(None if x is None else x.unsqueeze(0) for x in (a, b, out, bias))
        )
        chunks = self._chunks(a)
        if len(chunks) == 1 or self.threads is None:
            self._execute(chunks[0], *operands, beta, alpha)
        else:
            self.threads.run([lambda c=c: self._execute(c, *operands, beta, alpha) for c in chunks])
        return out

    def _chunks(self, a: torch.Tensor) -> list[tuple[Part, ...]]:
        """The tiles in as many runs as there are threads to execute them; partial sums of a rectangle stay together."""
        count = self.threads.count() if self.threads is not None and a.device.type == "cpu" else 1
        if self.shape.flops < WORTH_THREADS or len(self.parts) < 2 * count:
            count = 1
        if count not in self.chunks:
            self.chunks[count] = list(_chunked(self.parts, count))
        return self.chunks[count]

    def _execute(
        self,
        parts: Iterable[Part],
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None,
        beta: float,
        alpha: float,
    ) -> None:
        """Each tile is one product of views; a band of rows, or of columns, is cut once."""
        k = self.shape.k
        bands: dict[tuple[int, int, int], tuple[Any, ...]] = {}
        strips: dict[tuple[int, int, int], Any] = {}
        plain = bias is None and alpha == 1
        for part in parts:
            p, r, h, c, w, i, length, first = part
            try:
                band = bands.get((p, r, h))
                if band is None:
                    rows = (a[p], out[p]) if bias is None else (a[p], out[p], bias[p])
                    band = bands[p, r, h] = tuple(x.narrow(0, r, h) for x in rows)
                strip = strips.get((p, c, w))
                if strip is None:
                    strip = strips[p, c, w] = b[p].narrow(1, c, w)
                left, target = band[0], band[1].narrow(1, c, w)
                if length != k:
                    left, right = left.narrow(1, i, length), strip.narrow(0, i, length)
                else:
                    right = strip
                if not first:
                    torch.addmm(target, left, right, alpha=alpha, out=target)
                elif plain:
                    torch.mm(left, right, out=target)
                elif bias is None:
                    torch.addmm(target, left, right, beta=0, alpha=alpha, out=target)
                else:
                    torch.addmm(band[2].narrow(1, c, w), left, right, beta=beta, alpha=alpha, out=target)
            except (MemoryError, RuntimeError) as error:
                if isinstance(error, RuntimeError) and "memory" not in str(error):
                    raise
                raise RunError(self._no_memory(part, a)) from error

    def _no_memory(self, part: Part, a: torch.Tensor) -> str:
        _, r, h, c, w, i, length, _ = part
        width = a.element_size()
        need = width * (h * length + length * w + h * w)
        return (
            f"the host has no memory for the tile of rows {r} to {r + h}, columns {c} to {c + w}, inner {i} to"
            f" {i + length} of {self.shape} ({need:,} bytes with its operands): take a smaller batch or model"
        )


def _chunked(parts: tuple[Part, ...], count: int) -> Iterable[tuple[Part, ...]]:
    """Up to ``count`` runs of about equal FLOPs, none of which begins with a partial sum that is not the first."""
    if count <= 1:
        yield parts
        return
    work = [part.rows * part.columns * part.inners for part in parts]
    total, done, cuts = sum(work), 0, [0]
    for place, amount in enumerate(work):
        if done >= total * len(cuts) / count and parts[place].first and place > cuts[-1]:
            cuts.append(place)
        done += amount
    for start, end in pairwise([*cuts, len(parts)]):
        yield parts[start:end]
