"""Many runs at once: one process a core, each kept for run after run, started afresh and never forked.

The processes are this file's own and not those of `concurrent.futures`: that pool is broken for all runs by one
process that the system ends for its memory, cannot stop what it runs, and starts by importing the caller's script
again, which then has to be guarded.  Here such a run alone has failed, Ctrl-C stops at once, and no script is imported.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from morphling.errors import InputError
from morphling.run.run_request import RunEnd, RunRequest, replay_request

__all__ = ["Progress", "cores", "run_side_by_side", "serve"]

_START = "import sys; from morphling.run.side_by_side import serve; serve(*map(int, sys.argv[1:]))"
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_IN_MAIN = b"\x8c\x08__main__"
"""A class of the caller's script, pickled."""
_PATIENCE_S = 5.0
"""How long a process may take to clean up after it was told to stop."""
_PULSE_S = 0.2
"""Real time between two signs of life of a run."""


@dataclass(frozen=True)
class Progress:
    """Where many runs stand: how many of ``total`` are ``done``, and how far (virtual s) those that run now are."""

    done: int
    total: int
    running: dict[str, float]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_side_by_side(
    requests: Sequence[RunRequest],
    *,
    jobs: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[RunEnd]:
    """Make all runs, ``jobs`` at a time, and return their ends in the order of ``requests``.

    ``jobs`` is the number of cores if left out; with 1, or if there is but one run, no process is started.  Each run is
    what `morphling.run` makes of it alone, to the bit.  A process holds a run in memory: where that is much, fewer jobs
    are what helps.  On an interrupt all runs are stopped and finished folders stay.

    ``InputError`` if two runs share a folder, or if one cannot be sent to another process: a strategy class of a
    notebook or a script, for instance, which has to move to a file of its own (or ``jobs=1``).
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs: at least 1 is needed, found {jobs}")
    places = [request.out.resolve() for request in requests]
    if twice := sorted({str(place) for place in places if places.count(place) > 1}):
        raise InputError(f"several runs are to be written into {twice[0]}")
    count = min(cores() if jobs is None else jobs, len(requests))
    if count <= 1:
        return _here(requests, progress)
    sent = [_packed(request) for request in requests]
    return _Side(requests, sent, progress).run(count)


def _here(requests: Sequence[RunRequest], progress: Callable[[Progress], None] | None) -> list[RunEnd]:
    ends: list[RunEnd] = []
    for request in requests:

        def show(virtual_s: float, _: int, key: str = request.key) -> None:
            if progress is not None:
                progress(Progress(len(ends), len(requests), {key: virtual_s}))

        show(0.0, 0)
        ends.append(replay_request(request, show))
    if progress is not None:
        progress(Progress(len(ends), len(requests), {}))
    return ends


def _packed(request: RunRequest) -> bytes:
    try:
        packed = pickle.dumps(request)
    except Exception as error:
        raise InputError(f"{request.key}: cannot be sent to another process ({error}); jobs=1 needs none") from error
    if _IN_MAIN in packed:
        raise InputError(
            f"{request.key}: its class is in a script or notebook, which other processes do not run; put it into a"
            " file of its own, or use jobs=1"
        )
    return packed


class _Process:
    """A Python process that makes one run after another, and the pipe to it."""

    def __init__(self) -> None:
        self.pipe, theirs = Pipe()
        # What this process can import, the other can, in the same order.
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        one = dict.fromkeys(_ONE_THREAD, "1")
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 - Python itself
                [sys.executable, "-P", "-c", _START, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **one, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=2,  # what strategies print; stdout belongs to the table
                process_group=0,  # Ctrl-C is for us, who tell them
            )
        self.index = -1
        self.send(pickle.dumps(sys.argv))

    def send(self, packed: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it is dead, which reading from it will tell
            self.pipe.send_bytes(packed)

    def close(self) -> None:
        self.pipe.close()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.pipe.close()


class _Side:
    """The runs of one call: those waiting, those under way, those that ended."""

    def __init__(
        self, requests: Sequence[RunRequest], sent: list[bytes], progress: Callable[[Progress], None] | None
    ) -> None:
        self.requests, self.sent, self.progress = requests, sent, progress
        self.waiting = deque(range(len(requests)))
        self.ends: dict[int, RunEnd] = {}
        self.reached: dict[int, float] = {}
        self.processes: list[_Process] = []

    def run(self, count: int) -> list[RunEnd]:
        try:
            for _ in range(count):
                self.give(self.started())
            while len(self.ends) < len(self.requests):
                busy = {p.pipe: p for p in self.processes if p.index >= 0}
                for pipe in wait(list(busy)):
                    self.hear(busy[pipe])  # type: ignore[index] # a Connection, as all that was waited for
                self.show()
            for process in self.processes:
                process.close()
        except BaseException:
            self.stop()
            raise
        return [self.ends[index] for index in range(len(self.requests))]

    def started(self) -> _Process:
        self.processes.append(_Process())
        return self.processes[-1]

    def give(self, process: _Process) -> None:
        process.index = self.waiting.popleft() if self.waiting else -1
        if process.index >= 0:
            self.reached[process.index] = 0.0
            process.send(self.sent[process.index])

    def hear(self, process: _Process) -> None:
        index = process.index
        try:
            said = process.pipe.recv()
        except (EOFError, OSError):
            self.settle(index, _died(self.requests[index].key, process.process.wait()))
            process.pipe.close()
            self.processes.remove(process)
            _sweep(self.requests[index].out)
            if self.waiting:
                self.give(self.started())
            return
        if isinstance(said, RunEnd):
            self.settle(index, replace(said, key=self.requests[index].key))
            self.give(process)
        else:
            self.reached[index] = said

    def settle(self, index: int, end: RunEnd) -> None:
        self.ends[index] = end
        del self.reached[index]

    def show(self) -> None:
        if self.progress is not None:
            running = {self.requests[index].key: at for index, at in sorted(self.reached.items())}
            self.progress(Progress(len(self.ends), len(self.requests), running))

    def stop(self) -> None:
        for process in self.processes:
            process.stop()
        until = time.monotonic() + _PATIENCE_S
        for process in self.processes:
            try:
                process.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:  # in the middle of compiled code
                process.process.kill()
                process.process.wait()
        for index in self.reached:
            _sweep(self.requests[index].out)


def _died(key: str, code: int) -> RunEnd:
    if code >= 0:
        return RunEnd(key, "failed", reason=f"its process ended with exit code {code}", error="ProcessEnded")
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = "; systems do so when memory runs out, and fewer jobs need less" if name == "SIGKILL" else ""
    return RunEnd(key, "failed", reason=f"its process was ended by {name}{hint}", error="ProcessEnded")


def _sweep(out: Path) -> None:
    """Remove what a run that was cut off had not finished writing: a hidden folder beside, an empty one in place."""
    for partial in out.parent.glob(f".{out.name}-*"):
        shutil.rmtree(partial, ignore_errors=True)
    with contextlib.suppress(OSError):
        out.rmdir()


# ------------------------------------------------------------------------------------------------- in the other process


def serve(descriptor: int, parent: int) -> None:
    """Make the runs that come through the pipe at that file descriptor, until it is closed or ``parent`` is gone.

    The process says its own number, since it may be gone before this one is able to ask who started it.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that half-written folders are removed
    with Connection(descriptor) as pipe, contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        threading.Thread(target=_outlived, args=(parent,), daemon=True).start()
        sys.argv = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from the process that started this one
        while True:
            pipe.send(_served(pipe.recv_bytes(), pipe))


def _outlived(parent: int) -> None:
    """End this process when the one that started it is gone, even in the middle of a plan that takes hours."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE_S)
    os._exit(1)  # the signal was lost in a callback of compiled code


def _served(packed: bytes, pipe: Connection[Any, Any]) -> RunEnd:
    last = time.monotonic()

    def pulse(virtual_s: float, _: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _PULSE_S:
            last = time.monotonic()
            pipe.send(virtual_s)

    try:
        request: RunRequest = pickle.loads(packed)  # noqa: S301 - as above
    except Exception as error:  # noqa: BLE001 - importing the module of a class may raise anything
        name = type(error).__name__
        return RunEnd("", "failed", reason=f"another process cannot load it: {name}: {error}", error=name)
    return replay_request(request, pulse)
