"""What Python, rather than an operation, asks of fake tensors: numbers, copies, files, other processes.

Numbers that exist are handed out.  A floating-point number that does not is nan, told once, and cannot be compared; all
else ends the trace.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from morphling.emulate.fakes import Fakes, FakeTensor, storage_of

__all__ = ["readable"]

LOADED_BYTES = 64 << 20
"""Files up to this size are read by `torch.load`; of larger ones the shapes alone."""
_NONE = object()
_SHARING = {"numpy", "__array__", "__dlpack__", "data_ptr"}
"""What gives the memory itself away."""


class _Nan(float):
    """A number that does not exist: it may be printed and added up; who decides by it is refused.

    origin : what gave it
    """

    unreadable: Callable[[str], BaseException]
    origin: str

    def __new__(cls, unreadable: Callable[[str], BaseException], origin: str) -> Self:
        made = float.__new__(cls, "nan")
        made.unreadable, made.origin = unreadable, origin
        return made

    __hash__ = float.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return float, ("nan",)


def _computed(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def method(self: _Nan, *args: Any) -> Any:
        out = plain(self, *args)
        return _Nan(self.unreadable, self.origin) if type(out) is float else out

    return method


def _decided(shown: str) -> Callable[..., Any]:
    def method(self: _Nan, *_: Any) -> Any:
        raise self.unreadable(f"{shown} of what {self.origin} gave")

    return method


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "abs"):
    setattr(_Nan, f"__{_name}__", _computed(f"__{_name}__"))
for _name, _shown in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
    setattr(_Nan, f"__{_name}__", _decided(_shown))
for _name in ("bool", "int", "trunc", "floor", "ceil"):
    setattr(_Nan, f"__{_name}__", _decided(_name))


class _Methods:
    """Methods of `FakeTensor` while a script is traced."""

    def __init__(self, fakes: Fakes, note: Callable[[str], object]) -> None:
        self.fakes, self.note = fakes, note

    def all(self) -> dict[str, Callable[..., Any]]:
        """By name."""
        given = ("tolist", "numpy", "__array__", "__int__", "__bool__", "__index__", "__complex__", "__reduce_ex__")
        out = {name: self._real(name) for name in (*given, "data_ptr", "__dlpack__")}
        out |= {"__repr__": self._repr, "__format__": self._format, "__deepcopy__": self._deepcopy}
        out |= {"item": self._item, "__float__": self._float}
        return {name: _function(method) for name, method in out.items()}

    def _real(self, name: str) -> Callable[..., Any]:
        plain = getattr(torch.Tensor, name)

        def method(tensor: FakeTensor, *args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                out = plain(self._known(tensor, name), *args, **kwargs)
            if name in _SHARING:
                self.fakes.shared.add(storage_of(tensor))
            return out

        return method

    def _known(self, tensor: FakeTensor, name: str) -> torch.Tensor:
        real = self.fakes.known(tensor)
        if real is None:
            raise self.fakes.unreadable(_spoken(name))
        return real.detach().requires_grad_(tensor.requires_grad) if tensor.requires_grad else real

    def _nan(self, tensor: FakeTensor, name: str) -> _Nan:
        """In place of a floating-point number that does not exist."""
        if tensor.numel() != 1:
            raise RuntimeError(f"a Tensor with {tensor.numel()} elements cannot be converted to Scalar")
        if not tensor.is_floating_point():
            raise self.fakes.unreadable(_spoken(name))
        self.note(_spoken(name))
        return _Nan(self.fakes.unreadable, _spoken(name))

    def _item(self, tensor: FakeTensor) -> Any:
        real = self.fakes.known(tensor)
        return self._nan(tensor, "item") if real is None else real.item()

    def _float(self, tensor: FakeTensor) -> float:
        real = self.fakes.known(tensor)
        return float.__add__(self._nan(tensor, "__float__"), 0.0) if real is None else float(real)

    def _format(self, tensor: FakeTensor, spec: str) -> str:
        return format(self._item(tensor), spec) if tensor.dim() == 0 else format(repr(tensor), spec)

    def _repr(self, tensor: FakeTensor, **_: Any) -> str:
        real = self.fakes.known(tensor)
        if real is not None:
            with _disable_current_modes():
                return repr(self._known(tensor, "__repr__"))
        return f"tensor(without numbers, size={tuple(tensor.shape)}, dtype={tensor.dtype})"

    def _deepcopy(self, tensor: FakeTensor, memo: dict[int, Any]) -> Any:
        if not tensor.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user support the deepcopy protocol")
        if id(tensor) in memo:
            return memo[id(tensor)]
        with torch.no_grad():
            copied: Any = tensor.detach().clone()
        copied.requires_grad_(tensor.requires_grad)
        if isinstance(tensor, torch.nn.Parameter):
            copied._is_param = True  # noqa: SLF001 - as torch marks it
        if tensor.grad is not None:
            copied.grad = self._deepcopy(tensor.grad, memo)
        memo[id(tensor)] = copied
        return copied


def _spoken(name: str) -> str:
    """As a script has it."""
    return _SHOWN.get(name, f"Tensor.{name}")


_SHOWN = {
    "__array__": "a numpy array of a tensor",
    "__bool__": "a tensor that is decided by (if, while, and, or, not)",
    "__float__": "float(tensor)",
    "__int__": "int(tensor)",
    "__index__": "a tensor as an index",
    "__complex__": "complex(tensor)",
    "__reduce_ex__": "saving a tensor (pickle, torch.save)",
}


def _function(method: Callable[..., Any]) -> Callable[..., Any]:
    """As a class binds it to its tensors: what is bound already would not be bound again."""

    def unbound(tensor: FakeTensor, *args: Any, **kwargs: Any) -> Any:
        return method(tensor, *args, **kwargs)

    return unbound


@contextmanager
def readable(
    fakes: Fakes, unread: Callable[[str], object], note: Callable[[str], object], stop: Callable[..., object]
) -> Iterator[None]:
    """Inside, Python reads fake tensors as far as their numbers are known.

    unread : is told what gives nan;  note : what is otherwise than the script asks;
    stop : ends the trace where a scaler would look at gradients before an optimizer's step
    """
    inner, pickled = torch.nn.init, torch._utils  # noqa: SLF001 - where pickled tensors are made again
    replaced: list[tuple[Any, str, Any]] = [
        *((FakeTensor, name, method) for name, method in _Methods(fakes, unread).all().items()),
        # Wrong shapes are the script's own error, and told as that.
        (logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True),
        (torch.utils, "swap_tensors", _swapped),
        (torch, "tensor", _owned(fakes, torch.tensor)),
        (torch, "load", _loading(fakes, torch.load, note)),
        (torch.utils.data.DataLoader, "_get_iterator", _here(note)),
        (torch.amp.GradScaler, "step", _scaled(stop)),
        (inner, "_no_grad_trunc_normal_", _drawn(inner._no_grad_trunc_normal_)),
        (pickled, "_rebuild_tensor", _rebuilding(fakes, pickled._rebuild_tensor)),  # noqa: SLF001 - see above
    ]
    with ExitStack() as stack:
        for owner, name, new in replaced:
            stack.enter_context(_set(owner, name, new))
        yield


@contextmanager
def _set(owner: Any, name: str, new: Any) -> Iterator[None]:
    """As the owner's own attribute; afterwards it is as before, inherited or not."""
    old = vars(owner).get(name, _NONE)
    setattr(owner, name, new)
    try:
        yield
    finally:
        if old is _NONE:
            delattr(owner, name)
        else:
            setattr(owner, name, old)


def _swapped(first: torch.Tensor, second: torch.Tensor) -> None:
    """Modules that change their type swap fake parameters with new ones, and real ones set their data, as here."""
    first.data = second.detach()


def _drawn(original: Callable[..., Any]) -> Callable[..., Any]:
    """Weights are drawn from a cut normal distribution until none is beyond the cut: of numbers that do not exist, none
    is.
    """

    def trunc_normal(tensor: torch.Tensor, mean: float, std: float, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tensor, FakeTensor):
            return original(tensor, mean, std, *args, **kwargs)
        with torch.no_grad():
            return tensor.normal_(mean, std)

    return trunc_normal


def _owned(fakes: Fakes, original: Callable[..., Any]) -> Callable[..., Any]:
    def tensor(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        if isinstance(out, FakeTensor):
            fakes.own(out)
        return out

    return tensor


def _loading(fakes: Fakes, original: Callable[..., Any], note: Callable[[str], object]) -> Callable[..., Any]:
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        path = Path(f) if isinstance(f, str | Path) else None
        large = path is not None and path.is_file() and path.stat().st_size > LOADED_BYTES
        if large:
            note(f"torch.load of {f}: shapes alone, since it is larger than {LOADED_BYTES:,} bytes")
        with _disable_current_modes(), fakes.mode if large else nullcontext():
            return original(f, *args, **kwargs)

    return load


def _rebuilding(fakes: Fakes, original: Callable[..., Any]) -> Callable[..., Any]:
    """Tensors out of pickles, whose memory torch sets past all shapes."""

    def rebuild(storage: Any, *args: Any) -> Any:
        untyped = getattr(storage, "_untyped_storage", storage)
        if untyped.device.type == "meta" or _get_current_dispatch_mode() is None:  # as `torch.load` sees to it
            return original(storage, *args)
        with _disable_current_modes():
            out = original(storage, *args)
        return fakes.made(out)

    return rebuild


def _here(note: Callable[[str], object]) -> Callable[..., Any]:
    original = torch.utils.data.DataLoader._get_iterator  # noqa: SLF001 - where processes would be started

    def iterator(loader: Any) -> Any:
        processes, timeout = loader.num_workers, loader.timeout
        if not processes:
            return original(loader)
        note("DataLoader: data is loaded in the process of the script")
        loader.num_workers = loader.timeout = 0
        try:
            return original(loader)
        finally:
            loader.num_workers, loader.timeout = processes, timeout

    return iterator


def _scaled(stop: Callable[..., object]) -> Callable[..., Any]:
    original = torch.amp.GradScaler.step

    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if scaler.is_enabled():
            stop()
        return original(scaler, optimizer, *args, **kwargs)

    return step
