"""The profiled executor: GEMM rows by a latency model fitted to measurements, all other rows by the roofline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from morphling.errors import EngineError, InputError
from morphling.executors.analytic import Analytic
from morphling.executors.gemm_model import extrapolated, seconds
from morphling.executors.listed import WHOLE_LAYERS, calls_of, rest_seconds, with_list
from morphling.fleet import Fleet
from morphling.fleet.gemm import GemmFit
from morphling.interfaces.executor import Executor
from morphling.interfaces.tasks import TaskTable
from morphling.types import FAR_NS, SECOND_NS, BoolArray, DType, FloatArray, IntArray, Kind, item_bytes

__all__ = ["Profiled", "ProfiledConfig"]

BLOCK: Final = 8192
"""Rows at once: the formula's temporary columns then stay in a core's cache."""
LAYOUT: Final = "contiguous row-major A[m x k] and B[k x n]"


@dataclass(frozen=True)
class ProfiledConfig:
    """What to do with devices whose profile has no fitted model.

    missing : ``refuse`` the scenario, or time these devices by the ``analytic`` roofline (and say so)
    """

    missing: Literal["refuse", "analytic"] = "refuse"


class Profiled(Executor):
    """GEMM rows take what the fitted model of their device says; see `morphling.executors.gemm_model`.

    A row says m, n, k and FLOPs, and nothing of layout: operands are taken as contiguous and row-major.  A row of more
    (or fewer) FLOPs than 2·m·n·k is that many products in one call.  A row of whole layers that names its products
    takes the sum of their calls, each with a launch, and the rest of its FLOPs and traffic by the roofline
    (`morphling.executors.listed`).  Rows without either (element-wise work, optimizers), devices without a fitted model
    where that is allowed, and the coordinator if its profile has none, are timed by the roofline of `Analytic`.
    ``describe`` and ``notes`` count rows by how they were timed, and those that lie outside the sampled range.
    """

    Config: ClassVar[type] = ProfiledConfig
    stationary = True

    def __init__(self, config: ProfiledConfig | None = None, *, fleet: Fleet) -> None:
        self.config = config or ProfiledConfig()
        self.fleet = fleet
        self.analytic = Analytic(fleet=fleet)
        groups = int(fleet.group.max()) + 1 if fleet.size else 0
        empty: Mapping[DType, GemmFit] = {}
        self.fits: list[Mapping[DType, GemmFit]] = [*(fleet.gemm_fits or [empty] * groups), fleet.coordinator.gemm_fits]
        for group in range(groups):
            if not self.fits[group] and self.config.missing == "refuse":
                raise InputError(f"fleet.{group}.profile: {self._named(group)} has no fitted model, {_WAYS_OUT}")
        self.counts = {"fitted": 0, "extrapolated": 0, "roofline_gemm": 0, "roofline_other": 0}
        self.beyond: dict[str, int] = {}

    def check(self, dtype: DType) -> None:
        """Whether every device can time GEMMs of the workload's dtype."""
        if self.config.missing == "analytic":
            return
        for group, fits in enumerate(self.fits[:-1]):
            if dtype not in fits:
                there = ", ".join(d.label for d in fits)
                raise InputError(
                    f"fleet.{group}.profile: {self._named(group)} has a fitted model for {there}, not for the "
                    f"workload's dtype {dtype.label}, {_WAYS_OUT}"
                )

    def durations(self, tasks: TaskTable, start_ns: int) -> IntArray:
        """Nanoseconds for each row; ``EngineError`` as `Analytic`, and for a dtype without a fitted model."""
        shaped = (tasks.kind == Kind.GEMM) & (tasks.m > 0) & (tasks.n > 0) & (tasks.k > 0) & (tasks.flops > 0)
        listed = with_list(tasks)
        shaped |= listed
        slot = np.append(self.fleet.group, len(self.fits) - 1)[tasks.device]
        out = self.analytic.durations(tasks, start_ns)
        timed = np.zeros(len(tasks), bool)
        for s in np.unique(slot[shaped]).tolist():
            for dtype, fit in self.fits[s].items():
                mine = shaped & (slot == s) & (tasks.dtype == dtype)
                timed |= mine
                self._fitted(out, tasks, np.flatnonzero(mine & ~listed), fit, dtype, self._named(s))
                self._sums(out, tasks, np.flatnonzero(mine & listed), fit, dtype, self._named(s))
        self._check_rest(tasks, shaped & ~timed, slot)
        self.counts["fitted"] += int(timed.sum())
        self.counts["roofline_other"] += int(np.sum((out > 0) & ~timed & ~shaped))
        return out

    def estimate(self, tasks: TaskTable) -> IntArray:
        """As `durations`, without being counted among the rows that ran."""
        counts, beyond = dict(self.counts), dict(self.beyond)
        out = self.durations(tasks, 0)
        self.counts, self.beyond = counts, beyond
        return out

    def _fitted(
        self, out: IntArray, tasks: TaskTable, rows: NDArray[np.intp], fit: GemmFit, dtype: DType, name: str
    ) -> None:
        for at in range(0, len(rows), BLOCK):
            block = rows[at : at + BLOCK]
            m, n, k = (column[block].astype(np.float64) for column in (tasks.m, tasks.n, tasks.k))
            products = tasks.flops[block] / (2.0 * m * n * k)
            took = seconds(fit.parameters, item_bytes(dtype), m, n, k, products)
            self._take(out, block, took, extrapolated(fit, m, n, k, products), name)

    def _sums(
        self, out: IntArray, tasks: TaskTable, rows: NDArray[np.intp], fit: GemmFit, dtype: DType, name: str
    ) -> None:
        """Rows that name their products: each distinct list is timed once."""
        if not len(rows):
            return
        calls = calls_of(tasks, rows, np.zeros(len(rows), np.int32))
        m, n, k = (side.astype(np.float64) for side in (calls.m, calls.n, calls.k))
        took = calls.seconds(seconds(fit.parameters, item_bytes(dtype), m, n, k, calls.batch))
        beyond = calls.any(extrapolated(fit, m, n, k, calls.batch))
        self._take(out, rows, took + rest_seconds(tasks, rows, self.analytic), beyond, name)

    def _take(self, out: IntArray, rows: NDArray[np.intp], took: FloatArray, beyond: BoolArray, name: str) -> None:
        """Durations of some rows, and how many of them were extrapolated."""
        if (longest := float(took.max())) >= FAR_NS / SECOND_NS:
            raise EngineError(f"row {int(rows[took.argmax()])} would compute for {longest:.3g} s on {name}")
        out[rows] = np.rint(took * SECOND_NS)
        if count := int(beyond.sum()):
            self.counts["extrapolated"] += count
            self.beyond[name] = self.beyond.get(name, 0) + count

    def _check_rest(self, tasks: TaskTable, rest: BoolArray, slot: NDArray[Any]) -> None:
        """GEMM rows without a fitted model are the coordinator's, or those of devices where the scenario allows it."""
        here = rest & (slot < len(self.fits) - 1)
        if here.any() and self.config.missing == "refuse":
            i = int(np.argmax(here))
            raise EngineError(
                f"row {i} is a GEMM of {DType(int(tasks.dtype[i])).label}; for it {self._named(int(slot[i]))} has no "
                f"fitted model, {_WAYS_OUT}"
            )
        self.counts["roofline_gemm"] += int(rest.sum())

    def _named(self, slot: int) -> str:
        if slot == len(self.fits) - 1:
            return f"the coordinator ({self.fleet.coordinator.name})"
        first = int(np.argmax(self.fleet.group == slot))
        return self.fleet.profile_names[int(self.fleet.profile[first])]

    def describe(self) -> dict[str, Any]:
        """Provenance: parameters, sampled ranges and held-out errors of each fit, and how many rows were timed how."""
        fits = {
            f"{self._named(slot)}, {dtype.label}": {
                "source": f"{fit.kind}: {fit.source}",
                "held_out_error": {"median": fit.median_error, "p90": fit.p90_error},
                "ranges": {name: list(ends) for name, ends in fit.ranges.items()},
                "parameters": asdict(fit.parameters),
            }
            for slot, of_slot in enumerate(self.fits)
            for dtype, fit in of_slot.items()
        }
        fitted = self.counts["fitted"]
        return {
            "executor": "profiled",
            "model": "t = launch + max(compute, memory), fitted to measured GEMMs; other rows by the analytic roofline",
            "whole_layers": WHOLE_LAYERS,
            "layout": LAYOUT,
            "missing": self.config.missing,
            "fits": fits,
            "analytic_profiles": sorted({self._named(s) for s, of_slot in enumerate(self.fits) if not of_slot}),
            "rows": dict(self.counts),
            "extrapolated_share": self.counts["extrapolated"] / fitted if fitted else 0.0,
            "counted": "a table of rows that is dispatched again unchanged is timed, and counted, once",
            "not_modelled": [
                "what part of a fitted duration waits for memory: a lower clock stretches all of it",
                "strides and transposed operands of rows",
                "cold operands",
            ],
        }

    def notes(self) -> tuple[str, ...]:
        """Extrapolated rows, and rows that the roofline timed."""
        out = [f"GEMMs are timed by fitted models, for {LAYOUT}"]
        fitted = self.counts["fitted"]
        if self.beyond:
            which = ", ".join(f"{count:,} on {name}" for name, count in sorted(self.beyond.items()))
            beyond = self.counts["extrapolated"]
            out.append(
                f"{beyond:,} of {fitted:,} fitted durations ({beyond / fitted:.1%}) are extrapolated: "
                f"their shapes lie outside the sampled range ({which})"
            )
        plain = sorted({self._named(s) for s, fits in enumerate(self.fits[:-1]) if not fits})
        if plain:
            out.append(
                f"no fitted model, timed by the analytic roofline as 'missing: analytic' says: {', '.join(plain)}"
            )
        if self.counts["roofline_gemm"]:
            out.append(f"{self.counts['roofline_gemm']:,} GEMM rows were timed by the analytic roofline")
        return tuple(out)


_WAYS_OUT: Final = (
    "which 'mode: profiled' needs: make one with 'morphling profiles calibrate' or 'import-samples', or write "
    "'missing: analytic' beside the mode to time such devices by the roofline"
)
