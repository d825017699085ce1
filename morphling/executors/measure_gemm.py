"""Measure matrix products C[m x n] = A[m x k] B[k x n] on this machine and print them as CSV.

One file that needs Python 3.8 and numpy or torch, to be copied to a Jetson, a phone or anything else:

    python measure_gemm.py --budget 120 > samples.csv

Each shape is measured in several rounds, spread over the whole time, so that a slow minute of the machine does not
fall on one shape.  One line is one round; the median over a shape's rounds is what counts.  Operands are random (zeros
can be faster) and warm: the same ones are used again and again, so caches hold of them what fits.  On one CPU thread
the time is the CPU time of that thread, which other programs lengthen least; otherwise it is wall time, or on a CUDA
device the time between two events.

Columns: m, n, k; dtype; layout (nn, nt, tn, tt: which of A and B is stored transposed); lda, ldb (elements from one
stored row to the next); batch (products in one call); ms (milliseconds a call); cpu_share (CPU time by wall time).
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import platform
import random
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    Shape: TypeAlias = tuple[int, int, int, str, int, int, int]
    # m, n, k, layout, lda, ldb, batch

HEADER = "m,n,k,dtype,layout,lda,ldb,batch,ms,cpu_share"
ROUNDS = 8
"""Rounds that a plan leaves time for; a quiet machine needs fewer, since a shape whose rounds agree is done."""
LEAST_ROUNDS = 3
MOST_ROUNDS = 40
MOST_SHAPES = 500
AGREE = 0.05
BLOCKS = 15
BLOCK_S = 2e-4
"""Calls are repeated to blocks of at least this length: some 400 times what reading a clock costs, and short enough
that on a busy machine some blocks run without an interruption."""
LARGEST = 4096
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def tight(rows: int, cols: int, transposed: bool) -> int:
    """Smallest distance from one stored row to the next, in elements."""
    return rows if transposed else cols


def shape_of(m: int, n: int, k: int, layout: str = "nn", pad_a: int = 0, pad_b: int = 0, batch: int = 1) -> Shape:
    """One line of a plan: (m, n, k, layout, lda, ldb, batch)."""
    return (m, n, k, layout, tight(m, k, layout[0] == "t") + pad_a, tight(k, n, layout[1] == "t") + pad_b, batch)


def elements(shape: Shape) -> int:
    """Elements of storage that A, B and C take."""
    m, n, k, layout, lda, ldb, batch = shape
    return batch * ((k if layout[0] == "t" else m) * lda + (n if layout[1] == "t" else k) * ldb + m * n)


def _size(rng: random.Random, low: float, high: float) -> int:
    """A size between two bounds, evenly on a logarithmic scale; half of them are as round as real models' are."""
    size = math.exp(rng.uniform(math.log(low), math.log(high)))
    grain = rng.choice((1, 1, 8, 64))
    return int(min(high, max(low, round(size / grain) * grain or grain)))


def _drawn(rng: random.Random, largest: int) -> Shape:
    """One shape of one of the kinds: square, tall, wide, skinny, flat in k, matrix times vector, any; or a batch."""
    kind = rng.choice(("square", "square", "tall", "wide", "skinny", "flat", "vector", "any", "any", "any", "batch"))
    m, n, k = (_size(rng, 16, largest) for _ in range(3))
    if kind == "square":
        m = n = k = _size(rng, 32, largest)
    elif kind == "tall":
        m, n, k = _size(rng, 256, largest), _size(rng, 16, 256), _size(rng, 16, 512)
    elif kind == "wide":
        m, n, k = _size(rng, 16, 256), _size(rng, 256, largest), _size(rng, 16, 512)
    elif kind == "skinny":
        small = _size(rng, 4, 32)
        m, n = (small, n) if rng.random() < 0.5 else (m, small)
    elif kind == "flat":
        k = _size(rng, 8, 64)
    elif kind == "vector":
        m, n = (1, max(n, 32)) if rng.random() < 0.5 else (max(m, 32), 1)
    elif kind == "batch":
        m, n, k = (_size(rng, 16, 256) for _ in range(3))
        return shape_of(m, n, k, rng.choice(("nn", "nt", "tn")), batch=_size(rng, 2, 64))
    layout = rng.choice(("nn", "nn", "nn", "nt", "tn", "tt"))
    pad_a = pad_b = 0
    if rng.random() < 0.25:  # operands that are parts of wider matrices: a stride beyond the row, often a power of two
        pad_a = _gap(rng, tight(m, k, layout[0] == "t"))
        pad_b = _gap(rng, tight(k, n, layout[1] == "t"))
    if kind == "vector":  # the vector lies in one piece
        layout, pad_a, pad_b = ("n" + layout[1], 0, pad_b) if m == 1 else (layout[0] + "n", pad_a, 0)
    return shape_of(m, n, k, layout, pad_a, pad_b)


def _gap(rng: random.Random, row: int) -> int:
    """Elements between the end of a row and the next: none, a few, or up to the next power of two."""
    return int(rng.choice((0, 8, (1 << max(4, (row - 1).bit_length())) - row)))


def blocks_of(call_s: float) -> int:
    """How many blocks a shape gets in one round."""
    return BLOCKS if call_s < 2e-3 else 5 if call_s < 2e-2 else 2


def plan(budget_s: float, flops_per_s: float, most_elements: int, seed: int = 0) -> list[Shape]:
    """Shapes that can be measured in ``budget_s`` at that rate, always the same for the same seed."""
    rng = random.Random(seed)  # noqa: S311 - no secrets here
    most_flops = max(2e6, flops_per_s * budget_s / 1000)
    largest = max(128, min(LARGEST, int((most_flops / 2) ** (1 / 3) * 4)))
    shapes: list[Shape] = []
    spent = 0.0
    while spent < 0.8 * budget_s and len(shapes) < MOST_SHAPES:
        shape = _drawn(rng, largest)
        flops = 2.0 * shape[0] * shape[1] * shape[2] * shape[6]
        if flops > most_flops or elements(shape) > most_elements or shape in shapes:
            continue
        shapes.append(shape)
        call = flops / flops_per_s + 2e-6
        spent += ROUNDS * (5e-4 + (2 + blocks_of(call)) * max(BLOCK_S, call))
    return shapes


class Numpy:
    """Products with numpy: whatever BLAS it was built with."""

    def __init__(self, dtype: str, device: str, threads: int, most: int) -> None:
        self.np = importlib.import_module("numpy")
        if dtype != "float32" or device != "cpu":
            sys.exit("numpy multiplies float32 on the CPU alone at speed; take --backend torch")
        rng = self.np.random.default_rng(0)
        self.arena = self.np.resize(rng.uniform(-1, 1, 1 << 16).astype(self.np.float32), most)
        self.results = self.np.zeros(most, self.np.float32)
        self.threads = threads

    def name(self) -> str:
        """Versions of what does the work."""
        try:
            blas = self.np.show_config(mode="dicts")["Build Dependencies"]["blas"]
            return f"numpy {self.np.__version__}, {blas.get('name')} {blas.get('version')}"
        except (TypeError, KeyError):
            return f"numpy {self.np.__version__}"

    def operand(
        self, arena: Any, at: int, batch: int, rows: int, cols: int, ld: int, *, transposed: bool
    ) -> tuple[Any, int]:
        """A view of the arena from ``at`` on, and where the next one may start."""
        if transposed:
            rows, cols = cols, rows
        view = arena[at : at + batch * rows * ld].reshape(batch, rows, ld)[:, :, :cols]
        view = view.transpose(0, 2, 1) if transposed else view
        return (view[0] if batch == 1 else view), at + (batch * rows * ld + 15) // 16 * 16

    def product(self, a: Any, b: Any, c: Any) -> Callable[[], Any]:
        """A function that multiplies once."""
        matmul = self.np.matmul
        return lambda: matmul(a, b, out=c)

    def timed(self, call: Callable[[], Any], times: int) -> tuple[float, float]:
        """Seconds for that many calls, and the wall time they took."""
        clock = time.thread_time_ns if self.threads == 1 else time.perf_counter_ns
        wall, start = time.perf_counter_ns(), clock()
        for _ in range(times):
            call()
        return (clock() - start) / 1e9, (time.perf_counter_ns() - wall) / 1e9


class Torch(Numpy):
    """Products with torch, on the CPU or a CUDA device."""

    def __init__(self, dtype: str, device: str, threads: int, most: int) -> None:
        self.torch = importlib.import_module("torch")
        self.device, self.threads = device, threads
        if device == "cuda" and not self.torch.cuda.is_available():
            sys.exit("this torch finds no CUDA device")
        self.torch.set_num_threads(threads)
        self.torch.backends.cuda.matmul.allow_tf32 = False
        random_ones = self.torch.empty(most, device=device).uniform_(-1, 1)
        self.arena = random_ones.to(getattr(self.torch, dtype))
        self.results = self.torch.zeros_like(self.arena)

    def name(self) -> str:
        """Versions of what does the work."""
        where = f", {self.torch.cuda.get_device_name()}" if self.device == "cuda" else ""
        return f"torch {self.torch.__version__}{where}"

    def operand(
        self, arena: Any, at: int, batch: int, rows: int, cols: int, ld: int, *, transposed: bool
    ) -> tuple[Any, int]:
        """A view of the arena from ``at`` on, and where the next one may start."""
        if transposed:
            rows, cols = cols, rows
        view = arena[at : at + batch * rows * ld].view(batch, rows, ld)[:, :, :cols]
        view = view.transpose(1, 2) if transposed else view
        return (view[0] if batch == 1 else view), at + (batch * rows * ld + 15) // 16 * 16

    def product(self, a: Any, b: Any, c: Any) -> Callable[[], Any]:
        """A function that multiplies once."""
        multiply = self.torch.mm if a.dim() == 2 else self.torch.bmm
        return lambda: multiply(a, b, out=c)

    def timed(self, call: Callable[[], Any], times: int) -> tuple[float, float]:
        """Seconds for that many calls, and the wall time they took."""
        if self.device == "cpu":
            return super().timed(call, times)
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        seconds = start.elapsed_time(end) / 1e3
        return seconds, seconds


def measure(backend: Numpy, shape: Shape) -> tuple[float, float]:
    """Seconds a call (the shortest of some blocks: what disturbs one lengthens it), and CPU time by wall time."""
    m, n, k, layout, lda, ldb, batch = shape
    a, at = backend.operand(backend.arena, 0, batch, m, k, lda, transposed=layout[0] == "t")
    b, at = backend.operand(backend.arena, at, batch, k, n, ldb, transposed=layout[1] == "t")
    # Results lie elsewhere: as operands of other products they would grow until they overflow.
    c, _ = backend.operand(backend.results, at, batch, m, n, n, transposed=False)
    call = backend.product(a, b, c)
    backend.timed(call, 1)
    once = max(1e-7, backend.timed(call, 1)[0])
    times = max(1, math.ceil(BLOCK_S / once))
    blocks = [backend.timed(call, times) for _ in range(blocks_of(once))]
    return min(s for s, _ in blocks) / times, sum(s for s, _ in blocks) / max(1e-9, sum(w for _, w in blocks))


def host() -> str:
    """Processor and system, for people."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - no imports for one line
            model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), model)
    except OSError:
        pass
    return f"{model}, {platform.system()} {platform.machine()}"


def open_backend(args: argparse.Namespace, most: int) -> Numpy:
    """Torch where it is installed, else numpy; or the one asked for."""
    for name, kind in (("torch", Torch), ("numpy", Numpy)):
        if args.backend in ("auto", name):
            try:
                return kind(args.dtype, args.device, args.threads, most)
            except ImportError:
                continue
    sys.exit(f"not installed: {'numpy, torch' if args.backend == 'auto' else args.backend}")


def settled(rounds: Sequence[float]) -> bool:
    """Whether the two shortest rounds agree: what disturbs a round lengthens it, and hardly twice by the same."""
    low = sorted(rounds)[:2]
    return len(rounds) >= LEAST_ROUNDS and low[1] <= low[0] * (1 + AGREE)


def read_rows(path: str, dtype: str) -> dict[Shape, list[float]]:
    """Rounds (ms) of each shape in an earlier output."""
    seen: dict[Shape, list[float]] = {}
    with open(path, encoding="utf-8") as lines:  # noqa: PTH123 - no imports for one line
        for line in lines:
            r = line.strip().split(",")
            if len(r) == HEADER.count(",") + 1 and r[0].isdigit() and r[3] == dtype:
                shape = (int(r[0]), int(r[1]), int(r[2]), r[4], int(r[5]), int(r[6]), int(r[7]))
                seen.setdefault(shape, []).append(float(r[8]))
    return seen


def read_shapes(path: str) -> list[Shape]:
    """Lines ``m,n,k,layout,lda,ldb,batch``."""
    with open(path, encoding="utf-8") as lines:  # noqa: PTH123 - no imports for one line
        rows = [line.strip().split(",") for line in lines if line.strip()]
    return [(int(r[0]), int(r[1]), int(r[2]), r[3], int(r[4]), int(r[5]), int(r[6])) for r in rows]


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=60, help="seconds to spend (60)")
    parser.add_argument("--backend", choices=("auto", "torch", "numpy"), default="auto")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=sorted(ITEM_BYTES), default="float32")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    parser.add_argument("--memory-mb", type=float, default=256, help="for the three matrices (256)")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other shapes")
    parser.add_argument("--shapes", help="file of lines m,n,k,layout,lda,ldb,batch to measure first")
    parser.add_argument("--only", action="store_true", help="measure no other shapes than those of --shapes")
    parser.add_argument("--resume", help="an earlier output of the same seed and budget; what it holds is not repeated")
    args = parser.parse_args(arguments)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ[name] = str(args.threads)  # BLAS reads them when it is loaded
    listed = read_shapes(args.shapes) if args.shapes else []
    most = max([int(args.memory_mb * 1e6 / ITEM_BYTES[args.dtype]), *map(elements, listed)])
    backend = open_backend(args, most + 64)
    started = time.perf_counter()
    clock = "cuda events" if args.device == "cuda" else "thread CPU time" if args.threads == 1 else "wall time"
    facts = [("host", host()), ("backend", backend.name()), ("threads", args.threads), ("clock", clock)]
    for key, value in [*facts, ("operands", "random, warm")]:
        print(f"# {key}: {value}")
    print(HEADER, flush=True)
    if not args.only:
        seconds, share = measure(backend, shape_of(256, 256, 256))
        listed += plan(args.budget * min(1, share), 2 * 256**3 / seconds, most, args.seed)
    seen = read_rows(args.resume, args.dtype) if args.resume else {}
    rng = random.Random(args.seed)  # noqa: S311 - no secrets here
    for number in range(MOST_ROUNDS):
        wanted = [s for s in listed if len(seen.get(s, ())) <= number and not settled(seen.get(s, ()))]
        for shape in rng.sample(wanted, len(wanted)):
            if time.perf_counter() - started > args.budget:
                return
            seconds, share = measure(backend, shape)
            seen.setdefault(shape, []).append(seconds * 1e3)
            m, n, k, layout, lda, ldb, batch = shape
            print(f"{m},{n},{k},{args.dtype},{layout},{lda},{ldb},{batch},{seconds * 1e3:.6g},{share:.3f}", flush=True)


if __name__ == "__main__":
    main()
