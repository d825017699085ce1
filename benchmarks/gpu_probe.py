"""What only a GPU can tell of parts of it: sizes, placement, cost, rates with and without hints, switching.

    python benchmarks/gpu_probe.py

Prints JSON, one answer a line, in at most four minutes; what is left out for time says so.  Without a CUDA device it
prints why there is none.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from morphling.errors import RunError
from morphling.executors.live.cuda import Cuda, driver_fault
from morphling.executors.live.green_contexts import GreenContexts, call
from morphling.executors.live.partition import Product, Unavailable
from morphling.types import DType

BUDGET_S = 230.0
SHAPES = ((2048, 2048, 2048), (256, 4096, 4096), (64, 768, 3072), (1, 4096, 4096))
STARTED = time.monotonic()


def answer(name: str, value: Any) -> None:
    print(json.dumps({name: value}), flush=True)


def left() -> float:
    return BUDGET_S - (time.monotonic() - STARTED)


def splits(end: Cuda) -> None:
    """How many groups each flag gives, and what sizes are rounded to."""
    d, contexts = end.driver, end.contexts
    assert contexts is not None
    sm = contexts.whole.sm
    answer("sm, least part, grain, driver, torch", [
        sm.smCount, getattr(sm, "minSmPartitionSize", None), getattr(sm, "smCoscheduledAlignment", None),
        contexts.version, end.torch.__version__,
    ])  # fmt: skip
    for flags in (0, contexts.flags):
        least = 2 if flags else 8
        _, count, _ = call(d, d.cuDevSmResourceSplitByCount(0, contexts.whole, flags, least))
        answer(f"groups of {least} with flags {flags}", count)


def creation(end: Cuda) -> None:
    """Milliseconds and megabytes of a context with its stream."""
    torch = end.torch
    before, start = torch.cuda.mem_get_info()[0], time.perf_counter()
    pool = GreenContexts(end.driver, sizes=(2, 4, 8, 16, 32, 64, 128))
    took, used = time.perf_counter() - start, before - torch.cuda.mem_get_info()[0]
    answer("creation: ms each", round(1e3 * took / len(pool.parts), 3))
    answer("creation: MB each", round(used / len(pool.parts) / 2**20, 2))
    answer("asked and got", [(p.asked, p.sms) for p in pool.parts])
    pool.close()
    pool = GreenContexts(end.driver, coscheduled=True)
    answer("asked and got, coscheduled", [(p.asked, p.sms) for p in pool.parts])
    pool.close()


def hint(torch: Any, others: int | None) -> None:
    """Tell cublasLt how many SM are not for it (it alone listens); None takes it back."""
    torch.backends.cuda.preferred_blas_library("default" if others is None else "cublaslt")
    torch._C._set_sm_carveout_experimental(others)  # noqa: SLF001 - no public name


def rates(end: Cuda) -> None:
    """GFLOP/s by dtype, shape and part, as they are and with the hint of how many SM there are (cublasLt only)."""
    torch = end.torch
    total = end.contexts.sm_count if end.contexts is not None else 0
    for dtype in (DType.FLOAT32, DType.TFLOAT32, DType.BFLOAT16):
        for m, k, n in SHAPES:
            if left() < 40:
                answer(f"{dtype.label} {m}x{k}x{n}", "left out: no time")
                continue
            found = {}
            for part in reversed(end.partitions()):
                product = Product(m, n, k, dtype)
                try:
                    timing = end.measure(product, part)
                    found[part.name] = [round(product.flops / timing.seconds / 1e9, 1), round(timing.spread, 3)]
                    hint(torch, total - part.size)
                    timing = end.measure(product, part)
                    found[f"{part.name}, hint"] = round(product.flops / timing.seconds / 1e9, 1)
                except (RuntimeError, RunError) as error:  # big thread-block clusters may not fit
                    found[part.name] = f"failed: {str(error).splitlines()[0]}"
                finally:
                    hint(torch, None)
            answer(f"GFLOP/s and spread, {dtype.label} {m}x{k}x{n}", found)


def switching(end: Cuda) -> None:
    """Microseconds of a launch on the same stream, and on another one each time."""
    torch = end.torch
    a = torch.randn(64, 64, device="cuda")
    c = torch.empty_like(a)
    torch.cuda.synchronize()
    streams = list(end.streams.values())

    def each(number: int, stream_of: Callable[[int], Any]) -> float:
        start = time.perf_counter()
        for i in range(number):
            with torch.cuda.stream(stream_of(i)):
                torch.mm(a, a, out=c)
        torch.cuda.synchronize()
        return round((time.perf_counter() - start) / number * 1e6, 2)

    each(50, lambda i: streams[i % len(streams)])
    answer("launch on another stream: us", each(2000, lambda i: streams[i % len(streams)]))
    answer("launch on the same stream: us", each(2000, lambda _: streams[0]))


def steadiness(end: Cuda) -> None:
    """How far the reference drifts in ten seconds of load, by part."""
    for part in end.partitions()[:3]:
        if left() < 15:
            return
        first = end.measure(end.reference, part).seconds
        until, later = time.monotonic() + min(10.0, left() / 3), first
        while time.monotonic() < until:
            later = end.measure(end.reference, part).seconds
        answer(f"drift after load, {part.name}", round(later / first - 1, 4))


def main() -> None:
    """All of it, or why not."""
    _, why = driver_fault()
    if why is not None:
        print(f"no CUDA device: {why}")
        return
    try:
        end = Cuda()
    except Unavailable as error:
        print(f"no CUDA device that can be parted: {error}")
        return
    answer("self-test: blocks run on the SM of their part and no others", [p.name for p in end.partitions()])
    try:
        for part in (splits, creation, switching, rates, steadiness):
            try:
                end.thread.submit(part, end).result() if part in (splits, creation, switching) else part(end)
            except (RuntimeError, RunError) as error:  # an answer, too
                answer(part.__name__, f"failed: {error}")
    finally:
        end.close()
    answer("seconds", round(time.monotonic() - STARTED, 1))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
