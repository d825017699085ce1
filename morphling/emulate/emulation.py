"""One emulation: products go to the fleet's clock and come back as tiles; losses are read as the script makes them."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from morphling.emulate.clock import FleetClock
from morphling.emulate.interception import Product
from morphling.emulate.products import Cut, Threads, numerics_error, tolerance
from morphling.emulate.replicas import ReplicaClock
from morphling.errors import MorphlingError, RunError
from morphling.types import SECOND_NS, DType

__all__ = ["Emulation", "Loss", "host_memory_bytes"]


@dataclass(frozen=True)
class Loss:
    """One backward pass: the loss, when its backward pass began, and the step that followed.

    loss : the value it began from; NaN if that was no scalar
    """

    step: int
    loss: float
    backward_s: float
    step_end_s: float


def host_memory_bytes() -> int:
    """The most memory that this process has held (resident), bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # rusage would count what the process that started this one held
        lines = [line.split() for line in status.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            if line[:1] == ["VmHWM:"]:
                return int(line[1]) * 1024
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(held) if sys.platform == "darwin" else int(held) * 1024


class Emulation:
    """Computes a script's products on ``clock``, and follows its losses.

    check_numerics : compare every assembled product with the unsharded one; ``RunError`` above `products.tolerance`
    batched : where products with a batch (attention) run: ``devices``, each product cut on its own, or ``coordinator``
    say : called with a line for every step

    Attributes
    ----------
    losses : of the steps that ended
    failed : why the fleet could not go on, once it could not; a script may swallow the error, the run may not
    """

    def __init__(
        self,
        clock: FleetClock | ReplicaClock,
        *,
        check_numerics: bool = False,
        batched: str = "devices",
        say: Callable[[str], object] = str,
    ) -> None:
        self.clock, self.check_numerics, self.batched, self.say = clock, check_numerics, batched, say
        self.threads = Threads()
        self.losses: list[Loss] = []
        self.steps = 0
        self.failed: MorphlingError | None = None
        self.worst = 0.0
        self.checked = 0
        self._open: list[tuple[float, int]] = []

    # ------------------------------------------------------------------------------------------------------- products

    def product(self, product: Product) -> torch.Tensor | None:
        """The product as the tiles that got done on the fleet."""
        if self.batched == "coordinator" and product.a.dim() == 3:
            return None
        with self._going_on():
            return self._computed(product)

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Once the fleet cannot go on, nothing does."""
        if self.failed is not None:
            raise self.failed
        try:
            yield
        except MorphlingError as error:
            self.failed = error
            raise

    def _computed(self, product: Product) -> torch.Tensor:
        name, shape, dtype, phase, a, b, bias, beta, alpha = product[:9]
        work = self.clock.product(name, shape, dtype, phase)
        if work.cut is None:
            work.cut = Cut(work.tiles, self.threads)
        out: torch.Tensor = work.cut.run(a, b, bias, beta=beta, alpha=alpha, poison=self.check_numerics)
        if self.check_numerics:
            self._check(product, out)
        return out

    def central(self, name: str, flops: float, dtype: DType) -> None:
        """The coordinator computes."""
        with self._going_on():
            self.clock.central(name, flops, dtype)

    def _check(self, product: Product, out: torch.Tensor) -> None:
        error = numerics_error(out, product.plain())
        allowed = tolerance(out.dtype, product.shape.k)
        self.checked += 1
        self.worst = max(self.worst, error)
        if not error <= allowed:
            what = "an element that no tile wrote" if error == float("inf") else f"a relative error of {error:.3g}"
            raise RunError(
                f"{product.name} {product.shape}: the product assembled from its tiles has {what};"
                f" rounding explains {allowed:.3g}"
            )

    # --------------------------------------------------------------------------------------------------------- losses

    def backward(self, roots: Any) -> None:
        """A backward pass begins at these tensors."""
        listed = [roots] if isinstance(roots, torch.Tensor) else list(roots)
        scalar = all(isinstance(x, torch.Tensor) and x.numel() == 1 and x.device.type != "meta" for x in listed)
        value = sum(float(x.detach()) for x in listed) if scalar else float("nan")
        self._open.append((value, self.clock.now_ns))

    def step(self) -> None:
        """An optimizer stepped: the losses since the last step are its own."""
        with self._going_on():
            self.clock.step()
        self.steps += 1
        now = self.clock.now_ns / SECOND_NS
        self.losses += [Loss(self.steps, value, ns / SECOND_NS, now) for value, ns in self._open]
        shown = ", ".join(f"{value:.6g}" for value, _ in self._open) or "none"
        self.say(f"step {self.steps:>4}  loss {shown}  virtual time {now:,.3f} s")
        self._open = []

    def losses_csv(self) -> str:
        """The losses as CSV; floats with all their digits."""
        lines = ["step,loss,backward_s,step_end_s"]
        lines += [f"{x.step},{x.loss!r},{x.backward_s!r},{x.step_end_s!r}" for x in self.losses]
        return "\n".join(lines) + "\n"
