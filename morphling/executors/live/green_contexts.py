"""Parts of a GPU by the number of streaming multiprocessors (SM): CUDA green contexts, used through streams only.

The sequence of driver calls works with cuda-bindings 13.0 to 13.5 on driver 12.5 and newer (CUDA Driver API, green
contexts; CUDA Programming Guide 4.6): split the SM resource, make a descriptor, a green context and a non-blocking
stream in it, and read back how many SM it really has, since a split rounds up or down.  A stream is destroyed before
its context: the other way round the driver reports the context destroyed, and leaks.  A green context is never made
current: libraries would then tie their state to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from morphling.errors import RunError
from morphling.executors.live.partition import Unavailable

__all__ = ["LEAST_DRIVER", "SIZES", "GreenContexts", "Part", "call", "placement_fault"]

SIZES: Final = (2, 4, 8, 16, 32, 64)
"""SM of the pool's parts; virtual devices share these, with a dilation each."""
LEAST_DRIVER: Final = 12_050
"""CUDA 12.5 has streams of green contexts."""


@dataclass(eq=False)
class Part:
    """One green context.  ``sms`` : read back;  ``context``, ``stream`` : the driver's handles."""

    asked: int
    sms: int
    context: Any
    stream: Any


def call(driver: Any, result: tuple[Any, ...]) -> Any:
    """What a driver call returned beside its status; ``RunError`` naming the status if it failed."""
    status, *rest = result
    if status != driver.CUresult.CUDA_SUCCESS:
        said = driver.cuGetErrorString(status)[1]
        text = said.decode() if isinstance(said, bytes) else str(said)
        raise RunError(f"CUDA driver: {status.name}: {text}")
    return rest[0] if len(rest) == 1 else tuple(rest) or None


class GreenContexts:
    """A pool of parts, one for each size that the device can give; smallest first.

    driver : `cuda.bindings.driver`, or what behaves like it;  ordinal : which device
    coscheduled : parts whose SM can run big thread-block clusters together (multiples of 8 on H100 and later), which
        some tensor-core kernels need; else any even number of SM
    """

    def __init__(
        self, driver: Any, ordinal: int = 0, sizes: Sequence[int] = SIZES, *, coscheduled: bool = False
    ) -> None:
        self.driver = driver
        self.parts: list[Part] = []
        self.kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        self.device = self._ask(driver.cuDeviceGet(ordinal))
        self.version = int(self._ask(driver.cuDriverGetVersion()))
        if self.version < LEAST_DRIVER:
            raise Unavailable(
                f"the NVIDIA driver is for CUDA {_version(self.version)}; green contexts with streams need "
                f"{_version(LEAST_DRIVER)} or newer"
            )
        self.whole = self._ask(driver.cuDeviceGetDevResource(self.device, self.kind))
        self.sm_count = int(self.whole.sm.smCount)
        self.flags = 0 if coscheduled else _any_sm(driver)
        try:
            for size in sorted(sizes):
                self._add(size)
        except BaseException:
            self.close()
            raise
        if not self.parts:
            raise Unavailable(f"none of {', '.join(map(str, sizes))} SM can be split from the device's {self.sm_count}")

    def close(self) -> None:
        """Destroy streams, then contexts, the newest first; whoever used the streams must be done with them."""
        while self.parts:
            part = self.parts.pop()
            if part.stream is not None:
                self._ask(self.driver.cuStreamDestroy(part.stream))
            self._ask(self.driver.cuGreenCtxDestroy(part.context))

    def _add(self, size: int) -> None:
        if size > self.sm_count:
            return
        d = self.driver
        groups, count, _ = self._ask(d.cuDevSmResourceSplitByCount(1, self.whole, self.flags, size))
        if not count:
            return
        descriptor = self._ask(d.cuDevResourceGenerateDesc(groups[:count], count))  # entries past count are invalid
        flag = int(d.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
        part = Part(size, 0, self._ask(d.cuGreenCtxCreate(descriptor, self.device, flag)), None)
        self.parts.append(part)  # from here on `close` destroys it
        part.sms = int(self._ask(d.cuGreenCtxGetDevResource(part.context, self.kind)).sm.smCount)
        if any(p is not part and p.sms == part.sms for p in self.parts):  # rounded to one that is there
            self.parts.pop()
            self._ask(d.cuGreenCtxDestroy(part.context))
            return
        apart = int(d.CUstream_flags.CU_STREAM_NON_BLOCKING)  # else the default stream waits for it, and it for that
        part.stream = self._ask(d.cuGreenCtxStreamCreate(part.context, apart, 0))

    def _ask(self, result: tuple[Any, ...]) -> Any:
        return call(self.driver, result)


def placement_fault(sms: int, seen: Sequence[int], total: int) -> str | None:
    """What is wrong with a part of ``sms`` SM in which blocks ran on the SM ``seen`` (by %smid); None if nothing."""
    used = set(seen)
    if any(not 0 <= i < total for i in used):
        return f"a part of {sms} SM: some blocks did not run"
    if len(used) != sms:
        return f"a part of {sms} SM: its blocks ran on {len(used)} SM"
    return None


def _any_sm(driver: Any) -> int:
    """The flag that lifts the grain of 8 SM; its type was renamed in 13.1."""
    flags = getattr(driver, "CUdevSmResourceSplitByCount_flags", None) or driver.CUdevSmResourceSplit_flags
    return int(flags.CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING)


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
