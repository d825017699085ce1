"""The matrix products of one training step as a graph: of a script, or of a model without weights (meta device).

Which product waits for which is followed through everything between them: each storage knows the products that its
content comes from.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from morphling.emulate.fakes import Fakes, FakeTensor, Unreadable, leaves, written
from morphling.emulate.interception import PRODUCT_NAMES, foreign, operands_of, with_products
from morphling.emulate.reading import readable
from morphling.emulate.script import Places, ScriptError, run_script, threads_within
from morphling.errors import InputError, RunError
from morphling.types import Phase
from morphling.workload.traced import TracedGemm, TracedGemms

__all__ = ["Tracer", "trace_model", "trace_script"]


class _FirstStepEnds(BaseException):
    """The first step of an optimizer begins: all products of a training step have been seen.

    No script catches it by accident.
    """


class Tracer(TorchDispatchMode):
    """Notes products and what they wait for; everything is executed as it is (on the meta device that is nothing), or
    by ``fakes``.

    Attributes
    ----------
    left_out : calls of operations with matrix products that are none themselves, by name
    over : what ended the trace; whatever is computed later raises it again
    """

    def __init__(self, fakes: Fakes | None = None) -> None:
        super().__init__()
        self.fakes = fakes
        self.gemms: list[TracedGemm] = []
        self.dtypes: set[torch.dtype] = set()
        self.left_out: Counter[str] = Counter()
        self.over: BaseException | None = None
        self.lock = threading.RLock()
        self.owner = os.getpid()
        self._from: dict[int, int] = {}  # sets of products as the bits of whole numbers: thousands of unions
        self._tensors: dict[tuple[Any, ...], int] = {}
        self._held: dict[int, Any] = {}
        self._behind: list[int] = []

    def end(self, error: BaseException) -> BaseException:
        """The trace is over: ``error``, or what ended it before."""
        self.over = self.over or error
        return self.over

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and self.fakes is not None:
            return args[0].fake_device
        keywords = kwargs or {}
        if os.getpid() != self.owner:
            return func(*args, **keywords)
        if self.over is not None:
            raise self.over
        if types and foreign(t for t in types if self.fakes is None or t is not FakeTensor):
            return NotImplemented
        if not isinstance(func, torch._ops.OpOverload):  # noqa: SLF001 - higher-order operators have no schema
            if with_products(func):
                self.left_out[func.__name__] += 1
            return func(*args, **keywords)
        name = PRODUCT_NAMES.get(func)
        if name is None and func._can_decompose():  # noqa: SLF001 - the only way to ask; inference mode
            with self:
                return func.decompose(*args, **keywords)
        if self.fakes is not None:
            args, keywords = self.fakes.images(args, keywords)
        return self._executed(name, func, args, keywords)

    def _executed(self, name: str | None, func: Any, args: Any, keywords: Any) -> Any:
        read = 0
        for tensor in _tensors(leaves(args, keywords)):
            read |= self._sources(tensor)
        product = name is not None and all(x.layout == torch.strided for x in operands_of(func, args))
        fakes = self.fakes
        out = func(*args, **keywords) if fakes is None else fakes.run(func, args, keywords)
        made = read
        if product:
            made = 1 << len(self.gemms)
            self._note(str(name), func, args, read)
        elif with_products(func):
            self.left_out[func.overloadpacket.__name__] += 1
        for tensor in (*_tensors(tree_leaves(out)), *written(func, args, keywords)):
            self._from[self._key(tensor)] = made | self._sources(tensor)
        return out

    def _note(self, name: str, func: Any, args: Any, read: int) -> None:
        a, b = operands_of(func, args)
        batch = a.shape[0] if a.dim() == 3 else 1
        self.dtypes.add(a.dtype)
        backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001 - no public name says so
        behind = 0
        for i in _bits(read):
            behind |= self._behind[i]
        waits = tuple(_bits(read & ~behind))  # only those that are not behind another one of them
        self._behind.append(read | behind)
        self.gemms.append(
            TracedGemm(
                op=name,
                phase=Phase.BACKWARD_INPUT if backward else Phase.FORWARD,
                batch=batch,
                m=a.shape[-2],
                n=b.shape[-1],
                k=a.shape[-1],
                a=self._tensor(a),
                b=self._tensor(b),
                a_transposed=_transposed(a),
                b_transposed=_transposed(b),
                waits_for=waits,
            )
        )

    def _key(self, tensor: torch.Tensor) -> int:
        """The storage, which is held so that no other one takes its place."""
        try:
            storage: Any = tensor.untyped_storage()
            key = int(storage._cdata)  # noqa: SLF001 - its identity
        except (NotImplementedError, RuntimeError):  # sparse, or made of others: it stands for itself
            storage, key = tensor, -id(tensor)
        self._held.setdefault(key, storage)
        return key

    def _sources(self, tensor: torch.Tensor) -> int:
        return self._from.get(self._key(tensor), 0)

    def _tensor(self, tensor: torch.Tensor) -> int:
        """A number for the operand's content: views of the same part of a storage share it, transposed or not."""
        key = (self._key(tensor), tensor.storage_offset(), tensor.numel(), self._sources(tensor))
        return self._tensors.setdefault(key, len(self._tensors))


def _bits(number: int) -> Iterator[int]:
    """The places of its ones, ascending."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    return [x for x in values if isinstance(x, torch.Tensor)]


def _transposed(x: torch.Tensor) -> bool:
    """Whether a matrix lies in memory column by column."""
    return bool(x.shape[-1] > 1 and x.stride(-1) != 1 and x.stride(-2) == 1)


def _result(tracer: Tracer, name: str, traced: Mapping[str, Any]) -> TracedGemms:
    if not tracer.gemms:
        raise RunError(f"{name}: no matrix product was seen")
    words = sorted(str(d).removeprefix("torch.") for d in tracer.dtypes)
    how = {**traced, "torch": str(torch.__version__), "left_out": dict(sorted(tracer.left_out.items()))}
    return TracedGemms(name, words[0] if len(words) == 1 else "mixed", tuple(tracer.gemms), how)


def trace_script(
    script: Path, args: Sequence[str], *, real: bool = False, note: Callable[[str], object] = str
) -> TracedGemms:
    """The products that ``script`` computes up to its first optimizer step, forward and backward.

    It is run and stopped there: without arithmetic (see `fakes`), or on ``real`` tensors as it is.  ``note`` is told
    what is otherwise than in a run of the script alone.  ``InputError`` if it needs numbers that only a real step has;
    ``RunError`` if there is no product.
    """
    seen = _Seen(script, note)

    def stop(*_: object) -> None:
        raise tracer.end(_FirstStepEnds())

    def within(run: Callable[[], None]) -> None:
        with suppress(_FirstStepEnds, Unreadable), _Beside(tracer):
            run()

    tracer = Tracer(None if real else Fakes(lambda what: tracer.end(Unreadable(seen.needs(what)))))
    try:
        with ExitStack() as stack:
            _attention_as_products(stack)
            stack.callback(register_optimizer_step_pre_hook(stop).remove)
            if tracer.fakes is not None:
                stack.enter_context(readable(tracer.fakes, seen.nan, seen.say, stop))
            stack.enter_context(threads_within(within, lambda: tracer.over is None))
            stack.enter_context(tracer)
            with suppress(_FirstStepEnds, Unreadable):
                run_script(script, args)
    except ScriptError as error:
        if not real and _NO_DATA in str(error):
            raise InputError(seen.needs(f"PyTorch's own code ({_NO_DATA})", error.__cause__)) from error
        if seen.nans:
            error.args = (f"{error} (in a trace without arithmetic; it was told before that {seen.nans[0]} is nan)",)
        elif not real and error.trace:
            error.args = (f"{error} (in a trace without arithmetic; with --real the first step is executed)",)
        raise
    finally:
        over = tracer.over
        tracer.end(_FirstStepEnds())  # of threads that go on
    if isinstance(over, Unreadable):
        raise InputError(str(over))
    way = "script, its first step executed" if real else "script, without arithmetic"
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    how = {"way": way, "script": script.name, "script_sha256": digest, "arguments": list(args), "nan": seen.nans}
    return _result(tracer, script.stem, how)


_NO_DATA = "data is not allocated yet"
"""What torch says where it reads a fake tensor's memory past the dispatcher (packed sequences, say)."""


class _Seen:
    """What a script saw otherwise than alone, told once each.

    Attributes
    ----------
    nans : where it read a number that does not exist
    """

    def __init__(self, script: Path, note: Callable[[str], object]) -> None:
        self.places, self.note = Places(script), note
        self.told: set[str] = set()
        self.nans: list[str] = []

    def say(self, text: str) -> None:
        if text not in self.told:
            self.told.add(text)
            self.note(text)

    def nan(self, what: str) -> None:
        file, line = self.places.now()
        place = f"{Path(file).name}:{line}: {what}"
        if place not in self.nans:
            self.nans.append(place)
            self.say(f"{file}:{line}: {what} gives nan: this trace computes no such number (with --real it does)")

    def needs(self, what: str, error: BaseException | None = None) -> str:
        file, line = self.places.now() if error is None else self.places.of(error)
        return (
            f"{file}:{line}: {what} needs numbers that a trace without arithmetic does not have; with --real the"
            " first step is executed"
        )


def _attention_as_products(stack: ExitStack) -> None:
    """Attention takes the path of matrix products."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
    stack.enter_context(sdpa_kernel(SDPBackend.MATH))


class _Beside(TorchDispatchMode):
    """The tracer, in another thread: one operation after another."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self.tracer.lock:
            return self.tracer.__torch_dispatch__(func, types, args, kwargs)


def trace_model(
    reference: str, config: Mapping[str, Any], batch_size: int, sequence_length: int, *, dtype: str = "float32"
) -> TracedGemms:
    """The products of one training step of ``module:Class`` on ``batch_size`` sequences, without weights.

    A class of Hugging Face's transformers (it has a ``config_class``) is made of ``config`` (a ``config.json``) with
    eager attention; any other class is made as ``Class(**config)`` and called with token numbers; of what it
    returns, the sum is the loss.  ``InputError`` if it cannot be imported or made.
    """
    made = _class(reference)
    with torch.device("meta"):
        try:
            model, call = _made(made, dict(config), batch_size, sequence_length)
        except Exception as error:
            raise InputError(f"--model {reference} cannot be made: {type(error).__name__}: {error}") from error
    model = model.to(getattr(torch, dtype)).train()
    tracer = Tracer()
    with torch.device("meta"), sdpa_kernel(SDPBackend.MATH), tracer:
        call(model).backward()
    return _result(tracer, reference.rpartition(":")[2], {"way": "model, without weights", "model": reference})


def _class(reference: str) -> Any:
    module, colon, name = reference.partition(":")
    if not colon or not name:
        raise InputError(f"--model {reference}: write module:Class, such as transformers:LlamaForCausalLM")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no weights are asked for
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        hint = "; pip install transformers" if module == "transformers" else ""
        raise InputError(f"--model {reference}: {module} cannot be imported: {error}{hint}") from error
    except AttributeError:
        raise InputError(f"--model {reference}: {module} has no {name}") from None


def _made(
    made: Any, config: dict[str, Any], batch: int, length: int
) -> tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]:
    """The model and a call of it that returns its loss."""
    ids = torch.zeros((batch, length), dtype=torch.int64)
    if not hasattr(made, "config_class"):
        return made(**config), lambda model: model(ids).sum()
    settings = made.config_class.from_dict(config)
    settings.use_cache = False
    settings._attn_implementation = "eager"  # noqa: SLF001 - transformers' own name
    mask = torch.ones((batch, length), dtype=torch.int64)
    return made(settings), lambda model: model(input_ids=ids, attention_mask=mask, labels=ids).loss
