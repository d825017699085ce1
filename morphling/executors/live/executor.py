"""The live executor: GEMM rows take what their product takes in a partition of this host, scaled to the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np

from morphling.errors import EngineError, InputError, RunError
from morphling.executors.analytic import Analytic
from morphling.executors.listed import WHOLE_LAYERS, calls_of, rest_flops, rest_seconds, with_list
from morphling.executors.live.backends import open_back_end
from morphling.executors.live.cache import TimingCache, cache_folder
from morphling.executors.live.measuring import Measurements
from morphling.executors.live.numerics import Numerics
from morphling.executors.live.partition import BackEnd, Partition, Product
from morphling.executors.live.scaling import Scale, Speed, device_seconds, scale_of, speed_of
from morphling.fleet import Fleet
from morphling.interfaces.executor import Executor
from morphling.interfaces.recording import Recording
from morphling.interfaces.strategy import Dispatch, Strategy
from morphling.interfaces.tasks import TaskTable
from morphling.types import FAR_NS, SECOND_NS, AnyArray, BoolArray, DType, FloatArray, Int32Array, IntArray, Kind
from morphling.workload import Workload

__all__ = ["Live", "LiveConfig"]


@dataclass(frozen=True)
class LiveConfig:
    """How sub-tasks are executed on this host.

    backend : ``host`` (one CPU thread), ``cuda`` (parts of a GPU), or ``auto``: cuda where it passes its test
    numerics : multiply real operands, and compare what is assembled from sub-tasks with the product in one piece
    limiting : ``virtual`` (full speed, time dilated to the device's) or ``enforced`` (in real time at its rate)
    stand_in : ``refuse`` a dtype that the back end has no fast kernels for, or execute ``float32`` in its place
    missing : ``refuse`` a run in which no row could be executed, or let the ``analytic`` roofline time all of it
    cache : keep measurements on disk, and repeat those of earlier runs on this host
    max_measure_s : seconds that may go into executing sub-tasks; a run that would need more is refused
    """

    backend: Literal["auto", "cuda", "host"] = "auto"
    numerics: bool = False
    limiting: Literal["virtual", "enforced"] = "virtual"
    stand_in: Literal["refuse", "float32"] = "refuse"
    missing: Literal["refuse", "analytic"] = "refuse"
    cache: bool = True
    max_measure_s: float = 120.0

    def __post_init__(self) -> None:
        """Refuse a budget that means nothing."""
        if not 0 < self.max_measure_s < float("inf"):
            raise ValueError(f"max_measure_s: more than 0 s, not {self.max_measure_s}")


class Live(Executor):
    """Rows that are products of known shapes are executed on this host; others are timed by the roofline.

    Each distinct (m, n, k, dtype) is executed once in the partition that stands for the device, and its time is scaled;
    see `morphling.executors.live.scaling`.  Operands are contiguous and row-major, as a device receives them.  A row is
    one product, or several of one shape in one call; or it names its products, and takes the sum of their calls, each
    with a launch, and the rest by the roofline (`morphling.executors.listed`).  Rows without either, and all of the
    coordinator, are timed by `Analytic`; ``describe`` and ``notes`` count them apart.
    """

    Config: ClassVar[type] = LiveConfig
    stationary = True

    def __init__(self, config: LiveConfig | None = None, *, fleet: Fleet, back_end: BackEnd | None = None) -> None:
        self.config = config or LiveConfig()
        self.fleet = fleet
        self.analytic = Analytic(fleet=fleet)
        self.back_end, self.passed_over = self._opened(back_end)
        folder = cache_folder() if self.config.cache else None
        self.cache = TimingCache(self.back_end.fingerprint(), folder)
        self.measurements = Measurements(self.back_end, self.cache, self.config.max_measure_s)
        self.numerics = (
            Numerics(self.measurements, self._partition, self._executed_as) if self.config.numerics else None
        )
        self.scales: dict[DType, Scale] = {}
        self.rows = np.zeros(len(_COUNTED), np.int64)
        self.flops = np.zeros(2)
        self.tallies: dict[int, tuple[TaskTable, IntArray, FloatArray]] = {}
        self.checked: dict[str, Any] | None = None

    def _opened(self, back_end: BackEnd | None) -> tuple[BackEnd, dict[str, str]]:
        passed_over: dict[str, str] = {}
        if back_end is None:
            try:
                back_end, passed_over = open_back_end(self.config.backend)
            except InputError as error:
                raise InputError(f"execution.backend: {error}") from None
        if self.config.limiting == "enforced" and not back_end.paces:
            raise InputError(
                f"execution.limiting: the {back_end.name} back end does not pace products; use virtual, or "
                "backend: host"
            )
        return back_end, passed_over

    # ------------------------------------------------------------------------------------------------------- durations

    def check(self, dtype: DType) -> None:
        """Whether the back end executes the workload's dtype, or another may stand in for it."""
        if dtype in self.back_end.dtypes() or self.config.stand_in == "float32":
            return
        there = ", ".join(d.label for d in self.back_end.dtypes())
        raise InputError(
            f"execution.stand_in: the {self.back_end.name} back end executes {there} at speed, and the workload's "
            f"dtype is {dtype.label}. Write workload.dtype: float32; or stand_in: float32, which executes "
            f"float32 products and scales them to the devices' {dtype.label} rates"
        )

    def durations(self, tasks: TaskTable, start_ns: int) -> IntArray:
        """Nanoseconds for each row; ``EngineError`` as `Analytic`, ``RunError`` where measuring takes too long."""
        out = self.analytic.durations(tasks, start_ns)
        mine, named = self._executable(tasks), with_list(tasks)
        for dtype in [DType(d) for d in np.unique(tasks.dtype[mine]).tolist()]:
            asked = mine & (tasks.dtype == dtype)
            self._take(out, tasks, np.flatnonzero(asked & ~named), dtype, self._products)
            self._take(out, tasks, np.flatnonzero(asked & named), dtype, self._sums)
        return out

    def _take(
        self,
        out: IntArray,
        tasks: TaskTable,
        rows: IntArray,
        dtype: DType,
        seconds: Callable[[TaskTable, IntArray, DType], FloatArray],
    ) -> None:
        if not len(rows):
            return
        took = seconds(tasks, rows, dtype)
        if (longest := float(took.max())) >= FAR_NS / SECOND_NS:
            raise EngineError(f"row {int(rows[took.argmax()])} would compute for {longest:.3g} s")
        out[rows] = np.rint(took * SECOND_NS)

    def _products(self, tasks: TaskTable, rows: IntArray, dtype: DType) -> FloatArray:
        """Rows that are products of one shape."""
        m, n, k = (column[rows] for column in (tasks.m, tasks.n, tasks.k))
        asked = _Asked(tasks.device[rows], m, n, k, tasks.flops[rows], tasks.memory_bytes[rows])
        return self._executed(asked, dtype)

    def _sums(self, tasks: TaskTable, rows: IntArray, dtype: DType) -> FloatArray:
        """Rows that name their products: each distinct list is timed once for each device."""
        calls = calls_of(tasks, rows, tasks.device[rows])
        asked = _Asked(calls.owner, calls.m, calls.n, calls.k, calls.flops, calls.size(dtype))
        return calls.seconds(self._executed(asked, dtype)) + rest_seconds(tasks, rows, self.analytic)

    def estimate(self, tasks: TaskTable) -> IntArray:
        """By the roofline: a plan must not depend on what was measured before, and asking costs nothing."""
        return self.analytic.durations(tasks, 0)

    def _executable(self, tasks: TaskTable) -> BoolArray:
        """Rows of devices that are products of a known shape."""
        shaped = (tasks.kind == Kind.GEMM) & (tasks.m > 0) & (tasks.n > 0) & (tasks.k > 0) & (tasks.flops > 0)
        mine: BoolArray = (shaped | with_list(tasks)) & (tasks.device < self.fleet.size)
        return mine

    def _executed(self, calls: _Asked, dtype: DType) -> FloatArray:
        """Seconds of each call, its launch included."""
        scale = self._scale(dtype)
        device = calls.device
        which = scale.which[device]
        enforced = self.config.limiting == "enforced"
        paces = scale.rate[device] if enforced else np.zeros(len(device))
        first, back = _distinct(which, calls.m, calls.n, calls.k, paces)
        as_dtype = self._executed_as(dtype)
        sides = (column[first].tolist() for column in (which, calls.m, calls.n, calls.k))
        asked = [(Product(m, n, k, as_dtype), scale.speeds[w].partition) for w, m, n, k in zip(*sides, strict=True)]
        if enforced:
            return self._enforced(calls, scale, asked, (paces[first], back))
        found = self.measurements.times(asked)
        if self.numerics is not None:
            self.numerics.timed(asked)
        speeds = [scale.speeds[w] for w in which[first].tolist()]
        roof = np.array([_roof(product, speed) for (product, _), speed in zip(asked, speeds, strict=True)])
        seconds = np.array([t.seconds for t in found])
        return device_seconds(
            seconds[back],
            roof[back],
            flops=calls.flops,
            size=calls.size,
            rate=scale.rate[device],
            bandwidth=scale.bandwidth[device],
            launch=scale.launch[device],
        )

    def _enforced(
        self,
        calls: _Asked,
        scale: Scale,
        asked: list[tuple[Product, Partition]],
        paced: tuple[FloatArray, AnyArray],
    ) -> FloatArray:
        """Wall time of products that are held to the device's rate; no scaling but the number of products."""
        paces, back = paced
        device = calls.device
        fast = scale.kappa[device] < 1
        if fast.any():
            d = int(device[int(np.argmax(fast))])
            have = scale.speeds[int(scale.which[d])]
            raise RunError(
                f"limiting: enforced slows this host down to a device's rate; {self.fleet.names()[d]} computes "
                f"{scale.rate[d]:.3g} FLOP/s, and {have.partition.name} {have.rate:.3g}: use limiting: virtual"
            )
        found = np.array([t.seconds for t in self.measurements.times(asked, paces.tolist())])
        if self.numerics is not None:
            self.numerics.timed(asked)
        products = calls.flops / np.array([product.flops for product, _ in asked])[back]
        out: FloatArray = scale.launch[device] + found[back] * products
        return out

    def _executed_as(self, dtype: DType) -> DType:
        return dtype if dtype in self.back_end.dtypes() else DType.FLOAT32

    # ----------------------------------------------------------------------------------------------------- calibration

    def _scale(self, dtype: DType) -> Scale:
        """Partitions and dilations for one dtype of rows; measured once a run (or taken from the cache)."""
        if dtype not in self.scales:
            self.check(dtype)
            as_dtype = self._executed_as(dtype)
            partitions = self.back_end.partitions()

            def speed(number: int) -> Speed | None:
                return self._speed(partitions[number], as_dtype) if number < len(partitions) else None

            fits = [of_group.get(dtype) for of_group in self.fleet.gemm_fits]
            self.scales[dtype] = scale_of(self.analytic, fits, dtype, speed)
        return self.scales[dtype]

    def _speed(self, partition: Partition, dtype: DType) -> Speed:
        def of(product: Product) -> Product:
            return Product(product.m, product.n, product.k, dtype)

        references = [of(p) for p in self.back_end.reference_set]
        streaming = of(self.back_end.streaming)
        *times, last = self.measurements.times([(p, partition) for p in (*references, streaming)])
        found = speed_of(partition, dict(zip(references, times, strict=True)), (streaming, last))
        self.measurements.rates[partition] = found.rate
        return found

    def _partition(self, device: int, dtype: DType) -> Partition:
        scale = self._scale(dtype)
        return scale.speeds[int(scale.which[device])].partition

    # ------------------------------------------------------------------------------------------------------ the report

    def sent(self, serial: int, dispatch: Dispatch, strategy: Strategy) -> None:
        """Count the rows; with real operands, ask where they lie."""
        rows, flops = self._tally(dispatch.tasks)
        self.rows += rows
        self.flops += flops
        if self.numerics is not None:
            self.numerics.sent(serial, dispatch, strategy)

    def finish(self, recording: Recording, workload: Workload) -> None:
        """Check numerics; ``RunError`` if nothing was executed, or the product from sub-tasks is wrong."""
        if not self.rows[0] and self.config.missing == "refuse" and any(map(len, recording.dispatches)):
            raise RunError(
                "nothing was executed: no row of a device in this run is a matrix product of a known m, n and k, or "
                "says of which products it is the sum (TaskTable.products). Use mode: analytic or profiled; or write "
                "missing: analytic beside the mode to time all rows by the roofline"
            )
        if self.numerics is not None:
            rate = min(s.rate for scale in self.scales.values() for s in scale.speeds) if self.scales else 1.0
            self.checked = self.numerics.verify(recording, workload, rate)

    def _tally(self, tasks: TaskTable) -> tuple[IntArray, FloatArray]:
        """Of a table, rows by `_COUNTED`, and FLOPs that were executed and that were not; worked out once."""
        held = self.tallies.get(id(tasks))
        if held is None or held[0] is not tasks:
            mine = self._executable(tasks)
            rest = ((tasks.flops > 0) | (tasks.memory_bytes > 0)) & ~mine & (tasks.kind != Kind.TRANSFER)
            central = rest & (tasks.device == self.fleet.size)
            gemm = rest & (tasks.kind == Kind.GEMM) & ~central
            rows = np.array([x.sum() for x in (mine, gemm, central, rest & ~gemm & ~central)], np.int64)
            beside = rest_flops(tasks)[mine].sum()
            flops = np.array([tasks.flops[mine].sum() - beside, tasks.flops[rest].sum() + beside], np.float64)
            if len(self.tallies) >= MOST_TALLIES:
                self.tallies.pop(next(iter(self.tallies)))
            held = self.tallies[id(tasks)] = tasks, rows, flops
        return held[1], held[2]

    def describe(self) -> dict[str, Any]:
        """Provenance: back end, partitions, dilations, fingerprint, and how many rows were really executed."""
        m = self.measurements
        out: dict[str, Any] = {
            "executor": "live",
            "back_end": self.back_end.name,
            "asked_for": self.config.backend,
            "passed_over": self.passed_over,
            "limiting": self.config.limiting,
            "clock": "wall time" if self.config.limiting == "enforced" else self.back_end.clock,
            "fingerprint": self.back_end.fingerprint(),
            "model": _MODEL if self.config.limiting == "virtual" else "t = launch + wall time at the device's rate",
            "whole_layers": WHOLE_LAYERS,
            "partitions": {label: value for scale in self.scales.values() for label, value in _speeds(scale)},
            "devices": {f"{name}, {d.label}": v for d, s in self.scales.items() for name, v in self._devices(s)},
            "executed_as": {d.label: self._executed_as(d).label for d in self.scales},
            "rows": dict(zip(_COUNTED, self.rows.tolist(), strict=True)),
            "flops": dict(zip(("executed", "roofline"), self.flops.tolist(), strict=True)),
            "executed_share_of_flops": self._share(),
            "sub_tasks_measured": len(m.measured),
            "sub_tasks_repeated": len(m.repeated),
            "measuring_s": m.spent_s,
            "cache": self.cache.path.name if self.cache.path is not None else None,
            "drift": m.drift,
            "disturbed": len(m.disturbed),
            "not_modelled": ["cold operands", "heat and power limits of the host", *_NOT_MODELLED],
        }
        if self.checked is not None:
            out["numerics"] = self.checked
        return out

    def notes(self) -> tuple[str, ...]:
        """What was executed and what was not, and what became of the cache."""
        m = self.measurements
        measured = (
            f"durations were measured on this host ({self.back_end.name} back end): another host, or this one without "
            "its cache of measurements, gives others"
        )
        counted = (
            f"{self.rows[0]:,} rows ({self._share():.1%} of FLOPs) are timed by {len(m.measured) + len(m.repeated):,} "
            f"executed products ({len(m.measured):,} in this run, in {m.spent_s:.3g} s); "
            f"{self.rows[1:].sum():,} rows by the analytic roofline"
        )
        out = [measured, counted]
        if m.disturbed:
            out.append(
                f"{len(m.disturbed):,} of these products were measured while the host was slower than it can be (a "
                "neighbour on the same core, a lower clock); to measure them again when it is quiet, delete "
                f"{self.cache.path.name if self.cache.path else 'nothing'} in the folder of the cache"
            )
        out += [f"the {name} back end is not used: {why}" for name, why in self.passed_over.items()]
        out += [
            f"{as_label} products stand in for {d.label}, as 'stand_in: float32' says"
            for d in self.scales
            if (as_label := self._executed_as(d).label) != d.label
        ]
        out += self._faster_devices()
        if self.checked is not None:
            n = self.checked
            alone = f"{n['sub_tasks_by_themselves']:,} sub-tasks by themselves"
            whole = f"{n['assembled_products']:,} products assembled from {n['assembled_tiles']:,} sub-tasks"
            what = f"{whole} and {alone}" if n["placed_dispatches"] else alone
            out.append(f"numerics: {what} are right; largest relative error {n['max_relative_error']:.2g}")
            if not n["placed_dispatches"]:
                out.append("numerics: no output was put together, since this strategy does not say where its rows lie")
        return (*out, *self.cache.notes, *m.notes)

    def _share(self) -> float:
        total = float(self.flops.sum())
        return float(self.flops[0]) / total if total else 0.0

    def _faster_devices(self) -> Iterable[str]:
        for dtype, scale in self.scales.items():
            fast = int(np.sum(scale.kappa < 1))
            if fast:
                yield (
                    f"{fast:,} of {self.fleet.size:,} devices are faster in {dtype.label} than every partition of this "
                    f"host (time contracted, down to a factor of {np.nanmin(scale.kappa):.3g}): noise of measuring "
                    "shrinks with it, but the host's own overhead and caches stand for the device's"
                )

    def _devices(self, scale: Scale) -> Iterable[tuple[str, dict[str, Any]]]:
        """By profile: partitions, dilations and how far the reference set deviates from the device's own model."""
        for number, name in enumerate(self.fleet.profile_names):
            mine = (self.fleet.profile == number) & ~np.isnan(scale.kappa)
            if mine.any():
                kappa = scale.kappa[mine]
                yield (
                    name,
                    {
                        "partitions": sorted({scale.speeds[w].partition.name for w in set(scale.which[mine].tolist())}),
                        "kappa": [float(kappa.min()), float(kappa.max())],
                        "flops_per_s": [float(scale.rate[mine].min()), float(scale.rate[mine].max())],
                        "reference_residual": float(scale.residual[mine].max()),
                    },
                )


@dataclass(frozen=True, eq=False)
class _Asked:
    """Calls to be timed.  ``size`` : bytes that each moves;  ``flops`` : more than 2·m·n·k are several products."""

    device: Int32Array
    m: IntArray
    n: IntArray
    k: IntArray
    flops: FloatArray
    size: FloatArray


def _distinct(*columns: AnyArray) -> tuple[IntArray, IntArray]:
    """Rows that differ in some column: where each occurs first, int64[d], and which of them each row is, int64[n]."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, place = np.unique(column, return_inverse=True)
        _, code = np.unique(code * (int(place.max()) + 1) + place, return_inverse=True)
    _, first = np.unique(code, return_index=True)
    return first, code


def _roof(product: Product, speed: Speed) -> float:
    """Seconds by the partition's roofline."""
    return max(product.flops / speed.rate, product.operand_bytes / speed.bandwidth)


def _speeds(scale: Scale) -> Iterable[tuple[str, dict[str, float]]]:
    for speed in scale.speeds:
        dtype = next(iter(speed.references)).dtype
        yield (
            f"{speed.partition.name}, {dtype.label}",
            {"flops_per_s": speed.rate, "bytes_per_s": speed.bandwidth},
        )


_MODEL: Final = (
    "t = launch + max(s * max(flops / R_d, bytes / B_d), bytes / B_d), s = measured / max(flops / R_h, bytes / B_h): "
    "h the partition, d the device; kappa = R_h / R_d"
)
_COUNTED: Final = ("executed", "roofline_device_gemm", "roofline_coordinator", "roofline_other")
MOST_TALLIES: Final = 512
_NOT_MODELLED: Final = (
    "what part of a duration waits for memory: a lower clock stretches all of it",
    "strides and transposed operands of rows",
)
