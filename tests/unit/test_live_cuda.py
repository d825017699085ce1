"""The cuda back end against a driver and a torch that keep to the rules of the real ones; no GPU."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from morphling.errors import InputError, RunError
from morphling.executors.live.backends import BACK_ENDS, offers, open_back_end
from morphling.executors.live.cuda import TIMED_CALLS, WARM_CALLS, Cuda
from morphling.executors.live.green_contexts import GreenContexts, _any_sm, placement_fault
from morphling.executors.live.partition import Partition, Product, Unavailable
from morphling.types import DType
from tests.live_back_ends import FakeDriver, FakeTorch


def opened(driver=None, **torch):
    driver = driver or FakeDriver()
    return Cuda(driver, FakeTorch(driver, **torch))


# ----------------------------------------------------------------------------------------------------------- the pool


def test_a_pool_of_any_even_number_of_sm():
    pool = GreenContexts(FakeDriver())
    assert [p.sms for p in pool.parts] == [2, 4, 8, 16, 32, 64]
    assert pool.sm_count == 132


def test_coscheduled_parts_are_multiples_of_eight_and_each_size_is_there_once():
    driver = FakeDriver()
    pool = GreenContexts(driver, coscheduled=True)
    assert [(p.asked, p.sms) for p in pool.parts] == [(2, 8), (16, 16), (32, 32), (64, 64)]
    assert len(driver.contexts) == len(driver.streams) == 4  # 4 and 8 would be the 8 of 2 again


def test_the_size_is_read_back_not_believed():
    pool = GreenContexts(FakeDriver(lost_sms=2), sizes=(8, 16))
    assert [(p.asked, p.sms) for p in pool.parts] == [(8, 6), (16, 14)]


def test_parts_larger_than_the_device_or_what_it_can_split_are_left_out():
    assert [p.sms for p in GreenContexts(FakeDriver(sms=20)).parts] == [2, 4, 8, 16]
    assert [p.sms for p in GreenContexts(FakeDriver(sms=76), coscheduled=True).parts] == [8, 16, 32, 64]
    assert [p.sms for p in GreenContexts(FakeDriver(sms=75), coscheduled=True).parts] == [8, 16, 32]  # 63 usable
    with pytest.raises(Unavailable, match="none of 16 SM can be split from the device's 8"):
        GreenContexts(FakeDriver(sms=8), sizes=(16,))


def test_streams_are_destroyed_before_their_contexts():
    driver = FakeDriver()
    pool = GreenContexts(driver)
    pool.close()
    assert not driver.contexts
    assert not driver.streams
    ends = [what for what, _ in driver.log if what.startswith("no ") or what == "leak"]
    assert ends == ["no stream", "no context"] * 6


def test_what_was_made_is_destroyed_when_the_next_fails():
    class Full(FakeDriver):
        def cuGreenCtxCreate(self, descriptor, device, flags):  # noqa: N802 - the driver's name
            if len(self.contexts) == 2:
                return (self.CUresult.CUDA_ERROR_INVALID_VALUE, None)
            return super().cuGreenCtxCreate(descriptor, device, flags)

    driver = Full()
    with pytest.raises(RunError, match="CUDA_ERROR_INVALID_VALUE"):
        GreenContexts(driver)
    assert not driver.contexts
    assert not driver.streams


def test_a_driver_that_is_too_old_is_named():
    with pytest.raises(Unavailable, match=r"driver is for CUDA 12\.2; .*12\.5"):
        GreenContexts(FakeDriver(version=12_020))


def test_what_a_self_test_may_find():
    assert placement_fault(2, [0, 1, 1, 0], 132) is None
    assert placement_fault(2, [0, 1, 2, 0], 132) == "a part of 2 SM: its blocks ran on 3 SM"
    assert placement_fault(4, [0, 1, 1, 0], 132) == "a part of 4 SM: its blocks ran on 2 SM"
    assert placement_fault(2, [0, -1], 132) == "a part of 2 SM: some blocks did not run"


# ------------------------------------------------------------------------------------------------------- the back end


def test_blocks_on_other_sm_refuse_the_back_end_and_give_everything_back():
    driver = FakeDriver()
    torch = FakeTorch(driver, stray={8: [40]})
    with pytest.raises(Unavailable, match=r"self-test: a part of 8 SM: its blocks ran on 9 SM"):
        Cuda(driver, torch)
    assert not driver.contexts
    assert not driver.streams


def test_a_gpu_that_fails_while_it_is_opened_is_no_back_end():
    driver = FakeDriver()
    torch = FakeTorch(driver)

    def fails(source, name):
        raise RuntimeError("CUDA error: out of memory\nand more")

    torch.cuda._compile_kernel = fails
    with pytest.raises(Unavailable, match=r"opening the GPU's parts failed: CUDA error: out of memory$"):
        Cuda(driver, torch)
    assert not driver.contexts
    del torch.cuda._compile_kernel
    with pytest.raises(Unavailable, match=r"needs torch 2\.9"):
        Cuda(driver, torch)


def test_precision_is_set_when_it_opens():
    end = opened()
    cuda = end.torch.backends.cuda.matmul
    assert [cuda.allow_tf32, cuda.allow_fp16_reduced_precision_reduction] == [False, False]
    assert not cuda.allow_bf16_reduced_precision_reduction
    assert not end.torch.backends.cudnn.allow_tf32
    end.close()


def test_times_are_those_of_the_parts_stream_and_nothing_runs_elsewhere():
    end = opened(rate_per_sm=5e11)
    product = Product(256, 256, 256)
    for size in (2, 16):
        end.torch.ran.clear()
        found = end.measure(product, Partition(size, f"{size} SM"))
        assert found.seconds == pytest.approx(product.flops / (5e11 * size) + 1e-6, rel=1e-9)
        products = [where for what, where in end.torch.ran if what == "mm"]
        assert set(products) == {size}
        assert end.torch.ran[0] == ("wait", size)  # operands are made on the default stream
    end.close()


def test_short_products_are_timed_many_at_once():
    end = opened()
    end.warm = True
    found = end.measure(Product(64, 64, 64), Partition(64, "64 SM"))
    assert found.calls == TIMED_CALLS * 200
    assert len([x for x in end.torch.ran if x[0] == "mm"]) == WARM_CALLS + 1 + found.calls
    end.close()


def test_tensor_cores_in_float32_only_where_the_dtype_says_so():
    end = opened()
    for dtype, on in ((DType.FLOAT32, False), (DType.TFLOAT32, True), (DType.FLOAT16, False)):
        end.torch.tf32.clear()
        end.measure(Product(512, 512, 512, dtype), Partition(2, "2 SM"))
        assert set(end.torch.tf32) == {on}
    assert not end.torch.backends.cuda.matmul.allow_tf32
    end.close()


def test_products_are_right_in_every_layout():
    end = opened()
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((7, 5)).astype(np.float32), rng.standard_normal((5, 9)).astype(np.float32)
    assert end.multiply(a, b, DType.FLOAT32, Partition(2, "2 SM")) == pytest.approx(a @ b, rel=1e-6)
    for layout in ("nn", "nt", "tn", "tt"):
        left, right, out = end._operands(Product(4, 6, 3, layout=layout, lda=16, ldb=16))
        assert (left.shape, right.shape, out.shape) == ((4, 3), (3, 6), (4, 6))
    end.close()


def test_closing_frees_workspaces_before_streams_and_contexts():
    driver = FakeDriver()
    end = opened(driver)
    torch = end.torch
    torch.ran.clear()
    end.close()
    assert [x for x in torch.ran if x[0] == "sync"] == [("sync", s) for s in (2, 4, 8, 16, 32, 64)]
    after = driver.log[driver.log.index(("workspaces", 0)) + 1 :]
    assert [what for what, _ in after] == ["no stream", "no context"] * 6
    end.close()  # once more does nothing
    assert torch.cleared == 1


def test_the_fingerprint_names_device_driver_and_torch():
    end = opened()
    assert end.fingerprint() == {
        "back_end": "cuda", "device": "Fake H100", "sm": "132", "driver": "13000", "torch": "2.13.0", "cuda": "13.0",
        "split_flags": "1",
    }  # fmt: skip
    assert end.facts()["self_test"] == "passed"
    end.close()


def test_the_real_bindings_have_what_the_pool_calls():
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    asked = [name for name in dir(FakeDriver) if name.startswith("cu")]
    assert [name for name in asked if not hasattr(driver, name)] == []
    assert driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM is not None
    assert int(driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM) == 1
    assert int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING) == 1
    assert _any_sm(driver) == 1


# ---------------------------------------------------------------------------------------------------- what is not there


def test_auto_takes_the_host_where_cuda_is_not_there_and_says_why(monkeypatch):
    class Absent(Cuda):
        def __init__(self):
            raise Unavailable("no driver")

    monkeypatch.setitem(BACK_ENDS, "cuda", Absent)
    open_back_end.__globals__["_opened"].cache_clear()
    end, passed_over = open_back_end("auto")
    assert (end.name, passed_over) == ("host", {"cuda": "no driver"})
    with pytest.raises(InputError, match="no driver"):
        open_back_end("cuda")
    told = offers()
    assert told["cuda"] == {"ready": False, "why": "no driver"}
    assert told["host"]["partitions"] == ["1 CPU thread"]


def test_a_self_test_that_fails_is_never_replaced_by_the_whole_gpu(monkeypatch):
    driver = FakeDriver()
    monkeypatch.setitem(BACK_ENDS, "cuda", lambda: Cuda(driver, FakeTorch(driver, stray={2: [9]})))
    open_back_end.__globals__["_opened"].cache_clear()
    with pytest.raises(Unavailable, match="self-test"):
        open_back_end("cuda")
    end, passed_over = open_back_end("auto")
    assert end.name == "host"
    assert "self-test" in passed_over["cuda"]


def test_the_host_back_end_needs_neither_torch_nor_cuda():
    code = (
        "import sys; from morphling.executors.live import Live\n"
        "from morphling.executors.live.host import Host\n"
        "from morphling.executors.live.partition import Product\n"
        "h = Host(); t = h.measure(Product(64, 64, 64), h.partitions()[0]); assert t.seconds > 0\n"
        "print([m for m in ('torch', 'cuda.bindings') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
