"""Each distinct product measured once: the back end, what is kept of it on disk, and how much may be spent."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from morphling.errors import RunError
from morphling.executors.live.cache import TimingCache
from morphling.executors.live.host import LONG_S
from morphling.executors.live.partition import BackEnd, Partition, Product, Timing
from morphling.executors.measure_gemm import blocks_of

__all__ = ["Measurements"]

TRIES: Final = 3
"""How often a product is measured, at most, while the reference beside it is slower than it can be."""
WARM_UPS: Final = 10
"""Rounds of the reference at the beginning, the shortest of which counts: clocks rise, and neighbours come and go."""
OVERHEAD_S: Final = 5e-3
"""Of making operands and of blocks too short to be worth less; a guess for the estimate only."""
TOLD_EVERY_S: Final = 2.0
SAVED_EVERY_S: Final = 5.0


class Measurements:
    """Times of products in partitions.

    drift : the reference now by the reference as kept, less 1; None before anything was asked for
    spent_s : wall time of measuring in this run
    disturbed : products among them that were measured while the host was slower than it can be
    measured, repeated : distinct products measured in this run, and taken from earlier runs
    """

    def __init__(self, back_end: BackEnd, cache: TimingCache, most_s: float) -> None:
        self.back_end, self.cache, self.most_s = back_end, cache, most_s
        self.spent_s = 0.0
        self.drift: float | None = None
        self.reference: Timing | None = None
        self.disturbed: set[str] = set()
        self.measured: set[str] = set()
        self.repeated: set[str] = set()
        self.notes: list[str] = []
        self.rates: dict[Partition, float] = {}
        self.told = time.monotonic()

    def times(
        self, products: Iterable[tuple[Product, Partition]], paces: Iterable[float] | None = None
    ) -> list[Timing]:
        """Of each product in its partition, in order; what is not known is measured.

        ``paces`` : FLOP/s at which each is executed in real time, for `BackEnd.paced`.

        ``RunError`` before anything is measured that would take longer than what is left of the budget.
        """
        self._check_host()
        asked = list(products)
        rates = [0.0] * len(asked) if paces is None else list(paces)
        keys = [_key(*one, rate) for one, rate in zip(asked, rates, strict=True)]
        todo = {
            key: (*one, rate) for key, one, rate in zip(keys, asked, rates, strict=True) if self.cache.get(key) is None
        }
        self.repeated.update(key for key in keys if key not in todo and key not in self.measured)
        if todo:
            self._afford(list(todo.values()))
            try:
                self._measure_all(todo)
            finally:  # who interrupts a long run need not begin again
                self.cache.save()
        found = [self._known(key) for key in keys]
        self.disturbed.update(key for key, timing in zip(keys, found, strict=True) if not timing.calm)
        return found

    def _measure_all(self, todo: dict[str, tuple[Product, Partition, float]]) -> None:
        saved = time.monotonic()
        for number, (key, (product, partition, rate)) in enumerate(todo.items()):
            self._tell(number, len(todo))
            if self.spent_s > self.most_s:
                kept = "what was measured is kept, so run again to go on; or " if self.cache.path is not None else ""
                raise RunError(
                    f"max_measure_s = {self.most_s:g} are spent, and {len(todo) - number:,} of {len(todo):,} distinct "
                    f"sub-tasks are not measured yet (they take longer than their FLOPs say): {kept}{_WAYS_OUT}"
                )
            self._settled(key, product, partition, rate)
            if time.monotonic() - saved >= SAVED_EVERY_S:
                self.cache.save()
                saved = time.monotonic()

    def spend(self, flops: float, rate: float, what: str) -> None:
        """Refuse ``what`` if it would take longer at ``rate`` (FLOP/s) than what is left of the budget."""
        need = flops / rate
        if need > self.most_s - self.spent_s:
            raise self._too_long(what, need)

    def _too_long(self, what: str, need: float) -> RunError:
        left = max(0.0, self.most_s - self.spent_s)
        return RunError(
            f"{what} would take about {need:.3g} s here, and {left:.3g} s of max_measure_s = {self.most_s:g} are left: "
            f"{_WAYS_OUT}"
        )

    def _known(self, key: str) -> Timing:
        found = self.cache.get(key)
        assert found is not None  # noqa: S101 - just measured
        return found

    def _settled(self, key: str, product: Product, partition: Partition, rate: float) -> None:
        """Measure, again while the host is disturbed; the shortest counts, and says whether it settled."""
        best, calm = self._one(product, partition, rate), self._calm()
        for _ in range(TRIES - 1):
            if calm or best.seconds >= LONG_S or rate:
                break
            again, calm = self._one(product, partition, rate), self._calm()
            best = again if calm or again.seconds < best.seconds else best
        self.measured.add(key)
        self.cache.put(key, replace(best, calm=calm))

    def _calm(self) -> bool:
        """Whether the reference takes no longer than it can."""
        assert self.reference is not None  # noqa: S101 - `_check_host` came first
        now = self._one(self.back_end.reference, self.back_end.partitions()[0]).seconds
        return now <= self.reference.seconds * (1 + self.back_end.disturbed)

    def _one(self, product: Product, partition: Partition, rate: float = 0.0) -> Timing:
        started = time.monotonic()
        try:
            if rate:
                return self.back_end.paced(product, partition, rate)
            return self.back_end.measure(product, partition)
        finally:
            self.spent_s += time.monotonic() - started

    def _afford(self, todo: list[tuple[Product, Partition, float]]) -> None:
        need = sum(self._cost(*one) for one in todo)
        if need > self.most_s - self.spent_s:
            largest = max((product for product, _, _ in todo), key=lambda p: p.flops)
            raise self._too_long(
                f"measuring {len(todo):,} distinct sub-tasks (the largest {largest.m} x {largest.k} x {largest.n})",
                need,
            )

    def _cost(self, product: Product, partition: Partition, pace: float) -> float:
        """Seconds that measuring takes, about; those of calibration, whose rate is not known yet, are small."""
        rate = self.rates.get(partition)
        if rate is None:
            return 0.0
        if pace:
            return product.flops / pace
        call = product.flops / rate
        return call if call >= LONG_S else call * (2 + blocks_of(call)) + OVERHEAD_S

    def _check_host(self) -> None:
        """Once a run: whether the host is as fast as when the measurements were kept."""
        if self.reference is not None:
            return
        end = self.back_end
        partition = end.partitions()[0]
        key = _key(end.reference, partition, 0.0)
        kept = self.cache.get(key)
        now = min((self._one(end.reference, partition) for _ in range(WARM_UPS)), key=lambda t: t.seconds)
        self.drift = 0.0 if kept is None else now.seconds / kept.seconds - 1
        stale = self.drift > end.stale_slower or 1 / (1 + self.drift) - 1 > end.stale_faster
        if stale:
            self.cache.drop(
                f"the host is {_words(self.drift)} than when earlier measurements were made (reference "
                f"{end.reference}): they are stale, and all sub-tasks are measured anew"
            )
        elif self.drift > end.disturbed:
            self.notes.append(
                f"the host is {_words(self.drift)} than when earlier measurements were made; it may be busy, and they "
                "are used as they are"
            )
        self.reference = now if stale or kept is None else kept
        if stale or kept is None:
            self.cache.put(key, now)

    def _tell(self, number: int, total: int) -> None:
        """A line on stderr now and then, where somebody reads it."""
        now = time.monotonic()
        if now - self.told >= TOLD_EVERY_S and sys.stderr.isatty():
            self.told = now
            sys.stderr.write(f"live: measuring sub-task {number + 1:,} of {total:,}\n")


def _key(product: Product, partition: Partition, rate: float) -> str:
    paced = f" at {rate:.6g} FLOP/s" if rate else ""
    return f"{partition.name}{paced}: {product}"


def _words(drift: float) -> str:
    return f"{drift:.0%} slower" if drift > 0 else f"{1 / (1 + drift) - 1:.0%} faster"


_WAYS_OUT: Final = (
    "write a larger max_measure_s under execution, take a smaller workload or fewer distinct devices, or use mode: "
    "analytic or profiled"
)
