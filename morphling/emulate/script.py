"""A script, run as if it were alone: its arguments, its output, its traceback; the interception around it."""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.thread import _threads_queues  # no public name says which threads are a pool's
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.optimizer import register_optimizer_step_post_hook

from morphling.emulate.emulation import Emulation
from morphling.emulate.interception import Coverage, Interception
from morphling.emulate.watchdog import Watchdog
from morphling.errors import InputError, RunError

__all__ = ["Places", "ScriptError", "run_script", "threads_within", "watched_by"]

OURS = "morphling-tiles"
"""Threads of our own: what they compute has been seen."""


class ScriptError(RunError):
    """The script raised, or asked to exit with a code; ``trace`` is its own traceback, as Python prints it."""

    def __init__(self, message: str, trace: str = "", code: int = 1) -> None:
        super().__init__(message)
        self.trace, self.exit_code = trace, code


@contextmanager
def watched_by(emulation: Emulation, warn: Callable[[str], object]) -> Iterator[Coverage]:
    """Every product inside goes to ``emulation``; yields what is seen.

    Attention takes the path of matrix products; threads that are started inside are watched too; forked processes
    compute by themselves.
    """
    said: set[str] = set()

    def once(text: str) -> None:
        if text not in said:
            said.add(text)
            warn(text)

    mode = Interception(emulation, once)
    fast = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        watchdog = stack.enter_context(Watchdog(mode))
        if watchdog.cause:
            once(f"products that escape are not counted: {watchdog.cause}")
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_losses(emulation))
        stack.callback(emulation.threads.close)
        stack.enter_context(_threads(mode, once))
        stack.enter_context(_compile_said(once))
        stack.enter_context(mode)
        yield mode.coverage


@contextmanager
def _replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


@contextmanager
def _losses(emulation: Emulation) -> Iterator[None]:
    """Backward passes and steps of any optimizer are noticed."""
    original = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if torch._C._current_graph_task_id() == -1:  # noqa: SLF001 - checkpoints run backward passes inside one
            emulation.backward(tensors)
        original(tensors, *args, **kwargs)

    hook = register_optimizer_step_post_hook(lambda *_: emulation.step())
    try:
        with _replaced(torch.autograd, "backward", backward):
            yield
    finally:
        hook.remove()


@contextmanager
def _threads(mode: Interception, warn: Callable[[str], None]) -> Iterator[None]:
    """The mode belongs to one thread; threads that a script starts get one of their own.

    What computes on after the script computes by itself.
    """

    def watched(run: Callable[[], None]) -> None:
        own = mode.sibling()
        try:
            with own:
                run()
        finally:
            if own.products:
                warn("products of several threads share one virtual clock: they are computed one after another")

    try:
        with threads_within(watched):
            yield
    finally:
        mode.ended.set()


@contextmanager
def threads_within(
    within: Callable[[Callable[[], None]], None], waits: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Threads that a script starts run as ``within(run)``.

    At the end, if ``waits()``, those that are no daemons are waited for, as Python does before it exits (not those of a
    pool: they wait for work themselves).
    """
    original = threading.Thread.start
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        if not thread.name.startswith(OURS):
            started.append(thread)
            thread.run = partial(within, thread.run)  # type: ignore[method-assign] # of this thread, not of its class
        original(thread)

    with _replaced(threading.Thread, "start", start):
        try:
            yield
        finally:
            # Not after an interrupt: its user has waited enough.
            if isinstance(sys.exception(), Exception | None) and waits():
                for thread in started:  # threads may start others meanwhile
                    if not thread.daemon and thread not in _threads_queues:
                        thread.join()


@contextmanager
def _compile_said(warn: Callable[[str], None]) -> Iterator[None]:
    original = torch.compile

    def compiled(*args: Any, **kwargs: Any) -> Any:
        warn("torch.compile does nothing while products are intercepted: the script runs eagerly")
        return original(*args, **kwargs)

    with _replaced(torch, "compile", compiled):
        yield


class Places:
    """Says at which line a script is."""

    def __init__(self, script: Path) -> None:
        self.script, self.path = script, str(script.absolute())
        named = sysconfig.get_paths()
        folders = [named[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        folders += [str(Path(__file__).resolve().parents[1]), str(Path(torch.__file__).parent)]
        self.others = (*(folder + os.sep for folder in folders), "<")

    def now(self) -> tuple[str, int]:
        """File and line of the innermost frame that is the script's, or of a module beside it."""
        frame: Any = sys._getframe(1)  # noqa: SLF001 - frames alone, no tracebacks
        lines = []
        while frame is not None:
            lines.append((frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
        return self._first(lines)

    def of(self, error: BaseException) -> tuple[str, int]:
        """The same of where an error was raised."""
        lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        return self._first(lines[::-1])

    def _first(self, lines: Iterable[tuple[str, int]]) -> tuple[str, int]:
        for name, line in lines:
            if name == self.path or not name.startswith(self.others):
                return (str(self.script) if name == self.path else name), line
        return str(self.script), 0


def run_script(script: Path, args: Sequence[str]) -> None:
    """Run ``script`` as ``__main__`` with ``args``.

    ``InputError`` if there is no such file; `ScriptError` if it raises, or exits with another code than 0.
    """
    if not script.is_file():
        raise InputError(f"{script}: no such script")
    argv, path, folder = sys.argv, list(sys.path), Path.cwd()
    sys.argv = [str(script), *args]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script.absolute()), run_name="__main__")  # as python's own __file__: scripts may chdir
    except SystemExit as stop:
        code = 0 if stop.code is None else int(stop.code) if isinstance(stop.code, int) else 1
        if code:
            text = f" with code {code}" if isinstance(stop.code, int) else f": {stop.code}"
            raise ScriptError(f"{script} asked to exit{text}", code=code) from stop
    except Exception as error:
        trace = "".join(_own_traceback(error, script).format())
        raise ScriptError(f"{script} raised {type(error).__name__}: {error}", trace) from error
    finally:
        sys.argv, sys.path[:] = argv, path
        os.chdir(folder)  # where the run folder goes, whatever the script did


def _own_traceback(error: BaseException, script: Path) -> traceback.TracebackException:
    """What Python would have printed without us around: frames before the script and our own are left out, and those
    of torch that only lead to ours; in the errors that it came from as well.
    """
    shown = traceback.TracebackException.from_exception(error)
    open_, seen = [shown], set()
    while open_:
        one = open_.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        frames = list(one.stack)
        first = next((i for i, frame in enumerate(frames) if frame.filename == str(script.absolute())), None)
        if first is None and one is shown:
            first = len(frames)  # it does not compile
        one.stack = traceback.StackSummary.from_list(_without_ours(frames[first or 0 :]))
        open_ += [x for x in (one.__cause__, one.__context__, *(one.exceptions or ())) if x is not None]
    return shown


def _without_ours(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    ours = str(Path(__file__).resolve().parent)
    kept: list[traceback.FrameSummary] = []
    inside = False
    for frame in frames:
        if frame.filename.startswith(ours):
            while kept and kept[-1].filename.endswith(_LEADS_IN):
                kept.pop()
            inside = True
        elif not (inside and any(part in frame.filename for part in _LEADS_OUT)):
            kept.append(frame)
            inside = False
    return kept


_LEADS_IN = ("torch/_compile.py", "torch/_dynamo/eval_frame.py", "torch/utils/_python_dispatch.py")
_LEADS_OUT = (
    *("torch/_ops.py", "torch/_compile.py", "torch/_dynamo/", "torch/_subclasses/", "torch/_meta_registrations.py"),
    *("torch/_prims", "torch/_refs/", "torch/_decomp/", "torch/utils/_stats.py", "torch/__init__.py"),
)
"""How shapes are worked out, in torch, is no frame of the script's either."""
