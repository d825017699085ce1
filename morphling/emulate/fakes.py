"""Operations of a script without their arithmetic: tensors have shapes, strides and types, and mostly no numbers.

Shapes come from torch's fake tensors.  What a script decides by (token numbers, indices, masks, small tables) is small
and comes from no matrix product, so it is computed as well and kept beside the fake tensor.  A number that is not there
is never made up: reading it ends the trace, but for a loss that is only printed or summed, which is nan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_leaves, tree_map

from morphling.emulate.interception import PRODUCT_NAMES, operands_of, with_products

__all__ = ["FakeTensor", "Fakes", "Unreadable", "leaves", "storage_of", "written"]

FLOATS_KEPT = 1 << 22
"""Elements of a new floating-point tensor up to which it is computed: masks, tables, schedules; no activations."""
RANDOM_KEPT = 1 << 17
"""The same of random ones."""
UNSET_KEPT = 1 << 12
"""The same of ones that begin unset, as most weights do."""
OTHERS_KEPT = 1 << 24
"""The same of integers and Booleans: token numbers, indices, masks."""

aten = torch.ops.aten
LIFTED = {aten.lift_fresh.default, aten.lift_fresh_copy.default}
"""How tensors made of Python or numpy values come in."""
UNSET = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
READ = {aten.item.default, aten._local_scalar_dense.default, aten.is_nonzero.default}  # noqa: SLF001 - its name


_NO_SHAPE: dict[type[Exception], str] = {
    DataDependentOutputException: "{}",
    DynamicOutputShapeException: "the shape of {}",
    UnsupportedOperatorException: "{}, for which PyTorch has no shapes,",
}
"""How an operation is called where shapes are not enough."""


class Unreadable(BaseException):
    """A script reads numbers that do not exist.  No script catches it by accident."""


class Fakes:
    """Executes operations on fake tensors, and really where all their numbers are known and few.

    unreadable : makes the error for an operation that needs numbers which do not exist

    Attributes
    ----------
    shared : memory that something else than fake tensors reads too (numpy arrays, say)
    """

    def __init__(self, unreadable: Callable[[str], BaseException]) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
        self.unreadable = unreadable
        self._lost: set[int] = set()
        self.shared: set[int] = set()

    def images(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Arguments without ordinary tensors."""
        if all(isinstance(x, FakeTensor) or not isinstance(x, torch.Tensor) for x in leaves(args, kwargs)):
            return args, kwargs
        given: tuple[Any, Any] = tree_map(self.image, (args, kwargs))
        return given

    def image(self, value: Any) -> Any:
        """The fake tensor of an ordinary tensor, whose numbers are known; all else as it is."""
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            return value
        if type(value) not in {torch.Tensor, torch.nn.Parameter}:
            return value
        fake = self.mode.from_tensor(value)
        self.shared.add(storage_of(fake))
        if value.device.type != "meta" and not _has_nan(value):
            _keep(fake, value)
        return fake

    def known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The numbers of a tensor, as an ordinary one; None where they do not exist."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        real, place = tensor.__dict__.get("_known", (None, None))
        if real is None or place != _place(tensor) or place[0] in self._lost:
            return None
        found: torch.Tensor = real
        return found

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What ``func`` returns, as fake tensors; ``args`` and ``kwargs`` hold no ordinary ones."""
        if func in LIFTED:
            return args[0]
        real = self._really(args, kwargs)
        if func in READ:
            if real is None:
                raise self.unreadable(_name(func))
            return func(*real[0], **real[1])
        failed: Exception | None = None
        try:
            out = self._shapes(func, args, kwargs)
        except Exception as error:  # noqa: BLE001 - which of them is told below, not as one that this one led to
            failed = error
        if failed is not None:
            return self._otherwise(func, args, kwargs, real, failed)
        multiplies = func in PRODUCT_NAMES or with_products(func)
        self._remember(func, args, kwargs, out, None if multiplies else real)
        return out

    def _otherwise(self, func: Any, args: Any, kwargs: Any, real: tuple[Any, Any] | None, failed: Exception) -> Any:
        """What ``func`` returns, or raises, where shapes alone do not say it."""
        if real is None and func is aten.index.Tensor and (places := self._places_of(args[1])) is not None:
            return self._shapes(func, (args[0], places), kwargs)
        if real is None and isinstance(failed, tuple(_NO_SHAPE)):
            raise self.unreadable(_NO_SHAPE[type(failed)].format(_name(func))) from failed
        if real is None and not (func in PRODUCT_NAMES and _misfit(*operands_of(func, args))):
            raise failed
        given = (args, kwargs) if real is None else real
        out = func(*tree_map(_empty, given[0]), **given[1])  # raises what the script would see
        if written(func, args, kwargs):
            raise self.unreadable(_name(func)) from failed
        return self.made(out)

    def _places_of(self, indices: Any) -> list[Any] | None:
        """Indices with masks as the places where they are true; None if some are not known."""
        out: list[Any] = []
        for index in indices:
            if index is None or index.dtype not in {torch.bool, torch.uint8}:
                out.append(index)
            elif (mask := self.known(index)) is None:
                return None
            else:
                out += self.made(mask.nonzero().unbind(1))
        return out

    def _shapes(self, func: Any, args: Any, kwargs: Any) -> Any:
        if "generator" in kwargs:  # nothing is drawn
            kwargs = {**kwargs, "generator": None}
        args = tuple(None if isinstance(x, torch.Generator) else x for x in args)
        with self.mode:
            return func(*args, **kwargs)

    def _really(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """The arguments with their numbers; None unless all are known (a nan is what was not)."""
        for leaf in leaves(args, kwargs):
            if isinstance(leaf, FakeTensor) and self.known(leaf) is None:
                return None
            if isinstance(leaf, float) and math.isnan(leaf):
                return None
            if isinstance(leaf, torch.device) and leaf.type == "meta":
                return None
        given: tuple[Any, Any] = tree_map(lambda x: self.known(x) if isinstance(x, FakeTensor) else x, (args, kwargs))
        return given

    def _remember(self, func: Any, args: Any, kwargs: Any, out: Any, real: tuple[Any, Any] | None) -> None:
        """Compute the numbers of ``out`` where that is worth while; else what was written to has none any more."""
        outs = [out] if isinstance(out, torch.Tensor) else [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        if real is not None and self._few(func, args, kwargs, outs):
            numbers = [x for x in tree_leaves(func(*real[0], **real[1])) if isinstance(x, torch.Tensor)]
            for fake, number in zip(outs, numbers, strict=True):
                if isinstance(fake, FakeTensor) and fake.shape == number.shape:
                    _keep(fake, number)
            return
        for target in written(func, args, kwargs):
            if (storage := storage_of(target)) in self.shared:
                raise self.unreadable(f"{_name(func)} into memory that is not only PyTorch's (a numpy array, say)")
            self._lost.add(storage)

    @staticmethod
    def _few(func: Any, args: Any, kwargs: Any, outs: list[torch.Tensor]) -> bool:
        """Whether ``outs`` are small, or lie in memory that is there anyway."""
        large = [x for x in outs if x.numel() > _most(func, x)]
        held = {storage_of(x) for x in leaves(args, kwargs) if isinstance(x, FakeTensor)} if large else set()
        return all(storage_of(x) in held for x in large)

    def own(self, fake: torch.Tensor) -> None:
        """Nothing else reads the memory of ``fake``."""
        self.shared.discard(storage_of(fake))

    def made(self, value: Any) -> Any:
        """The images of new tensors."""
        out = tree_map(self.image, value)
        for leaf in tree_leaves(out):
            if isinstance(leaf, FakeTensor):
                self.own(leaf)
        return out


def leaves(args: Any, kwargs: Any) -> list[Any]:
    """Arguments of an operation, those in lists one by one: no deeper nesting is in its schema."""
    out: list[Any] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, list | tuple):
            out += value
        else:
            out.append(value)
    return out


@cache
def _places(func: Any) -> tuple[tuple[int, str], ...]:
    """Of arguments that the operation writes to."""
    schema = enumerate(func._schema.arguments)  # noqa: SLF001 - no public name
    return tuple((i, x.name) for i, x in schema if x.alias_info is not None and x.alias_info.is_write)


def written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Tensors that the operation writes to."""
    given = [args[place] if place < len(args) else kwargs.get(name) for place, name in _places(func)]
    return [x for x in leaves(given, {}) if isinstance(x, torch.Tensor)]


def _keep(fake: FakeTensor, real: torch.Tensor) -> None:
    fake.__dict__["_known"] = (real, _place(fake))


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What it shows: another one after ``x.data = y``, say, whose numbers are not those of before."""
    strides = tensor.stride() if tensor.layout == torch.strided else ()
    offset = tensor.storage_offset() if tensor.layout == torch.strided else 0
    return storage_of(tensor), offset, strides, tensor.shape, tensor.dtype


def storage_of(tensor: torch.Tensor) -> int:
    """Which memory it lies in."""
    try:
        return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - its identity
    except (NotImplementedError, RuntimeError):  # sparse
        return -id(tensor)


def _most(func: Any, tensor: torch.Tensor) -> int:
    """Elements up to which what ``func`` returns anew is computed."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return OTHERS_KEPT
    if func.overloadpacket in UNSET:
        return UNSET_KEPT
    return RANDOM_KEPT if torch.Tag.nondeterministic_seeded in func.tags else FLOATS_KEPT


def _has_nan(value: torch.Tensor) -> bool:
    """A nan in a small table is a number that was read and was not there."""
    return value.is_floating_point() and value.numel() <= FLOATS_KEPT and bool(value.isnan().any())


def _misfit(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two operands cannot be multiplied."""
    return bool(a.dim() == b.dim() and a.dim() > 1 and a.shape[-1] != b.shape[-2])


def _empty(value: Any) -> Any:
    """In place of a fake tensor, an ordinary one of its shape and hardly any memory; all else as it is."""
    if not isinstance(value, FakeTensor):
        return value
    return torch.zeros((), dtype=value.dtype, device=value.device).expand(value.shape)


def _name(func: Any) -> str:
    return str(func).removeprefix("aten.").removesuffix(".default")
