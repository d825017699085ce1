"""Back ends whose times are a formula, and a CUDA driver and torch that keep to the rules of the real ones."""

# ruff: noqa: N802 - the driver's names

from __future__ import annotations

import enum
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

from morphling.executors.live.partition import BackEnd, Partition, Product, Timing
from morphling.types import DType


class Formula(BackEnd):
    """Partitions of given rates (FLOP/s), all of one memory bandwidth; ``t = max(flops / rate, bytes / bandwidth)``.

    ``factor`` : by shape (m, n, k), times longer than that;  ``speed`` : of the host, may be changed between runs
    """

    name = "formula"
    clock = "a formula"
    stale_faster, stale_slower, disturbed = 0.1, 0.5, 0.05
    paces = True

    def __init__(self, rates=(1e11,), bandwidth=1e10, factor=None, dtypes=(DType.FLOAT32, DType.FLOAT16)):
        self.rates, self.bandwidth, self.factor, self.formats = rates, bandwidth, factor or {}, dtypes
        self.reference = Product(512, 512, 512)
        self.reference_set = (Product(1024, 1024, 1024), self.reference, Product(2048, 512, 512))
        self.streaming = Product(1, 4096, 4096)
        self.speed = 1.0
        self.asked, self.paced_at = [], []

    def partitions(self):
        return tuple(Partition(i + 1, f"part {i + 1}") for i in range(len(self.rates)))

    def dtypes(self):
        return self.formats

    def seconds(self, product, partition):
        roof = max(product.flops / self.rates[partition.size - 1], product.operand_bytes / self.bandwidth)
        return roof * self.factor.get((product.m, product.n, product.k), 1.0) / self.speed

    def measure(self, product, partition):
        self.asked.append((product, partition))
        return Timing(self.seconds(product, partition), 3, 0.0)

    def paced(self, product, partition, flops_per_s):
        self.paced_at.append(flops_per_s)
        return Timing(product.flops / flops_per_s, 1, 0.0)

    def multiply(self, a, b, dtype, partition):
        return a @ b

    def fingerprint(self):
        return {"back_end": self.name, "rates": str(self.rates)}


# ------------------------------------------------------------------------------------------------------------ a driver


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION = 914


def resource(sms, kind="sm"):
    return SimpleNamespace(kind=kind, sm=SimpleNamespace(smCount=sms, minSmPartitionSize=8, smCoscheduledAlignment=8))


class FakeDriver:
    """A 132-SM device of compute capability 9.0 under driver 13.0, by the documented rules.

    Without a flag parts are multiples of 8 SM, and at most 15 of 8 fit (12 are left over); with
    IGNORE_SM_COSCHEDULING, of 2.  Streams must be destroyed before their context.  Split results are read-only views:
    entries past the actual count are invalid.
    """

    CUresult = CUresult
    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM="sm")
    CUdevSmResourceSplit_flags = SimpleNamespace(CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_DEFAULT=0, CU_STREAM_NON_BLOCKING=1)

    def __init__(self, sms=132, version=13_000, lost_sms=0):
        self.sms, self.version, self.lost_sms = sms, version, lost_sms
        self.log, self.contexts, self.streams = [], {}, {}
        self.next = 100

    def ok(self, *values):
        return (CUresult.CUDA_SUCCESS, *values)

    def cuInit(self, flags):
        return self.ok()

    def cuDeviceGetCount(self):
        return self.ok(1)

    def cuDeviceGet(self, ordinal):
        return self.ok(ordinal)

    def cuDriverGetVersion(self):
        return self.ok(self.version)

    def cuGetErrorString(self, status):
        return self.ok(status.name.encode())

    def cuDeviceGetDevResource(self, device, kind):
        return self.ok(resource(self.sms))

    def cuDevSmResourceSplitByCount(self, wanted, whole, flags, least):
        grain = 2 if flags & 1 else 8
        size = max(grain, -(-least // grain) * grain)
        usable = whole.sm.smCount if flags & 1 else whole.sm.smCount - 12  # GPCs whose SM are no multiple of 8
        count = min(wanted, usable // size)
        if not count:
            return self.ok([], 0, whole)
        groups = [resource(size if i < count else 0, "sm" if i < count else "invalid") for i in range(wanted)]
        return self.ok(groups, count, resource(whole.sm.smCount - count * size))

    def cuDevResourceGenerateDesc(self, groups, count):
        if len(groups) != count or any(g.kind == "invalid" for g in groups):
            return (CUresult.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, None)
        return self.ok(sum(g.sm.smCount for g in groups))

    def cuGreenCtxCreate(self, descriptor, device, flags):
        if flags != 1:  # required by CUDA 13.0
            return (CUresult.CUDA_ERROR_INVALID_VALUE, None)
        self.next += 1
        self.contexts[self.next] = descriptor - self.lost_sms
        self.log.append(("context", self.next))
        return self.ok(self.next)

    def cuGreenCtxGetDevResource(self, context, kind):
        return self.ok(resource(self.contexts[context]))

    def cuGreenCtxStreamCreate(self, context, flags, priority):
        if flags != 1:  # must not wait for the default stream
            return (CUresult.CUDA_ERROR_INVALID_VALUE, None)
        self.next += 1
        self.streams[self.next] = context
        self.log.append(("stream", self.next))
        return self.ok(self.next)

    def cuStreamDestroy(self, stream):
        if self.streams[stream] not in self.contexts:
            return (CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED,)
        del self.streams[stream]
        self.log.append(("no stream", stream))
        return self.ok()

    def cuGreenCtxDestroy(self, context):
        if context in self.streams.values():
            self.log.append(("leak", context))
        del self.contexts[context]
        self.log.append(("no context", context))
        return self.ok()


# ------------------------------------------------------------------------------------------------------------- a torch


class FakeTensor:
    """As much of a tensor as the back end touches; numbers are numpy's."""

    def __init__(self, torch, values):
        self.torch, self.values = torch, values

    shape = property(lambda self: self.values.shape)

    def uniform_(self, low, high):
        self.values[...] = np.random.default_rng(0).uniform(low, high, self.values.shape)
        return self

    def to(self, kind):
        return self if kind == "cuda" else FakeTensor(self.torch, self.values.astype(self.torch.numpy_of[kind]))

    def t(self):
        return FakeTensor(self.torch, self.values.T)

    def float(self):
        return FakeTensor(self.torch, self.values.astype(np.float32))

    def cpu(self):
        return self

    def numpy(self):
        return self.values

    def tolist(self):
        return self.values.tolist()

    def __getitem__(self, key):
        return FakeTensor(self.torch, self.values[key])


class FakeTorch:
    """torch with a CUDA device whose streams take time by their SM; it logs what runs on which stream.

    ``stray`` : SM beside its own on which a stream's blocks run, by its number of SM
    """

    __version__ = "2.13.0"
    float32, float16, bfloat16, int32 = "float32", "float16", "bfloat16", "int32"
    numpy_of = {"float32": np.float32, "float16": np.float16, "bfloat16": np.float32, "int32": np.int32}

    def __init__(self, driver, rate_per_sm=5e11, stray=None):
        self.driver, self.rate, self.stray = driver, rate_per_sm, stray or {}
        self.ran, self.current, self.tf32 = [], "default", []
        self.clocks = {}
        self.cleared = 0
        owner = self
        matmul = SimpleNamespace(
            allow_tf32=True,
            allow_fp16_reduced_precision_reduction=True,
            allow_bf16_reduced_precision_reduction=True,
        )
        self.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=matmul), cudnn=SimpleNamespace(allow_tf32=True))
        self.version = SimpleNamespace(cuda="13.0")

        class ExternalStream:
            def __init__(self, handle, device):
                self.handle = handle
                self.sms = driver.contexts[driver.streams[handle]]

            def wait_stream(self, other):
                owner.ran.append(("wait", self.sms))

            def synchronize(self):
                owner.ran.append(("sync", self.sms))

        class Event:
            def __init__(self, enable_timing):
                self.at = None

            def record(self, stream):
                self.at = owner.clocks.get(stream.sms, 0.0)

            def synchronize(self):
                pass

            def elapsed_time(self, later):
                return (later.at - self.at) * 1e3

        @contextmanager
        def stream(which):
            before, owner.current = owner.current, which.sms
            yield
            owner.current = before

        def kernel(*, grid, block, args, stream):
            used = [*range(stream.sms), *owner.stray.get(stream.sms, [])]
            args[0].values[...] = np.resize(used, args[0].values.shape)

        self.cuda = SimpleNamespace(
            init=lambda: None, synchronize=lambda: None, is_available=lambda: True, stream=stream, Event=Event,
            ExternalStream=ExternalStream, default_stream=lambda: "default", get_device_name=lambda i: "Fake H100",
            _compile_kernel=lambda source, name: kernel,
        )  # fmt: skip
        self._C = SimpleNamespace(_cuda_clearCublasWorkspaces=self.clear)

    def clear(self):
        self.cleared += 1
        self.driver.log.append(("workspaces", 0))

    def zeros(self, *shape, device, dtype="float32"):
        return FakeTensor(self, np.zeros(shape, self.numpy_of[dtype]))

    def empty(self, *shape, device, dtype="float32"):
        return self.zeros(*shape, device=device, dtype=dtype)

    def full(self, shape, value, dtype, device):
        return FakeTensor(self, np.full(shape, value, self.numpy_of[dtype]))

    def from_numpy(self, values):
        return FakeTensor(self, values)

    def mm(self, a, b, out):
        self.ran.append(("mm", self.current))
        self.tf32.append(self.backends.cuda.matmul.allow_tf32)
        (m, k), n = a.shape, b.shape[1]
        if self.current != "default":
            took = 2.0 * m * n * k / (self.rate * self.current) + 1e-6
            self.clocks[self.current] = self.clocks.get(self.current, 0.0) + took
        if m * n * k < 1e6:
            out.values[...] = a.values @ b.values
        return out
