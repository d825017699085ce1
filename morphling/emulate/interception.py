"""Every matrix product of a script, seen below autograd and handed to whoever computes it.

One `TorchDispatchMode` around the script sees forward and backward; products go to a `Computer`, all else passes.
"""

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from morphling.emulate.tiles import ProductShape
from morphling.types import DType, Phase

__all__ = [
    "DTYPES",
    "PRODUCT_NAMES",
    "Computer",
    "Coverage",
    "Interception",
    "Product",
    "foreign",
    "operands_of",
    "with_products",
]

DTYPES = {torch.float32: DType.FLOAT32, torch.float16: DType.FLOAT16, torch.bfloat16: DType.BFLOAT16}
"""Number formats that devices have rates for."""

aten = torch.ops.aten


class Product(NamedTuple):
    """One intercepted operation: ``beta bias + alpha A B``; operands have two dimensions, or three with a batch.

    ``func``, ``args`` and ``kwargs`` are the operation as the script wrote it, see `plain`.
    """

    name: str
    shape: ProductShape
    dtype: DType
    phase: Phase
    a: torch.Tensor
    b: torch.Tensor
    bias: torch.Tensor | None
    beta: float
    alpha: float
    func: Any
    args: Any
    kwargs: Any

    def plain(self) -> Any:
        """Executed whole."""
        return self.func(*self.args, **self.kwargs)


class Computer(Protocol):
    """Who computes products."""

    def product(self, product: Product) -> torch.Tensor | None:
        """The result, a new tensor; None: it is the coordinator's, which is told by `central`."""

    def central(self, name: str, flops: float, dtype: DType) -> None:
        """The host has executed an operation with matrix products in it whole: it belongs to the coordinator."""


@dataclass(eq=False)
class Coverage:
    """Which matrix products of a script were computed on the fleet, in FLOPs and calls, by operation.

    ``sharded`` : as tiles;  ``central`` : seen and executed whole on the coordinator (convolutions, fused attention,
    matrix times vector);  ``uncounted`` : seen, but no device has a rate for their number format, so they took no time;
    ``escaped`` : never seen (from a thread of another library, say), found by the watchdog.
    """

    sharded: Counter[str] = field(default_factory=Counter)
    central: Counter[str] = field(default_factory=Counter)
    uncounted: Counter[str] = field(default_factory=Counter)
    escaped: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, name: str, flops: float) -> None:
        """Count one call."""
        getattr(self, kind)[name] += int(flops)
        self.calls[kind] += 1

    def report(self) -> dict[str, Any]:
        """As plain values; ``coverage`` is the share of FLOPs that was sharded, None where there were none."""
        kinds = ("sharded", "central", "uncounted", "escaped")
        sums = {kind: sum(getattr(self, kind).values()) for kind in kinds}
        total = sum(sums.values())
        return {
            "coverage": sums["sharded"] / total if total else None,
            "flops": sums,
            "calls": {kind: self.calls[kind] for kind in kinds},
            "by_operation": {kind: dict(sorted(getattr(self, kind).items())) for kind in kinds if getattr(self, kind)},
        }


class Interception(TorchDispatchMode):
    """The mode: products to ``computer``, one at a time; what it saw is in ``coverage``.

    Active in the thread that enters it and wherever autograd carries it; a forked process passes everything through.
    """

    def __init__(self, computer: Computer, warn: Callable[[str], object] = str) -> None:
        super().__init__()
        self.computer, self.warn = computer, warn
        self.coverage = Coverage()
        self.lock = threading.RLock()
        self.owner = os.getpid()
        self.routes: dict[Any, Callable[..., Any] | None] = dict(_ROUTES)
        self.inside = threading.local()
        self.ended = threading.Event()
        self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and foreign(types):
            return NotImplemented
        try:
            route = self.routes[func]
        except KeyError:
            route = self._learn(func)
        if route is None or self.ended.is_set() or os.getpid() != self.owner:
            return func(*args, **kwargs) if kwargs else func(*args)
        return route(self, func, args, kwargs or {})

    def sibling(self) -> Interception:
        """The same for another thread: what it sees is counted together, and computed one after another."""
        other = Interception(self.computer, self.warn)
        other.coverage, other.lock, other.inside, other.owner = self.coverage, self.lock, self.inside, self.owner
        other.ended = self.ended
        return other

    def _learn(self, func: Any) -> Callable[..., Any] | None:
        """How to treat an operation that is met for the first time."""
        route: Callable[..., Any] | None = None
        if not isinstance(func, torch._ops.OpOverload):  # noqa: SLF001 - higher-order operators are none
            pass
        elif func.overloadpacket in flop_registry or func.overloadpacket in _VECTORS:
            route = _central
        elif func._can_decompose():  # noqa: SLF001 - the only way to ask
            route = _decomposed  # in inference mode linear and matmul come whole
        self.routes[func] = route
        return route

    @property
    def busy(self) -> bool:
        """Whether this thread is computing something that was seen: the watchdog leaves that."""
        return getattr(self.inside, "depth", 0) > 0

    def compute(self, func: Any, args: Any, kwargs: Any, operands: tuple[Any, ...]) -> torch.Tensor | None:
        """The result by the computer; None where the operation is not a product that a device can compute."""
        a, b, bias, beta, alpha = operands
        shape = _shape(a, b, bias)
        name = PRODUCT_NAMES[func]
        if shape is None:
            return None
        dtype = DTYPES.get(a.dtype)
        if dtype is None:
            self._uncounted(name, shape, a.dtype)
            return None
        backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001 - no public name says so
        phase = _phase(a) if backward else Phase.FORWARD
        if bias is not None:  # what beta = 0 leaves out is not read, NaN or not
            bias = bias.expand((*a.shape[:-1], b.shape[-1])) if beta != 0 else None
        self.products += 1
        product = Product(name, shape, dtype, phase, a, b, bias, beta, alpha, func, args, kwargs)
        inside, kind = self.inside, "sharded"
        with self.lock:
            inside.depth = getattr(inside, "depth", 0) + 1
            try:
                out = self.computer.product(product)
                if out is None:
                    out, kind = product.plain(), "central"
                    self.computer.central(name, float(shape.flops), dtype)
            finally:
                inside.depth -= 1
            coverage = self.coverage
            counts = coverage.sharded if kind == "sharded" else coverage.central
            counts[name] += 2 * shape[0] * shape[1] * shape[2] * shape[3]
            coverage.calls[kind] += 1
        return out

    def seen(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call something whose products have been seen."""
        inside = self.inside
        inside.depth = getattr(inside, "depth", 0) + 1
        try:
            return call(*args, **kwargs)
        finally:
            inside.depth -= 1

    def special(self, name: str, a: torch.Tensor, b: torch.Tensor) -> None:
        """Operands that are no ordinary matrices (sparse, of a class of their own), unless there is nothing in them."""
        if _shape(a, b, None) is not None or not (a.numel() and b.numel()):
            return
        with self.lock:
            self.warn(f"{name} of other than ordinary dense matrices runs whole and takes no time")
            self.coverage.add("uncounted", name, 2 * a.numel() * b.shape[-1])

    def _uncounted(self, name: str, shape: ProductShape, dtype: torch.dtype) -> None:
        word = str(dtype).removeprefix("torch.")
        with self.lock:
            if not self.coverage.uncounted:
                known = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
                self.warn(f"{name} of {word}: devices have rates for {known}; such products run whole and take no time")
            self.coverage.add("uncounted", name, shape.flops)


def _shape(a: Any, b: Any, bias: Any) -> ProductShape | None:
    """Of ordinary dense operands that fit, with something to multiply; torch itself says what is wrong with others."""
    if type(a) not in _PLAIN or type(b) not in _PLAIN or a.dtype != b.dtype or a.device != b.device:
        return None
    if a.layout != torch.strided or b.layout != torch.strided:
        return None
    left, right = a.shape, b.shape
    if len(left) == 2 == len(right):
        (m, k), (inner, n), count = left, right, 1
    elif len(left) == 3 == len(right) and left[0] == right[0]:
        (count, m, k), (_, inner, n) = left, right
    else:
        return None
    if inner != k or not (count and m and n and k):
        return None
    if bias is not None and not _fits(a, bias, (*left[:-1], n)):
        return None
    return ProductShape(count, m, n, k)


def _phase(a: torch.Tensor) -> Phase:
    """Of a product of a backward pass: weight gradients are made of the transposed gradient of the output."""
    turned = a.shape[-1] > 1 and a.stride(-1) != 1 and a.stride(-2) == 1
    return Phase.BACKWARD_WEIGHT if turned else Phase.BACKWARD_INPUT


def _fits(a: Any, bias: Any, shape: tuple[int, ...]) -> bool:
    """Whether the bias can be expanded to ``shape``."""
    if bias.dtype != a.dtype or bias.device != a.device or bias.layout != torch.strided or bias.dim() > len(shape):
        return False
    return all(have in {1, want} for have, want in zip(reversed(bias.shape), reversed(shape), strict=False))


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def foreign(types: Any) -> bool:
    """Whether a tensor has a dispatch of its own: a mode that declines sees what the tensor consists of."""
    return not _PLAIN.issuperset(types)


def _biased(args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Operands of addmm and baddbmm; a bias that beta = 0 leaves out is not read."""
    bias, a, b = args[:3]
    beta = kwargs.get("beta", args[3] if len(args) > 3 else 1)
    alpha = kwargs.get("alpha", args[4] if len(args) > 4 else 1)
    return a, b, bias, beta, alpha


def _new(mode: Interception, func: Any, args: Any, kwargs: Any) -> Any:
    """An operation that returns a new tensor."""
    out = mode.compute(func, args, kwargs, (*args, None, 1, 1))
    return _whole(mode, func, args, kwargs) if out is None else out


def _new_biased(mode: Interception, func: Any, args: Any, kwargs: Any) -> Any:
    """The same with a bias."""
    out = mode.compute(func, args, kwargs, _biased(args, kwargs))
    return _whole(mode, func, args, kwargs) if out is None else out


def _into(mode: Interception, func: Any, args: Any, kwargs: Any) -> Any:
    """An ``.out`` variant: operands may lie in the target, so it is written at the end."""
    target = kwargs["out"]
    a = args[1] if func.overloadpacket in _BIASED else args[0]
    if not isinstance(a, torch.Tensor) or target.dtype != a.dtype:
        return _whole(mode, func, args, kwargs)
    operands = _biased(args, kwargs) if func.overloadpacket in _BIASED else (*args, None, 1, 1)
    out = mode.compute(func, args, kwargs, operands)
    if out is None:
        return _whole(mode, func, args, kwargs)
    if target.shape != out.shape:
        target.resize_(out.shape)
    return target.copy_(out)


def _onto(mode: Interception, func: Any, args: Any, kwargs: Any) -> Any:
    """``addmm_`` and ``baddbmm_``: the bias is the target."""
    target, a, b = args[:3]
    fits = target.shape == (*a.shape[:-1], b.shape[-1])
    out = mode.compute(func, args, kwargs, _biased(args, kwargs)) if fits else None
    return _whole(mode, func, args, kwargs) if out is None else target.copy_(out)


def _activated(mode: Interception, func: Any, args: Any, kwargs: Any) -> Any:
    """An addmm with an activation function behind it (the fused form that some linears take on CUDA)."""
    gelu = kwargs.get("use_gelu", False)
    rest = {name: value for name, value in kwargs.items() if name != "use_gelu"}
    out = mode.compute(aten.addmm.default, args, rest, _biased(args, rest))
    if out is None:
        return _whole(mode, func, args, kwargs)
    return torch.nn.functional.gelu(out, approximate="tanh") if gelu else torch.relu_(out)


def _whole(mode: Interception, func: Any, args: Any, kwargs: Any) -> Any:
    out = mode.seen(func, *args, **kwargs)
    if func in PRODUCT_NAMES:  # once it has worked: wrong operands are the script's own error
        mode.special(PRODUCT_NAMES[func], *operands_of(func, args))
    return out


def _central(mode: Interception, func: Any, args: Any, kwargs: Any) -> Any:
    """Matrix products inside an operation of another kind: the coordinator's."""
    out = _whole(mode, func, args, kwargs)
    packet = func.overloadpacket
    name = packet.__name__
    flops = _VECTORS[packet](args) if packet in _VECTORS else flop_registry[packet](*args, **kwargs, out_val=out)
    dtype = next((DTYPES.get(x.dtype) for x in args if isinstance(x, torch.Tensor)), None)
    with mode.lock:
        if dtype is None:
            mode.coverage.add("uncounted", name, flops)
            return out
        if not mode.coverage.central[name]:
            mode.warn(f"{name} is no plain matrix product: it runs whole, on the coordinator")
        mode.coverage.add("central", name, flops)
        mode.computer.central(name, float(flops), dtype)
    return out


def _decomposed(mode: Interception, func: Any, args: Any, kwargs: Any) -> Any:
    """An operation made of others, which are seen one by one."""
    with mode:
        return func.decompose(*args, **kwargs)


def _trilinear_flops(args: Any) -> int:
    """A multiply-add for each element of the three factors' common shape, which the inserted dimensions give."""
    shapes = []
    for factor, inserted in zip(args[:3], args[3:6], strict=True):
        shape = list(factor.shape)
        for place in sorted(inserted):
            shape.insert(place, 1)
        shapes.append(shape)
    multiplied: int = math.prod(map(max, *shapes))
    return 2 * multiplied


_VECTORS: dict[Any, Callable[[Any], int]] = {
    aten._trilinear: _trilinear_flops,  # noqa: SLF001 - its name; torch.nn.Bilinear
    aten.mv: lambda args: 2 * args[0].numel(),
    aten.addmv: lambda args: 2 * args[1].numel(),
    aten.dot: lambda args: 2 * args[0].numel(),
    aten.addbmm: lambda args: 2 * args[1].numel() * args[2].shape[-1],
    aten._int_mm: lambda args: 2 * args[0].numel() * args[1].shape[-1],  # noqa: SLF001 - its name
}
"""FLOPs of operations that torch's own registry leaves out."""

_BIASED = {aten.addmm, aten.baddbmm, aten.addmm_, aten.baddbmm_, aten._addmm_activation}  # noqa: SLF001 - its name
_ROUTES: dict[Any, Callable[..., Any] | None] = {
    aten.mm.default: _new,
    aten.addmm.default: _new_biased,
    aten.bmm.default: _new,
    aten.baddbmm.default: _new_biased,
    aten.mm.out: _into,
    aten.addmm.out: _into,
    aten.bmm.out: _into,
    aten.baddbmm.out: _into,
    aten.addmm_.default: _onto,
    aten.baddbmm_.default: _onto,
    aten._addmm_activation.default: _activated,  # noqa: SLF001 - its name
}
PRODUCT_NAMES = {func: func.overloadpacket.__name__ for func in _ROUTES}
"""Operations that are plain matrix products, and what to call them."""


def with_products(func: Any) -> bool:
    """Whether an operation has matrix products in it that are none of `PRODUCT_NAMES`."""
    packet = getattr(func, "overloadpacket", func)  # higher-order operators have none
    inside = packet in flop_registry or packet in _VECTORS or packet.__name__ in _FUSED
    return func not in PRODUCT_NAMES and inside


_FUSED = {
    "_cudnn_rnn",
    "_cudnn_rnn_backward",
    "_grouped_mm",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "mkldnn_rnn_layer",
    "mkldnn_rnn_layer_backward",
}
"""Operations with products inside that torch's own registry leaves out, by name, since not every torch has all."""


def operands_of(func: Any, args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B of one of `PRODUCT_NAMES`."""
    return (args[1], args[2]) if func.overloadpacket in _BIASED else (args[0], args[1])
