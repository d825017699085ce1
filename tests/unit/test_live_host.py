"""The host back end itself: one thread, its CPU time, and products that are right.  No seconds are asserted."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from morphling.errors import RunError
from morphling.executors.live import host as host_module
from morphling.executors.live.host import Host, limited_blas, timed
from morphling.executors.live.partition import Product
from morphling.types import DType


@pytest.fixture(scope="module")
def host():
    return Host()


def test_blas_has_one_thread_inside_and_as_many_as_before_afterwards(host):
    from threadpoolctl import threadpool_info

    def threads():
        return [x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas" and "numpy" in x["filepath"]]

    before = threads()
    with limited_blas():
        assert set(threads()) <= {1}
    assert threads() == before


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_operands_are_stored_as_the_product_says(host, layout):
    product = Product(33, 65, 17, layout=layout, lda=128, ldb=96)
    a, b, c = host._operands(product)
    assert (a.shape, b.shape, c.shape) == ((33, 17), (17, 65), (33, 65))
    stored_a, stored_b = (a.T if layout[0] == "t" else a), (b.T if layout[1] == "t" else b)
    assert (stored_a.strides[0], stored_b.strides[0]) == (128 * 4, 96 * 4)
    assert not (a == 0).any()
    found = host.measure(product, host.partitions()[0])
    assert found.seconds > 0
    assert found.calls >= 1


def test_more_work_takes_longer(host):
    part = host.partitions()[0]
    small, large = (min(host.measure(Product(n, n, n), part).seconds for _ in range(3)) for n in (64, 512))
    assert large > 20 * small  # 512 times the FLOPs


def test_products_are_numpys(host):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((20, 30)).astype(np.float32), rng.standard_normal((30, 10)).astype(np.float32)
    assert host.multiply(a, b, DType.FLOAT32, host.partitions()[0]) == pytest.approx(a @ b, rel=1e-6)


def test_shorter_formats_are_refused(host):
    with pytest.raises(RunError, match="executes float32, not float16"):
        host.measure(Product(8, 8, 8, DType.FLOAT16), host.partitions()[0])


def test_a_sub_task_that_memory_cannot_hold_is_named(host, monkeypatch):
    monkeypatch.setattr(host_module, "_free_bytes", lambda: 1000)
    with pytest.raises(RunError, match=r"no memory for the sub-task 16 x 64 x 32 \(14,336 bytes"):
        host.measure(Product(16, 32, 64), host.partitions()[0])  # 4 (16 64 + 64 32 + 16 32)


def test_paced_products_are_never_early(host):
    product, part = Product(256, 256, 256), host.partitions()[0]
    rate = product.flops / host.measure(product, part).seconds / 50
    found = host.paced(product, part, rate)
    assert found.seconds >= product.flops / rate


def test_time_of_other_threads_does_not_count(host):
    """CPU time of this thread, not of the process: beside a busy thread it stays within a factor of it alone."""
    stop = threading.Event()

    def spin():
        while not stop.is_set():
            sum(range(1000))

    call_wall = []

    def call():
        start = time.perf_counter()
        time.sleep(0.002)  # no CPU time at all
        call_wall.append(time.perf_counter() - start)

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        found = timed(call, host_module._cpu_seconds)
    finally:
        stop.set()
        thread.join()
    assert found.seconds < 0.5 * min(call_wall)


def test_blocks_of_calls():
    """Short calls are timed in blocks, long ones once; the shortest block counts."""
    took = iter([1.0])  # the first call is long: that is all
    assert timed(lambda: None, lambda call, times: next(took)).calls == 1
    took = iter([1e-4, 1e-4, *([4e-4] * 10), 3e-4, *([5e-4] * 4)])
    found = timed(lambda: None, lambda call, times: next(took))
    assert found.seconds == pytest.approx(3e-4 / 2)  # two calls a block of 2e-4 s
    assert (found.calls, found.spread) == (30, pytest.approx(5 / 3 - 1))
