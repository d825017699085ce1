"""What emulating a script costs and how far its numbers are from plain PyTorch; prints each beside its target.

python benchmarks/emulate.py            everything (a minute or two)
python benchmarks/emulate.py memory N   one process on N devices: its peak memory, bytes
python benchmarks/emulate.py trace      one process that traces Llama 2 of 7 billion parameters, without arithmetic
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from morphling.emulate.clock import FleetClock
from morphling.emulate.emulated_run import EmulatedRun
from morphling.emulate.emulation import Emulation, host_memory_bytes
from morphling.emulate.interception import Interception
from morphling.emulate.script import watched_by
from morphling.executors.analytic import Analytic
from morphling.fleet.published import fleet_from_arrays
from morphling.strategies.cleave import Cleave
from morphling.testing import tiny_workload
from morphling.types import DType

WIDTH, BATCH, STEPS = 1536, 1024, 20


def fleet(devices: int):
    """Slow devices behind fast links, so that every one of them is worth a tile."""
    rng = np.random.default_rng(0)
    return fleet_from_arrays(
        flops=rng.uniform(1e10, 4e10, devices),
        down_bps=np.full(devices, 10_000_000_000),
        up_bps=np.full(devices, 10_000_000_000),
        memory_bytes=1 << 34,
        dtypes=tuple(DType),
        name="bench",
    )


def emulation(devices: int) -> Emulation:
    f = fleet(devices)
    return Emulation(FleetClock(EmulatedRun(f, tiny_workload(), Cleave, Analytic(fleet=f))))


class Training:
    """Three wide linear layers: nearly all of a step is matrix products."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        self.model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        self.x, self.y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)

    def step(self) -> float:
        """One step; its loss."""
        loss = torch.nn.functional.mse_loss(self.model(self.x), self.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def seconds(call: Callable[[], object], times: int = 5) -> float:
    """CPU time of the shortest of some calls: what else the machine does only ever makes it longer."""
    call()
    taken = []
    for _ in range(times):
        begun = time.process_time()
        call()
        taken.append(time.process_time() - begun)
    return min(taken)


class Nothing(TorchDispatchMode):
    """What any mode costs."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Whole:
    """Computes products as they are."""

    def product(self, product):  # noqa: D102
        return product.plain()

    def central(self, *_):  # noqa: D102
        pass


def an_op() -> None:
    a, b = torch.randn(8, 8), torch.randn(8, 8)

    def thousand(op):
        for _ in range(1000):
            op(a, b)

    print("\ninterception alone, microseconds an op more than plain (target: at most 10)")
    plain = {op: seconds(lambda op=op: thousand(op), 15) * 1e3 for op in (torch.mm, torch.add)}
    for name, mode in (
        ("a mode that does nothing", Nothing()),
        ("interception, computed whole", Interception(Whole())),
    ):
        with mode:
            more = {op: seconds(lambda op=op: thousand(op), 15) * 1e3 - plain[op] for op in plain}
        print(f"  {name:<30} mm {more[torch.mm]:5.1f}   add {more[torch.add]:5.1f}")


def step_time() -> None:
    plain = seconds(Training().step)
    flops = 2 * BATCH * WIDTH * WIDTH * 8
    print(f"\na training step of 3 layers {WIDTH} x {WIDTH}, batch {BATCH}, on {torch.get_num_threads()} threads")
    print(f"  plain PyTorch  {plain * 1e3:7.1f} ms  ({flops / plain / 1e9:.0f} GFLOP/s)")
    for devices, target in ((8, "-"), (64, "1.5"), (1024, "4")):
        e = emulation(devices)
        training = Training()
        with watched_by(e, print):
            taken = seconds(training.step)
            tiles = [len(w.tiles) for w in e.clock.kept.values()]
        print(
            f"  {devices:>5} devices  {taken * 1e3:7.1f} ms  {taken / plain:5.2f} of plain (target: at most {target});"
            f" {min(tiles)} to {max(tiles)} tiles a product"
        )


def deviation() -> None:
    def run():
        training = Training()
        losses = [training.step() for _ in range(STEPS)]
        return np.array(losses), [p.grad.clone() for p in training.model.parameters()]

    plain, gradients = run()
    with watched_by(emulation(64), print):
        losses, tiled = run()
    off = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(gradients, tiled, strict=True))
    print(f"\nrelative difference from plain PyTorch after {STEPS} steps on 64 devices (target: at most 1e-5)")
    print(f"  losses {np.abs(losses / plain - 1).max():.1e}   gradients {off:.1e}")


def memory() -> None:
    print("\npeak memory of the process (target: at 1,024 devices at most 1.1 of that at 8)")
    first = None
    for devices in (8, 64, 1024):
        command = [sys.executable, __file__, "memory", str(devices)]
        held = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        first = first or held
        print(f"  {devices:>5} devices  {held / 2**20:7.1f} MiB  {held / first:5.3f}")


def trace() -> None:
    """In this process: CPU seconds without the start of Python and torch, wall seconds, products, peak memory."""
    from morphling.emulate.tracing import trace_script

    torch.set_num_threads(1)
    wall, cpu = time.perf_counter(), time.process_time()
    traced = trace_script(Path(__file__).resolve().parents[1] / "examples" / "train_llama.py", ())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        f"  {len(traced.gemms)} products of {traced.flops / 1e12:.0f} TFLOP in {cpu:.1f} s of CPU time ({wall:.1f} s of"
        f" the clock), peak memory {host_memory_bytes() / 2**20:.0f} MiB"
    )


def traces() -> None:
    print("\na script of 6.7 billion parameters, traced without arithmetic (target: at most 2,048 MiB)", flush=True)
    for _ in range(2):
        subprocess.run([sys.executable, __file__, "trace"], check=True)


def main() -> None:
    if sys.argv[1:2] == ["trace"]:
        trace()
        return
    if sys.argv[1:2] == ["memory"]:
        training = Training()
        with watched_by(emulation(int(sys.argv[2])), print):
            for _ in range(STEPS):
                training.step()
        print(host_memory_bytes())
        return
    torch.set_num_threads(1)  # so that CPU time is what a step takes
    an_op()
    step_time()
    deviation()
    memory()
    traces()


if __name__ == "__main__":
    main()
