"""Matrix products executed as the tiles of a plan: views of the host's tensors, results written into slices of one.

No device has tensors of its own, so the host holds one copy however large the fleet.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, repeat
from typing import NamedTuple

import torch

from morphling.emulate.tiles import Part, ProductShape, Tiles
from morphling.errors import RunError

__all__ = ["Cut", "Threads", "numerics_error", "tolerance"]

ALL = -1
"""Every product of a batch: they are cut alike, so each tile is one batched product."""
WORTH_THREADS = 4e6
"""FLOPs of a product from which on tiles are handed to threads: below it handing them out costs more than it saves."""


def tolerance(dtype: torch.dtype, k: int) -> float:
    """Largest relative error of a product assembled from tiles that rounding explains, relative to its largest element.

    A sum of k terms in another order differs by about ``sqrt(k)`` roundings of the accumulator (float32, or the dtype
    itself if that is wider), and the result is rounded once more to the dtype; 16 and 4 are margins of ours.
    """
    own = float(torch.finfo(dtype).eps)
    accumulator = min(own, float(torch.finfo(torch.float32).eps))
    return (0.0 if own == accumulator else 4 * own) + 16 * accumulator * math.sqrt(max(k, 1))


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


_kept = threading.local()


def _alone() -> None:
    """A worker computes with one thread, below autograd; in inference mode it may write to any tensor."""
    torch.set_num_threads(1)
    _kept.mode = torch.inference_mode()
    _kept.mode.__enter__()  # for as long as the thread lives


class Band(NamedTuple):
    """Tiles of one product (or of `ALL`) side by side: the same rows (if ``turned``, the same columns) and part of the
    inner dimension, one after the other from ``offset`` on.

    start, length : of the rows (columns) that they share;  sizes : of each tile in the other direction
    """

    product: int
    start: int
    length: int
    offset: int
    sizes: tuple[int, ...]
    inner: int
    inners: int
    first: bool
    turned: bool

    @property
    def shared(self) -> tuple[int, int, int, int, int, bool]:
        """What its tiles have in common."""
        return self.product, self.start, self.length, self.inner, self.inners, self.first


class Cut:
    """Tiles made ready to execute, over and over."""

    def __init__(self, tiles: Tiles, threads: Threads | None = None) -> None:
        self.tiles, self.threads = tiles, threads
        self.shape: ProductShape = tiles.shape
        self.chunks: dict[int, list[list[Band]]] = {}

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
        """``alpha A B`` (plus ``beta bias``, of C's shape) as tiles; [m x n], or [batch x m x n] if A and B have three.

        ``poison`` : fill the result with NaN before, so that an element that no tile writes shows.  ``RunError`` naming
        the tile if the host has no memory for it.
        """
        try:
            out = torch.empty((*a.shape[:-1], self.shape.n), dtype=a.dtype, device=a.device)
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            need = self.shape.batch * self.shape.m * self.shape.n * a.element_size()
            raise _no_memory(f"the result of {self.shape}", need) from error
        if poison:
            out.fill_(float("nan"))
        chunks = self._chunks(a)
        operands = _Operands(self.shape, a, b, out, bias, beta, alpha)
        if len(chunks) == 1 or self.threads is None:
            for chunk in chunks:
                operands.run(chunk)
        else:
            self.threads.run([partial(operands.run, chunk) for chunk in chunks])
        return out

    def _chunks(self, a: torch.Tensor) -> list[list[Band]]:
        """The tiles in as many runs as there are threads to execute them; partial sums of a rectangle stay together."""
        count = self.threads.count() if self.threads is not None and a.device.type == "cpu" else 1
        if self.shape.flops < WORTH_THREADS or len(self.tiles) < 2 * count:
            count = 1
        if count not in self.chunks:
            ways = []
            for turned in (False, True):
                parts = _alike(self.tiles.parts(turned=turned), self.shape.batch)
                ways.append([_bands(p, turned=turned) for p in _chunked(parts, count)])
            self.chunks[count] = min(ways, key=lambda chunks: sum(map(len, chunks)))
        return self.chunks[count]


class _Operands(NamedTuple):
    """One product under way."""

    shape: ProductShape
    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    bias: torch.Tensor | None
    beta: float
    alpha: float

    def run(self, bands: Iterable[Band]) -> None:
        """Execute the tiles of some bands, each as one product of views."""
        for band in bands:
            try:
                self._band(band)
            except (MemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                need = self.a.element_size() * band.length * sum(band.sizes)
                raise _no_memory(self._described(band), need) from error

    def _band(self, band: Band) -> None:
        p, start, length, offset, sizes, inner, inners, first, turned = band
        a, b, out, bias = self.a, self.b, self.out, self.bias
        mm, addmm = torch.mm, torch.addmm
        if a.dim() == 3:
            if p == ALL:
                mm, addmm = torch.bmm, torch.baddbmm
            else:
                a, b, out = a[p], b[p], out[p]
                bias = None if bias is None else bias[p]
        if inners != self.shape.k:
            a, b = a.narrow(-1, inner, inners), b.narrow(-2, inner, inners)
        across = -1 if turned else -2
        targets = _pieces(out, across, start, length, offset, sizes)
        if turned:
            rights: Iterable[torch.Tensor] = repeat(b.narrow(-1, start, length))
            lefts: Iterable[torch.Tensor] = _split(a, -2, offset, sizes)
        else:
            lefts, rights = repeat(a.narrow(-2, start, length)), _split(b, -1, offset, sizes)
        alpha = self.alpha
        if not first:
            for left, right, target in zip(lefts, rights, targets, strict=False):
                addmm(target, left, right, alpha=alpha, out=target)
        elif bias is not None:
            added = _pieces(bias, across, start, length, offset, sizes)
            for left, right, target, plus in zip(lefts, rights, targets, added, strict=False):
                addmm(plus, left, right, beta=self.beta, alpha=alpha, out=target)
        elif alpha == 1:
            for left, right, target in zip(lefts, rights, targets, strict=False):
                mm(left, right, out=target)
        else:
            for left, right, target in zip(lefts, rights, targets, strict=False):
                addmm(target, left, right, beta=0, alpha=alpha, out=target)

    def _described(self, band: Band) -> str:
        across, along = ("columns", "rows") if band.turned else ("rows", "columns")
        return (
            f"the tiles of {across} {band.start} to {band.start + band.length}, {along} {band.offset} to"
            f" {band.offset + sum(band.sizes)} of {self.shape}"
        )


def _split(x: torch.Tensor, axis: int, offset: int, sizes: tuple[int, ...]) -> Sequence[torch.Tensor]:
    """Views of ``sizes`` one after another along ``axis``."""
    total = sum(sizes)
    if total != x.shape[axis]:
        x = x.narrow(axis, offset, total)
    return (x,) if len(sizes) == 1 else x.split_with_sizes(sizes, axis)


def _pieces(
    x: torch.Tensor, across: int, start: int, length: int, offset: int, sizes: tuple[int, ...]
) -> Sequence[torch.Tensor]:
    """Where a band's tiles lie in C."""
    return _split(x.narrow(across, start, length), -3 - across, offset, sizes)


def _out_of_memory(error: BaseException) -> bool:
    """Whether the host ran out of memory (torch says so in a plain RuntimeError on the CPU)."""
    return isinstance(error, MemoryError) or "memory" in str(error)


def _no_memory(what: str, need: int) -> RunError:
    return RunError(f"the host has no memory for {what} ({need:,} bytes): take a smaller batch or model")


def _alike(parts: tuple[Part, ...], batch: int) -> tuple[Part, ...]:
    """One part for all products, where each of ``batch`` is cut in the same way."""
    size, rest = divmod(len(parts), batch)
    if batch == 1 or rest:
        return parts
    first = [part[1:] for part in parts[:size]]
    same = all([part[1:] for part in parts[i : i + size]] == first for i in range(size, len(parts), size))
    return tuple(part._replace(product=ALL) for part in parts[:size]) if same else parts


def _bands(parts: Sequence[Part], *, turned: bool) -> list[Band]:
    """Neighbours with the same rows (``turned``: columns) become one band."""
    bands: list[Band] = []
    for p, r, h, c, w, inner, inners, first in parts:
        start, length, offset, size = (c, w, r, h) if turned else (r, h, c, w)
        last = bands[-1] if bands else None
        shared = (p, start, length, inner, inners, first)
        if last is not None and last.shared == shared and last.offset + sum(last.sizes) == offset:
            bands[-1] = last._replace(sizes=(*last.sizes, size))
        else:
            bands.append(Band(p, start, length, offset, (size,), inner, inners, first, turned))
    return bands


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
