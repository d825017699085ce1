"""A cloud reference: how long GPUs in one place take for the same training, by a formula.

time = FLOPs of the training step / (MFU · peak · GPUs).  The scenario's devices do nothing; nothing is sent.  It is
what the time of devices is put beside, not a model of a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from morphling.errors import Infeasible, PlanError
from morphling.interfaces.strategy import Covers, Decision, Decisions, Done, IterationDone, Strategy, WakeAt
from morphling.interfaces.view import View
from morphling.types import DType
from morphling.units import format_bytes
from morphling.workload.counts import Optimizer, state_bytes, training_flops

__all__ = ["GPUS", "Cloud", "CloudConfig", "Gpu"]


@dataclass(frozen=True)
class Gpu:
    """A cloud GPU by its maker's data sheet.

    peak_flops : FLOP/s in 16 bits, dense;  memory_bytes : as sold
    mfu, mfu_source : share of the peak that training of large transformers reaches, if it is published; else None
    """

    title: str
    peak_flops: float
    memory_bytes: int
    mfu: float | None = None
    mfu_source: str = ""


GPUS = {
    "a100": Gpu(
        "NVIDIA A100 80 GB (SXM)",
        312e12,
        80 * 10**9,
        0.5,
        "Narayanan et al., SC 2021: 52 % of peak end to end on 3,072 A100, rounded down",
    ),
    "h100": Gpu("NVIDIA H100 80 GB (SXM)", 989e12, 80 * 10**9),
    "h200": Gpu("NVIDIA H200 141 GB (SXM)", 989e12, 141 * 10**9),
}
"""Peaks and memory: NVIDIA data sheets, without sparsity."""


@dataclass(frozen=True)
class CloudConfig:
    """Configuration of the cloud reference.

    gpu : ``a100`` (312 TFLOP/s in 16 bits, 80 GB), ``h100`` (989, 80 GB) or ``h200`` (989, 141 GB)
    gpus : how many; ``fewest``: as few as hold the states
    mfu : model FLOPs utilisation: share of the peak that useful FLOPs reach, in (0, 1]; left out, a published value for
        the a100; the others need one
    mfu_source : where ``mfu`` comes from, for the report
    optimizer : which states have to fit: ``adam-mixed`` (16 bytes a parameter), ``sgd``, …
    """

    gpu: Literal["a100", "h100", "h200"] = "a100"
    gpus: int | Literal["fewest"] = "fewest"
    mfu: float | None = None
    mfu_source: str = "given"
    optimizer: Optimizer = "adam-mixed"

    def __post_init__(self) -> None:
        """Refuse shares that are none, and GPUs without one."""
        if self.gpus != "fewest" and self.gpus < 1:
            raise ValueError(f"gpus: at least 1, not {self.gpus}")
        if self.mfu is None and GPUS[self.gpu].mfu is None:
            raise ValueError(f"mfu: none is known for the {self.gpu}; give the share of the peak, and its mfu_source")
        if self.mfu is not None and not 0 < self.mfu <= 1:
            raise ValueError(f"mfu: a share above 0 and up to 1, not {self.mfu:g}")
        if self.mfu is None and self.mfu_source != "given":
            raise ValueError("mfu_source: it is the source of mfu, which is not given")


class Cloud(Strategy):
    """Cloud GPUs instead of the devices, by a formula: FLOPs over MFU, peak and their number; see the module."""

    Config: ClassVar[type] = CloudConfig
    name: ClassVar[str] = "cloud"
    config: CloudConfig

    def __init__(self, config: CloudConfig | None = None) -> None:
        super().__init__(config or CloudConfig())
        self.total_s = 0.0
        self.finished = self.gpus = 0
        self.flops = 0

    @property
    def enforces_memory(self) -> bool:
        """Devices hold nothing."""
        return False

    @property
    def covers(self) -> Covers:
        """A formula has no rows."""
        return "none"

    @property
    def mfu(self) -> tuple[float, str]:
        """The share of the peak, and where it comes from."""
        gpu = GPUS[self.config.gpu]
        if self.config.mfu is not None:
            return self.config.mfu, self.config.mfu_source
        assert gpu.mfu is not None  # noqa: S101 - the config refuses such GPUs
        return gpu.mfu, gpu.mfu_source

    def start(self, view: View) -> Decisions:
        """Work out the time of an iteration, and wait for it."""
        work, gpu = view.workload, GPUS[self.config.gpu]
        if work.dtype not in {DType.FLOAT16, DType.BFLOAT16}:
            raise PlanError(f"cloud: peaks are known in float16 and bfloat16, not in {work.dtype.label}")
        states = state_bytes(work.model, self.config.optimizer)
        fewest = -(-states // gpu.memory_bytes)
        self.gpus = fewest if self.config.gpus == "fewest" else self.config.gpus
        if self.gpus < fewest:
            raise Infeasible(
                f"states of {work.model.name} are {format_bytes(states)}, and {self.gpus} x {gpu.title} have"
                f" {format_bytes(self.gpus * gpu.memory_bytes)}; gpus: {fewest} would hold them"
            )
        self.flops = training_flops(work.model, work.batch_size, work.sequence_length)
        self.total_s = self.flops / (self.mfu[0] * gpu.peak_flops * self.gpus)
        self.finished = 0
        return WakeAt(self.total_s, "iteration")

    def on_timer(self, tag: Any, view: View) -> Decisions:  # noqa: ARG002 - there is one timer
        """An iteration has passed."""
        self.finished += 1
        out: list[Decision] = [IterationDone()]
        if self.finished >= view.iterations:
            return [*out, Done(f"{self.finished} iterations")]
        return [*out, WakeAt(self.total_s * (self.finished + 1), "iteration")]

    def report(self) -> dict[str, Any]:
        """The numbers of the formula, and what it leaves out."""
        gpu, (mfu, source) = GPUS[self.config.gpu], self.mfu
        out: dict[str, Any] = {
            "strategy": self.name,
            "gpu": gpu.title,
            "gpus": self.gpus or self.config.gpus,
            "peak_flops": gpu.peak_flops,
            "mfu": mfu,
            "mfu_source": source,
            "training_flops": self.flops,
            "not_replayed": f"the cloud reference, {self.gpus or self.config.gpus} x {gpu.title} at {mfu:.0%} of peak,"
            " is a formula for the time of an iteration; the fleet does nothing",
            "assumptions": [
                "FLOPs are those of the model's matrix products, LM head and attention included, without recomputation",
                "what lowers the share of the peak, communication between GPUs included, is in mfu",
                "states are divided evenly over the GPUs; activations are not checked",
                "the scenario's devices, links and churn play no part",
            ],
        }
        return out | ({"estimate_s": self.total_s} if self.total_s else {})
