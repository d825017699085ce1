"""Parts of a real GPU: what cannot be known without one.  Skipped, with the reason, where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from morphling.executors.live.cuda import Cuda
from morphling.executors.live.numerics import relative_error, tolerance
from morphling.executors.live.partition import Product, Unavailable
from morphling.types import DType

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cuda():
    try:
        end = Cuda()
    except Unavailable as error:
        pytest.skip(f"no cuda back end here: {error}")
    yield end
    end.close()


def test_parts_have_the_sm_that_were_asked_for(cuda):
    """Opening it has proved by %smid that blocks run on so many SM."""
    sizes = [p.size for p in cuda.partitions()]
    assert sizes == sorted(set(sizes))
    assert sizes[0] >= 2
    assert sizes[-1] <= cuda.contexts.sm_count
    assert all(p.asked == p.sms for p in cuda.contexts.parts)


def test_large_products_are_faster_in_larger_parts(cuda):
    product = Product(2048, 2048, 2048)
    took = [cuda.measure(product, p).seconds for p in cuda.partitions()]
    assert took == sorted(took, reverse=True)
    sizes = [p.size for p in cuda.partitions()]
    # compute-bound: twice the SM, about half the time, as long as waves are many
    assert took[0] / took[2] == pytest.approx(sizes[2] / sizes[0], rel=0.25)


def test_times_repeat(cuda):
    product, part = Product(1024, 1024, 1024), cuda.partitions()[1]
    took = sorted(cuda.measure(product, part).seconds for _ in range(5))
    assert took[-1] / took[0] < 1.1


def test_a_part_is_not_the_whole_gpu(cuda):
    """A part's rate stays within what its SM can do: 128 multiply-adds a clock each, in float32."""
    torch = cuda.torch
    product, part = Product(2048, 2048, 2048), cuda.partitions()[0]
    clock = (
        torch.cuda.get_device_properties(0).clock_rate * 1e3
        if hasattr(torch.cuda.get_device_properties(0), "clock_rate")
        else 2.2e9
    )
    most = part.size * 128 * 2 * clock
    assert product.flops / cuda.measure(product, part).seconds <= 1.1 * most


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.TFLOAT32, DType.BFLOAT16, DType.FLOAT16], ids=lambda d: d.label)
def test_products_are_right_in_every_part(cuda, dtype):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((300, 257)).astype(np.float32)
    b = rng.standard_normal((257, 129)).astype(np.float32)
    exact = a.astype(np.float64) @ b
    for part in cuda.partitions():
        assert relative_error(cuda.multiply(a, b, dtype, part), exact) <= tolerance(dtype, 257), part.name


def test_every_layout_can_be_measured(cuda):
    for layout in ("nn", "nt", "tn", "tt"):
        assert cuda.measure(Product(256, 192, 128, layout=layout, lda=512, ldb=512), cuda.partitions()[0]).seconds > 0


def test_it_can_be_opened_again():
    """Everything is given back in the order that the driver wants, or the second would fail."""
    for _ in range(2):
        try:
            end = Cuda()
        except Unavailable as error:
            pytest.skip(f"no cuda back end here: {error}")
        end.measure(Product(512, 512, 512), end.partitions()[0])
        end.close()
