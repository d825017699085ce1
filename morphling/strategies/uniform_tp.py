"""Uniform tensor parallelism around a parameter server: what is left of Cleave without its solver.

Each linear layer's GEMM is cut into equal rectangles for all devices, regardless of their speed, links and memory.
Weights, optimizer and all that is no GEMM of a linear layer stay on the coordinator; levels of the GEMM DAG are
barriers; no shard is kept from one level to the next.  Blocks that are lost are cut again for those who are left.
Source: the uniform split that the authors of Cleave put beside their own (arXiv 2512.22142).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from morphling.interfaces.view import View
from morphling.planning.costs import Gemm, Rates
from morphling.planning.levels import LevelConfig, LevelStrategy
from morphling.planning.rectangles import Tiling
from morphling.planning.uniform import uniform_tiling
from morphling.types import IntArray

__all__ = ["UniformTp", "UniformTpConfig"]


@dataclass(frozen=True)
class UniformTpConfig(LevelConfig):
    """Configuration of uniform tensor parallelism."""


class UniformTp(LevelStrategy):
    """Equal blocks of the linear layers' GEMMs on all devices, all else on the coordinator; see the module."""

    Config: ClassVar[type] = UniformTpConfig
    name: ClassVar[str] = "uniform-tp"
    config: UniformTpConfig

    def tile(self, gemm: Gemm, rates: Rates, here: IntArray, view: View) -> Tiling:
        """Equal rectangles in the devices' order."""
        names = view.fleet.names()
        return uniform_tiling(gemm, rates, names=[names[i] for i in here.tolist()], **self.limits(view))

    def report(self) -> dict[str, Any]:
        """Besides: into how many rectangles each shape was cut, lost blocks included."""
        cut = {f"{t.gemm.m} x {t.gemm.n} x {t.gemm.k}": len(t) for t in self.tilings.values()}
        return {**super().report(), "rectangles": cut}

    def assumptions(self) -> list[str]:
        """What holds of every run."""
        return [*ASSUMPTIONS[:2], *self.on_the_coordinator(), *ASSUMPTIONS[2:]]


ASSUMPTIONS = [
    "every GEMM is cut into equal rectangles for all devices that are online, in their order",
    "levels of the GEMM DAG are barriers; no shard is kept from one level to the next",
    "the coordinator has memory for weights, optimizer states and activations (not checked)",
    "each device receives its own copy of its rows and columns (no multicast)",
]
