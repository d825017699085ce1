"""The host back end: products on one CPU thread with numpy, timed by the CPU time of that thread.

CPU time hardly depends on what else the machine does, wall time doubles and more (with two threads in a product it can
grow a thousandfold).  It needs no GPU and no torch; BLAS is held to one thread by threadpoolctl.
"""

from __future__ import annotations

import math
import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from morphling.errors import RunError
from morphling.executors.live.partition import BackEnd, Partition, Product, Timing, Unavailable
from morphling.executors.measure_gemm import BLOCK_S, blocks_of
from morphling.types import AnyArray, DType

__all__ = ["Host", "limited_blas"]

LONG_S: Final = 0.5
"""A product that takes longer is executed once."""
QUANTUM_S: Final = 2e-3
LEAST_ROWS: Final = 16
"""Fewer rows at once would be matrix times vector: other kernels, and several times the CPU time."""
SLEEP_MARGIN_S: Final = 2e-4
MEMORY_SHARE: Final = 0.8
"""Of the memory that is free, what one product may take."""
_LIMITS: Final = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "OMP_NUM_THREADS")


@contextmanager
def limited_blas() -> Iterator[None]:
    """BLAS uses one thread inside; afterwards as many as before."""
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> Any:
    """Those loaded by now, numpy's BLAS among them."""
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415 - reads every loaded library

    return ThreadpoolController()


class Host(BackEnd):
    """One partition, a CPU thread; float32 only, since numpy has no BLAS for the shorter formats."""

    name: ClassVar[str] = "host"
    clock: ClassVar[str] = "CPU time of the thread"
    stale_faster: ClassVar[float] = 0.25
    stale_slower: ClassVar[float] = 1.0  # a neighbour on the same core costs 40 % and goes away again
    disturbed: ClassVar[float] = 0.1
    paces: ClassVar[bool] = True

    def __init__(self) -> None:
        self.reference = Product(256, 256, 256)
        self.reference_set = (
            Product(256, 256, 256),
            self.reference,
            Product(1024, 1024, 1024),
            Product(2048, 256, 256),
        )
        self.streaming = Product(1, 4096, 4096)
        self.blas = _one_thread()
        self.noise = np.random.default_rng(0).uniform(-1, 1, 1 << 16).astype(np.float32)

    def partitions(self) -> tuple[Partition, ...]:
        """One thread; more of them are as fast each, and one product at a time is timed."""
        return (Partition(1, "1 CPU thread"),)

    def dtypes(self) -> tuple[DType, ...]:
        """float32."""
        return (DType.FLOAT32,)

    def measure(self, product: Product, partition: Partition) -> Timing:  # noqa: ARG002 - there is one
        """The shortest of several blocks of calls: what disturbs a measurement lengthens it."""
        a, b, c = self._operands(product)
        with limited_blas():
            return timed(lambda: np.matmul(a, b, out=c), _cpu_seconds)

    def multiply(self, a: AnyArray, b: AnyArray, dtype: DType, partition: Partition) -> AnyArray:  # noqa: ARG002
        """On one thread."""
        with limited_blas():
            out: AnyArray = np.matmul(a, b)
        return out

    def paced(self, product: Product, partition: Partition, flops_per_s: float) -> Timing:  # noqa: ARG002
        """Blocks of rows, each followed by a pause until it is due at ``flops_per_s``; wall time of the whole."""
        a, b, c = self._operands(product)
        of_row = 2.0 * product.n * product.k
        rows = min(product.m, max(LEAST_ROWS, int(flops_per_s * QUANTUM_S / of_row)))
        with limited_blas():
            np.matmul(a[:rows], b, out=c[:rows])
            start = time.perf_counter()
            for done in range(0, product.m, rows):
                end = min(product.m, done + rows)
                np.matmul(a[done:end], b, out=c[done:end])
                _wait_until(start + end * of_row / flops_per_s)
            took = time.perf_counter() - start
        return Timing(took, 1, 0.0)

    def fingerprint(self) -> dict[str, str]:
        """Processor, numpy and its BLAS."""
        return {"back_end": self.name, "cpu": _cpu(), "cores": str(os.cpu_count()), "library": self.library()}

    def library(self) -> str:
        """``numpy 2.4.6, openblas 0.3.31 (SkylakeX)``."""
        return f"numpy {np.__version__}, {self.blas}"

    def _operands(self, product: Product) -> tuple[AnyArray, AnyArray, AnyArray]:
        """Random A and B as the product stores them, and room for C."""
        if product.dtype not in self.dtypes():
            raise RunError(f"the host back end executes float32, not {product.dtype.label}")
        free = _free_bytes()
        if free is not None and product.stored_bytes > MEMORY_SHARE * free:
            raise _too_large(product)
        try:
            a = self._matrix(*product.stored_a, product.row_a, 0)
            b = self._matrix(*product.stored_b, product.row_b, 1)
            c = np.zeros((product.m, product.n), np.float32)
        except MemoryError:
            raise _too_large(product) from None
        c.fill(0)  # the pages are there before a clock runs
        return (a.T if product.layout[0] == "t" else a), (b.T if product.layout[1] == "t" else b), c

    def _matrix(self, rows: int, columns: int, stride: int, shift: int) -> AnyArray:
        return np.resize(np.roll(self.noise, 17 * shift), (rows, stride))[:, :columns]


def timed(call: Callable[[], object], clock: Callable[[Callable[[], object], int], float]) -> Timing:
    """Blocks of calls: long enough for the clock, and few where a call takes long; the shortest block counts."""
    first = clock(call, 1)
    if first >= LONG_S:
        return Timing(first, 1, 0.0)
    once = max(1e-7, clock(call, 1))
    times = max(1, math.ceil(BLOCK_S / once))
    blocks = [max(1e-9, clock(call, times)) for _ in range(blocks_of(once))]
    return Timing(min(blocks) / times, times * len(blocks), max(blocks) / min(blocks) - 1)


def _cpu_seconds(call: Callable[[], object], times: int) -> float:
    start = time.thread_time_ns()
    for _ in range(times):
        call()
    return (time.thread_time_ns() - start) / 1e9


def _wait_until(due: float) -> None:
    left = due - time.perf_counter()
    if left > SLEEP_MARGIN_S:
        time.sleep(left - SLEEP_MARGIN_S)
    while time.perf_counter() < due:
        pass


def _one_thread() -> str:
    """Which BLAS numpy has; `Unavailable` if it cannot be held to one thread."""
    try:
        controller = _libraries()
    except ImportError:
        raise Unavailable("the host back end needs threadpoolctl: pip install threadpoolctl") from None
    with limited_blas():
        found = [x for x in controller.info() if x["user_api"] == "blas"]
    numpys = [x for x in found if "numpy" in x["filepath"]] or found
    if any(x["num_threads"] != 1 for x in numpys) or (not found and not any(os.environ.get(x) == "1" for x in _LIMITS)):
        raise Unavailable(
            "numpy's BLAS cannot be held to one thread here, so CPU time of one thread would not be all of it: "
            f"set {_LIMITS[0]}=1 (VECLIB_MAXIMUM_THREADS=1 on a Mac) before starting"
        )
    if not numpys:
        return "BLAS unknown to threadpoolctl"
    first = numpys[0]
    return f"{first['internal_api']} {first['version']} ({first.get('architecture', 'any')})"


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()


def _free_bytes() -> int | None:
    """Memory that programs may still take; None where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return None if found is None else 1024 * int(found[1])


def _too_large(product: Product) -> RunError:
    return RunError(
        f"this host has no memory for the sub-task {product.m} x {product.k} x {product.n} "
        f"({product.stored_bytes:,} bytes with its operands): take a smaller batch or model, or more devices"
    )
