"""From YAML records to domain objects: the only file, with `links`, that knows both."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from morphling.errors import InputError, ScenarioError, WorkloadError
from morphling.fleet import Coordinator, Fleet, GemmFit, Thermal
from morphling.interfaces.executor import Executor
from morphling.interfaces.strategy import Strategy
from morphling.run.links import Draws, fleet_links
from morphling.run.plugins import find_plugin
from morphling.scenario import (
    InlineProfile,
    LoadedScenario,
    ProfileRecord,
    completed,
    configured,
)
from morphling.types import DType
from morphling.workload import Place, Workload, training_step

__all__ = ["Built", "build", "complete"]

_MOST = 1 << 62
"""Most bytes of a device: sums of a few of them stay within int64."""


@dataclass(frozen=True, eq=False)
class Built:
    """Everything a run needs, as values."""

    fleet: Fleet
    workload: Workload
    strategy: Strategy
    executor: Executor
    seed: int
    iterations: int
    horizon_s: float | None
    heat: bool = True


def build(loaded: LoadedScenario) -> Built:
    """Draw the fleet, lay out the workload, and configure strategy and executor.

    ``ScenarioError`` (file:line:col) for what only now shows to be wrong.
    """
    s = loaded.scenario
    if s.run.record != "rows":
        raise loaded.fault(("run", "record"), f"{s.run.record} is not there yet; only rows, which keeps every sub-task")
    workload = _workload(loaded)
    fleet = _fleet(loaded)
    return Built(
        fleet=fleet,
        workload=workload,
        strategy=_strategy(loaded),
        executor=_executor(loaded, fleet),
        seed=s.seed,
        iterations=s.run.iterations,
        horizon_s=s.run.max_time,
        heat=s.execution.heat,
    )


def complete(loaded: LoadedScenario, built: Built) -> LoadedScenario:
    """The scenario with the defaults of its strategy and executor written out; for printing and for the run folder."""
    return completed(loaded, built.strategy.config, getattr(built.executor, "config", None))


def _workload(loaded: LoadedScenario) -> Workload:
    w = loaded.scenario.workload
    try:
        return training_step(
            loaded.model,
            w.batch_size,
            w.sequence_length,
            DType.named(w.dtype),
            Place.DEVICES if w.lm_head == "devices" else Place.COORDINATOR,
            fused_projections=w.fused_projections,
            recompute=w.recompute,
        )
    except WorkloadError as error:
        field, _, reason = str(error).partition(": ")
        if field in type(w).model_fields:
            raise loaded.fault(("workload", field), reason) from None
        raise loaded.fault(("workload",), str(error)) from None


def _strategy(loaded: LoadedScenario) -> Strategy:
    choice = loaded.scenario.strategy
    try:
        found = find_plugin("strategies", choice.name, choice.plugin)
    except InputError as error:
        raise loaded.fault(("strategy", "plugin" if choice.plugin else "name"), str(error)) from None
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise loaded.fault(("strategy",), f"{choice.name or choice.plugin} is not a Strategy")
    if not isinstance(getattr(found, "Config", None), type):
        raise loaded.fault(("strategy",), f"{choice.name or choice.plugin} has no Config class")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise loaded.fault(("strategy",), f"{choice.name or choice.plugin} lacks {', '.join(missing)}")
    config = configured(loaded, "strategy", choice.config, found.Config)
    try:
        return found(config)
    except InputError:
        raise
    except Exception as error:  # a stranger's code may raise anything
        cause = f"{type(error).__name__}: {error}"
        raise loaded.fault(("strategy",), f"{choice.name or choice.plugin} cannot be made: {cause}") from error


def _executor(loaded: LoadedScenario, fleet: Fleet) -> Executor:
    execution = loaded.scenario.execution
    try:
        found: Any = find_plugin("executors", execution.mode)
    except InputError as error:
        raise loaded.fault(("execution", "mode"), str(error)) from None
    try:
        made = found(configured(loaded, "execution", execution.config, found.Config), fleet=fleet)
        if not isinstance(made, Executor):
            raise loaded.fault(("execution", "mode"), f"{execution.mode} is not an Executor")
        made.check(DType.named(loaded.scenario.workload.dtype))
    except ScenarioError:
        raise
    except InputError as error:
        raise _at_field(loaded, str(error)) from None
    return made


def _at_field(loaded: LoadedScenario, message: str) -> ScenarioError:
    """``fleet.0.profile: reason`` as a fault at that field; anything else is one of ``execution.mode``."""
    named = re.match(r"((?:fleet|coordinator|execution)(?:\.\w+)+): ", message)
    if named is None:
        return loaded.fault(("execution", "mode"), message)
    path = tuple(int(part) if part.isdigit() else part for part in named[1].split("."))
    return loaded.fault(path, message[named.end() :])


# ---------------------------------------------------------------------------------------------------------------- fleet


class _Columns:
    """The fleet's columns while its groups are laid one after another."""

    def __init__(self, size: int) -> None:
        self.names: list[str] = []
        self.profile = np.zeros(size, np.int32)
        self.group = np.zeros(size, np.int32)
        self.peak = np.full((size, len(DType)), np.nan)
        self.efficiency = np.full((size, len(DType)), np.nan)
        self.memory = np.zeros(size, np.int64)
        self.bandwidth = np.full(size, np.inf)
        self.launch = np.zeros(size)
        self.idle = np.full(size, np.nan)
        self.max = np.full(size, np.nan)
        self.radio_up = np.full(size, np.nan)
        self.radio_down = np.full(size, np.nan)
        self.thermal = Thermal.none(size)

    def name(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)


def _fleet(loaded: LoadedScenario) -> Fleet:
    s = loaded.scenario
    columns = _Columns(s.size)
    start = 0
    for number, entry in enumerate(s.fleet):
        span = slice(start, start + entry.count)
        columns.group[span] = number
        _profile(columns, span, loaded.profile(entry.profile), Draws(loaded, ("fleet", number), entry.count))
        start += entry.count
    return Fleet(
        profile_names=tuple(columns.names),
        profile=columns.profile,
        group=columns.group,
        peak_flops=columns.peak,
        efficiency=columns.efficiency,
        memory_bytes=columns.memory,
        memory_bandwidth=columns.bandwidth,
        launch_s=columns.launch,
        idle_w=columns.idle,
        max_w=columns.max,
        links=fleet_links(loaded),
        availability=loaded.availability,
        coordinator=_coordinator(loaded),
        gemm_fits=tuple(_fits(loaded.profile(entry.profile)) for entry in s.fleet),
        radio_up_j=columns.radio_up,
        radio_down_j=columns.radio_down,
        thermal=columns.thermal,
    )


def _heat(c: _Columns, span: slice, profile: ProfileRecord) -> None:
    """Radio energy and heat of a group, where its profile states them."""
    if profile.power is not None and profile.power.radio_up is not None:
        c.radio_up[span] = profile.power.radio_up.value
    if profile.power is not None and profile.power.radio_down is not None:
        c.radio_down[span] = profile.power.radio_down.value
    if profile.thermal is None:
        return
    t = profile.thermal
    for column, number in (
        (c.thermal.ambient_c, t.ambient),
        (c.thermal.ambient_to_case, t.ambient_to_case),
        (c.thermal.case_s, t.case_time),
        (c.thermal.case_cooling_s, t.case_cooling_time),
        (c.thermal.junction_to_case, t.junction_to_case),
        (c.thermal.junction_s, t.junction_time),
        (c.thermal.trip_c, t.trip),
        (c.thermal.hysteresis_k, t.hysteresis),
        (c.thermal.clock_floor, t.clock_floor),
        (c.thermal.power_exponent, t.power_exponent),
        (c.thermal.static_share, t.static_share),
    ):
        column[span] = number.value
    if t.clock_steps is not None:
        c.thermal.clock_steps[span] = t.clock_steps.value


def _fits(profile: ProfileRecord | InlineProfile) -> dict[DType, GemmFit]:
    """Fitted latency models of a profile; one described in the scenario has none."""
    model = profile.gemm_model if isinstance(profile, ProfileRecord) else None
    return {} if model is None else {DType.named(name): fit.domain() for name, fit in model.fits.items()}


def _profile(c: _Columns, span: slice, profile: ProfileRecord | InlineProfile, draw: Draws) -> None:
    c.profile[span] = c.name(profile.name)
    if isinstance(profile, ProfileRecord):
        c.peak[span] = Fleet.per_dtype(profile.peak_flops)
        c.efficiency[span] = Fleet.per_dtype(profile.achieved_share)
        c.memory[span] = profile.usable_memory
        c.bandwidth[span] = profile.sustained_bandwidth
        c.launch[span] = profile.launch_s
        c.idle[span], c.max[span] = profile.idle_w, profile.max_w
        _heat(c, span, profile)
        return
    rates = profile.compute
    named = rates if isinstance(rates, dict) else dict.fromkeys((d.label for d in DType), rates)
    drawn = {k: draw(f"profile.compute.{k}", v) for k, v in named.items()} if isinstance(rates, dict) else {}
    one = None if isinstance(rates, dict) else draw("profile.compute", rates)
    for dtype in named:
        d = DType.named(dtype)
        c.peak[span, d] = drawn[dtype] if one is None else one
        share = profile.efficiency
        c.efficiency[span, d] = share[dtype] if isinstance(share, dict) else share  # type: ignore[index]
    c.memory[span] = draw.whole("profile.memory", profile.memory, "bytes", _MOST, least=1)
    if profile.memory_bandwidth is not None:
        c.bandwidth[span] = draw("profile.memory_bandwidth", profile.memory_bandwidth)
    c.launch[span] = profile.launch
    if profile.power is not None:
        c.idle[span], c.max[span] = profile.power.idle, profile.power.max


def _coordinator(loaded: LoadedScenario) -> Coordinator:
    c = loaded.scenario.coordinator
    profile = loaded.profile(c.profile)
    if isinstance(profile, ProfileRecord):
        return Coordinator(
            name=profile.name,
            peak_flops=Fleet.per_dtype(profile.peak_flops),
            efficiency=Fleet.per_dtype(profile.achieved_share),
            memory_bytes=profile.usable_memory,
            memory_bandwidth=profile.sustained_bandwidth,
            launch_s=profile.launch_s,
            idle_w=profile.idle_w,
            max_w=profile.max_w,
            downlink_bps=c.downlink,
            uplink_bps=c.uplink,
            sources=profile.sources,
            gemm_fits=_fits(profile),
        )
    rates: Any = (
        profile.compute
        if isinstance(profile.compute, dict)
        else dict.fromkeys((d.label for d in DType), profile.compute)
    )
    share: Any = (
        profile.efficiency if isinstance(profile.efficiency, dict) else dict.fromkeys(rates, profile.efficiency)
    )
    bandwidth: Any = profile.memory_bandwidth
    power = profile.power
    return Coordinator(
        name=profile.name,
        peak_flops=Fleet.per_dtype(rates),
        efficiency=Fleet.per_dtype(share),
        memory_bytes=int(profile.memory),  # type: ignore[arg-type]
        memory_bandwidth=float("inf") if bandwidth is None else float(bandwidth),
        launch_s=profile.launch,
        idle_w=float("nan") if power is None else power.idle,
        max_w=float("nan") if power is None else power.max,
        downlink_bps=c.downlink,
        uplink_bps=c.uplink,
        sources={"all": "scenario"},
    )
