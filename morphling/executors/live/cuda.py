"""The cuda back end: products in parts of a GPU, timed by events on the part's own stream.

All CUDA work is done by one dispatching thread: a cuBLAS handle belongs to a thread, and two products at once would
share caches and memory.  Nothing is put on the default stream while a product is timed, since its blocks may run on
any SM.  Parts share the GPU's memory bandwidth and second-level cache; only SM are set apart.
"""

from __future__ import annotations

import atexit
import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, ClassVar, Final, TypeVar

import numpy as np

from morphling.errors import RunError
from morphling.executors.live.green_contexts import GreenContexts, call, placement_fault
from morphling.executors.live.partition import BackEnd, Partition, Product, Timing, Unavailable
from morphling.types import AnyArray, DType

__all__ = ["Cuda", "driver_fault"]

WARM_CALLS: Final = 3
"""First calls of a shape load kernels and make workspaces."""
TIMED_CALLS: Final = 15
BATCH_S: Final = 3e-4
"""Events resolve about half a microsecond: shorter calls are timed several at once."""
MOST_BATCH: Final = 200
WARM_UP_S: Final = 1.0
"""Of load before the first measurement: clocks rise and settle."""
SMID_BLOCKS: Final = 4096
SMID_KERNEL: Final = r"""
extern "C" __global__ void smid(int* out) {
    unsigned id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    long long start = clock64();
    while (clock64() - start < 100000) {}
    if (threadIdx.x == 0) out[blockIdx.x] = (int)id;
}
"""
_NAMES: Final = {
    DType.FLOAT32: "float32",
    DType.FLOAT16: "float16",
    DType.BFLOAT16: "bfloat16",
    DType.TFLOAT32: "float32",
}

T = TypeVar("T")


def driver_fault() -> tuple[Any, str | None]:
    """The driver's bindings with a device behind them; or why there is none.  Needs no torch, and costs little."""
    try:
        driver: Any = importlib.import_module("cuda.bindings.driver")
    except ImportError:
        return None, "cuda-bindings is not installed (a CUDA build of torch brings it: pip install 'morphling[live]')"
    try:
        call(driver, driver.cuInit(0))
        if not call(driver, driver.cuDeviceGetCount()):
            return None, "the NVIDIA driver finds no device"
    except RuntimeError as error:  # a driver library that is not there is one, too
        return None, f"no NVIDIA driver with a device: {str(error).splitlines()[0]}"
    except RunError as error:
        return None, str(error)
    return driver, None


class Cuda(BackEnd):
    """Parts of the first GPU.  Opening it proves by %smid that blocks of a part run on its SM and no others."""

    name: ClassVar[str] = "cuda"
    clock: ClassVar[str] = "CUDA events on the part's stream"
    stale_faster: ClassVar[float] = 0.02
    stale_slower: ClassVar[float] = 0.02
    disturbed: ClassVar[float] = 0.02

    def __init__(self, driver: Any = None, torch: Any = None) -> None:
        self.reference = Product(1024, 1024, 1024)
        self.reference_set = (
            Product(512, 512, 512), self.reference, Product(2048, 2048, 2048), Product(4096, 256, 256),
        )  # fmt: skip
        self.streaming = Product(1, 8192, 8192)
        if driver is None:
            driver, why = driver_fault()
            if why is not None:
                raise Unavailable(why)
        self.driver = driver
        self.torch = _torch() if torch is None else torch
        self.thread = ThreadPoolExecutor(1, "morphling-cuda")
        self.contexts: GreenContexts | None = None
        self.streams: dict[int, Any] = {}
        self.operands: tuple[Product, tuple[Any, Any, Any]] | None = None
        self.warm = False
        try:
            self._do(self._open)
        except BaseException as error:
            self.close()
            if isinstance(error, RuntimeError | RunError):  # torch's and the driver's
                raise Unavailable(f"opening the GPU's parts failed: {str(error).splitlines()[0]}") from error
            raise
        atexit.register(self.close)

    # ---------------------------------------------------------------------------------------------------- the promises

    def partitions(self) -> tuple[Partition, ...]:
        """By SM, as read back."""
        assert self.contexts is not None  # noqa: S101 - open
        return tuple(Partition(p.sms, f"{p.sms} SM") for p in self.contexts.parts)

    def dtypes(self) -> tuple[DType, ...]:
        """What cuBLAS has fast kernels for."""
        return tuple(_NAMES)

    def measure(self, product: Product, partition: Partition) -> Timing:
        """Median of calls (or batches of them) between events."""
        return self._do(lambda: self._measure(product, partition))

    def multiply(self, a: AnyArray, b: AnyArray, dtype: DType, partition: Partition) -> AnyArray:
        """On the part's stream."""
        return self._do(lambda: self._multiply(a, b, dtype, partition))

    def fingerprint(self) -> dict[str, str]:
        """Device, SM, driver, torch and its CUDA."""
        torch, contexts = self.torch, self.contexts
        assert contexts is not None  # noqa: S101 - open
        return {
            "back_end": self.name,
            "device": str(torch.cuda.get_device_name(0)),
            "sm": str(contexts.sm_count),
            "driver": str(contexts.version),
            "torch": str(torch.__version__),
            "cuda": str(torch.version.cuda),
            "split_flags": str(contexts.flags),
        }

    def facts(self) -> dict[str, Any]:
        """What the device says of its parts."""
        assert self.contexts is not None  # noqa: S101 - open
        sm = self.contexts.whole.sm
        return {
            "self_test": "passed",
            "sm_count": int(sm.smCount),
            "least_part": getattr(sm, "minSmPartitionSize", None),
            "grain": getattr(sm, "smCoscheduledAlignment", None),
        }

    def close(self) -> None:
        """Streams idle, torch's hold on them dropped, workspaces freed, then streams and contexts destroyed."""
        if self.contexts is not None:
            self._do(self._close)
        self.thread.shutdown()
        atexit.unregister(self.close)

    # ------------------------------------------------------------------------------------- in the dispatching thread

    def _do(self, what: Callable[[], T]) -> T:
        return self.thread.submit(what).result()

    def _open(self) -> None:
        torch = self.torch
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()  # the primary context lives, and is current, before any green one
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        self.contexts = GreenContexts(self.driver)
        self.streams = {p.sms: torch.cuda.ExternalStream(int(p.stream), device=0) for p in self.contexts.parts}
        self._prove_placement()

    def _close(self) -> None:
        contexts, torch = self.contexts, self.torch
        assert contexts is not None  # noqa: S101 - asked before
        for stream in self.streams.values():
            stream.synchronize()
        self.streams, self.operands = {}, None
        torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - no public name; they belong to the streams
        contexts.close()
        self.contexts = None

    def _prove_placement(self) -> None:
        """`Unavailable` unless blocks on each part's stream run on exactly as many SM as it has."""
        torch, contexts = self.torch, self.contexts
        assert contexts is not None  # noqa: S101 - open
        compiled = getattr(torch.cuda, "_compile_kernel", None)  # no public name
        if compiled is None:
            raise Unavailable(f"the self-test needs torch 2.9 or newer, and torch {torch.__version__} is here")
        kernel = compiled(SMID_KERNEL, "smid")
        for part in contexts.parts:
            out = torch.full((SMID_BLOCKS,), -1, dtype=torch.int32, device="cuda")
            torch.cuda.synchronize()
            kernel(grid=(SMID_BLOCKS, 1, 1), block=(256, 1, 1), args=[out], stream=self.streams[part.sms])
            torch.cuda.synchronize()
            fault = placement_fault(part.sms, out.tolist(), contexts.sm_count)
            if fault is not None:
                raise Unavailable(
                    f"self-test: {fault}. Parts of this GPU cannot be trusted (MPS with a thread percentage, or a "
                    "module with dynamic parallelism, does this); nothing is measured on the whole GPU in their place"
                )

    def _measure(self, product: Product, partition: Partition) -> Timing:
        torch, stream = self.torch, self.streams[partition.size]
        a, b, c = self._operands(product)
        torch.backends.cuda.matmul.allow_tf32 = product.dtype == DType.TFLOAT32
        stream.wait_stream(torch.cuda.default_stream())
        try:
            if not self.warm:
                self._warm_up(stream, lambda: torch.mm(a, b, out=c))
            with torch.cuda.stream(stream):
                for _ in range(WARM_CALLS):
                    torch.mm(a, b, out=c)
                once = max(1e-7, self._between(stream, lambda: torch.mm(a, b, out=c), 1, 1)[0])
                batch = min(MOST_BATCH, max(1, round(BATCH_S / once)))
                calls = TIMED_CALLS if once < 0.1 else 3
                times = sorted(self._between(stream, lambda: torch.mm(a, b, out=c), calls, batch))
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
        return Timing(times[len(times) // 2], calls * batch, times[-1] / max(times[0], 1e-12) - 1)

    def _between(self, stream: Any, call_once: Callable[[], object], count: int, batch: int) -> list[float]:
        """Seconds a call, of ``count`` batches between ``count + 1`` events on the current stream."""
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record(stream)
        for event in events[1:]:
            for _ in range(batch):
                call_once()
            event.record(stream)
        events[-1].synchronize()
        return [x.elapsed_time(y) * 1e-3 / batch for x, y in pairwise(events)]

    def _warm_up(self, stream: Any, call_once: Callable[[], object]) -> None:
        spent = 0.0
        with self.torch.cuda.stream(stream):
            call_once()
            while spent < WARM_UP_S:
                spent += max(1e-3, self._between(stream, call_once, 1, 10)[0] * 10)
        self.warm = True

    def _operands(self, product: Product) -> tuple[Any, Any, Any]:
        """Made on the default stream, and waited for; those of the last product are kept for its other parts."""
        if self.operands is not None and self.operands[0] == product:
            return self.operands[1]
        torch = self.torch
        self.operands = None
        dtype = getattr(torch, _NAMES[product.dtype])
        try:
            a = torch.empty(product.stored_a[0], product.row_a, device="cuda").uniform_(-1, 1).to(dtype)
            b = torch.empty(product.stored_b[0], product.row_b, device="cuda").uniform_(-1, 1).to(dtype)
            c = torch.zeros(product.m, product.n, device="cuda", dtype=dtype)
        except RuntimeError as error:
            if "memory" not in str(error):
                raise
            raise RunError(
                f"the GPU has no memory for the sub-task {product.m} x {product.k} x {product.n} "
                f"({product.stored_bytes:,} bytes with its operands): take a smaller batch or model, or more devices"
            ) from None
        torch.cuda.synchronize()
        a, b = a[:, : product.stored_a[1]], b[:, : product.stored_b[1]]
        found = (a.t() if product.layout[0] == "t" else a), (b.t() if product.layout[1] == "t" else b), c
        self.operands = product, found
        return found

    def _multiply(self, a: AnyArray, b: AnyArray, dtype: DType, partition: Partition) -> AnyArray:
        torch, stream = self.torch, self.streams[partition.size]
        kind = getattr(torch, _NAMES[dtype])
        left, right = (torch.from_numpy(np.ascontiguousarray(x)).to("cuda").to(kind) for x in (a, b))
        out = torch.empty(a.shape[0], b.shape[1], device="cuda", dtype=kind)
        torch.cuda.synchronize()
        torch.backends.cuda.matmul.allow_tf32 = dtype == DType.TFLOAT32
        try:
            with torch.cuda.stream(stream):
                torch.mm(left, right, out=out)
            stream.synchronize()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
        found: AnyArray = out.float().cpu().numpy()
        return found


def _torch() -> Any:
    try:
        torch: Any = importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise Unavailable(f"torch cannot be imported ({error}): pip install 'morphling[live]'") from None
    if not torch.cuda.is_available():
        built = torch.version.cuda
        raise Unavailable(
            f"torch {torch.__version__} finds no CUDA device"
            + ("" if built else ": it is a build without CUDA; install one with it")
        )
    return torch
