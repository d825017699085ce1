"""From YAML records to domain objects: the only file, with `links`, that knows both."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from morphling.errors import Infeasible, InputError, ScenarioError, WorkloadError
from morphling.fleet import Battery, Coordinator, Fleet, GemmFit, Thermal
from morphling.interfaces.executor import Executor
from morphling.interfaces.strategy import Strategy
from morphling.run.links import Draws, fleet_links
from morphling.run.plugin_files import class_in_file, line_raised
from morphling.run.plugins import find_plugin, unfit
from morphling.scenario import (
    BatteryNumbers,
    InlineProfile,
    LoadedScenario,
    ProfileRecord,
    TracedWorkload,
    completed,
    configured,
)
from morphling.types import DType
from morphling.workload import Place, Workload, training_step
from morphling.workload.traced import TracedGemms

__all__ = ["Built", "build", "check", "check_strategy", "complete"]

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


def build(loaded: LoadedScenario, *, allow_plugins: bool = False) -> Built:
    """Draw the fleet, lay out the workload, and configure strategy and executor.

    ``allow_plugins`` : run the code of a file that ``strategy.plugin`` names; it may do whatever Python can

    ``ScenarioError`` (file:line:col) for what only now shows to be wrong, and for code that may not be run.
    """
    s = loaded.scenario
    _check_recorded(loaded)
    workload = _workload(loaded)
    fleet = _fleet(loaded)
    strategy = _strategy(loaded, allow_plugins=allow_plugins)
    if isinstance(s.workload, TracedWorkload) and strategy.covers != "gemms":
        raise Infeasible(
            f"workload.gemms: {strategy.name or type(strategy).__name__} plans by a model's layers, which a file of"
            " products lacks; cleave and uniform-tp plan product by product"
        )
    return Built(
        fleet=fleet,
        workload=workload,
        strategy=strategy,
        executor=_executor(loaded, fleet),
        seed=s.seed,
        iterations=s.run.iterations,
        horizon_s=s.run.max_time,
        heat=s.execution.heat,
    )


def check(loaded: LoadedScenario, *, allow_plugins: bool = False) -> tuple[LoadedScenario, list[str]]:
    """As `build` and `complete`, without a run to follow: the completed scenario, and what was not checked.

    A plug-in file that may not be run is left unread; the strategy's section then stays as written.
    """
    file = loaded.plugin_file
    if file is None or allow_plugins:
        return complete(loaded, build(loaded, allow_plugins=allow_plugins)), []
    _check_recorded(loaded)
    _workload(loaded)
    executor = _executor(loaded, _fleet(loaded))
    unread = f"{file[0]} was not run: its class {file[1]} and the strategy's other keys are not checked"
    return completed(loaded, None, getattr(executor, "config", None)), [f"{unread}; --allow-plugins runs it"]


def check_strategy(loaded: LoadedScenario, *, allow_plugins: bool = False) -> dict[str, Any]:
    """The scenario's strategy section with every default; errors as of `build`.  No fleet is drawn."""
    strategy = _strategy(loaded, allow_plugins=allow_plugins)
    section = completed(loaded, strategy.config, None).scenario.strategy.model_dump(mode="json")
    return {key: value for key, value in section.items() if key not in ("name", "plugin") or value is not None}


def _check_recorded(loaded: LoadedScenario) -> None:
    record = loaded.scenario.run.record
    if record != "rows":
        raise loaded.fault(("run", "record"), f"{record} is not there yet; only rows, which keeps every sub-task")


def complete(loaded: LoadedScenario, built: Built) -> LoadedScenario:
    """The scenario with the defaults of its strategy and executor written out; for printing and for the run folder."""
    return completed(loaded, built.strategy.config, getattr(built.executor, "config", None))


def _workload(loaded: LoadedScenario) -> Workload:
    w = loaded.scenario.workload
    if isinstance(w, TracedWorkload) or isinstance(loaded.model, TracedGemms):
        assert isinstance(loaded.model, TracedGemms)  # noqa: S101 - one goes with the other
        return loaded.model.workload(DType.named(w.dtype))
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


def _strategy(loaded: LoadedScenario, *, allow_plugins: bool) -> Strategy:
    choice = loaded.scenario.strategy
    field = ("strategy", "plugin" if choice.plugin else "name")
    try:
        found = strategy_class_of(loaded, allow_plugins=allow_plugins)
    except InputError as error:
        raise loaded.fault(field, str(error)) from error.__cause__
    called = str(choice.name or choice.plugin)
    if cause := unfit("strategies", found):
        raise loaded.fault(field, f"{called} {cause}")
    config = configured(loaded, "strategy", choice.config, found.Config)
    try:
        made: Strategy = found(config)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # a stranger's code may raise anything
        where = f"{line_raised(error, loaded.plugin_file[0])}: " if loaded.plugin_file else ""
        cause = f"{where}{type(error).__name__}: {error}"
        raise loaded.fault(("strategy",), f"{called} cannot be made: {cause}") from error
    return made


def strategy_class_of(loaded: LoadedScenario, *, allow_plugins: bool) -> Any:
    """The class of the scenario's strategy; ``InputError`` if there is none, or if it is code that is not allowed."""
    if loaded.strategy_class is not None:
        return loaded.strategy_class
    file = loaded.plugin_file
    if file is None:
        choice = loaded.scenario.strategy
        return find_plugin("strategies", choice.name, choice.plugin)
    path, name = file
    if not allow_plugins:
        raise InputError(
            f"{path} is Python code, which a run would execute; read it, and allow it with --allow-plugins "
            "(in Python allow_plugins=True)"
        )
    return class_in_file("strategies", path, name, loaded.inputs[str(path)])


def _executor(loaded: LoadedScenario, fleet: Fleet) -> Executor:
    execution = loaded.scenario.execution
    try:
        found: Any = find_plugin("executors", execution.mode)
    except InputError as error:
        raise loaded.fault(("execution", "mode"), str(error)) from None
    if cause := unfit("executors", found):
        raise loaded.fault(("execution", "mode"), f"{execution.mode} {cause}")
    config = configured(loaded, "execution", execution.config, found.Config)
    try:
        made: Executor = found(config, fleet=fleet)
        made.check(DType.named(loaded.scenario.workload.dtype))
    except ScenarioError:
        raise
    except InputError as error:
        raise _at_field(loaded, str(error)) from None
    except (Exception, SystemExit) as error:  # a stranger's code may raise anything
        cause = f"{type(error).__name__}: {error}"
        raise loaded.fault(("execution", "mode"), f"{execution.mode} cannot be made: {cause}") from error
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
        self.battery = Battery.none(size)

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
        battery=columns.battery if columns.battery.has.any() else None,
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


def _battery(c: _Columns, span: slice, battery: BatteryNumbers) -> None:
    """Battery of a group; shares become joules."""
    c.battery.capacity_j[span] = battery.capacity_j
    c.battery.reserve_j[span] = battery.reserve * battery.capacity_j
    c.battery.charger_w[span] = battery.charger_w
    c.battery.resume_j[span] = battery.resume * battery.capacity_j
    c.battery.initial_j[span] = battery.initial * battery.capacity_j


def _fits(profile: ProfileRecord | InlineProfile) -> dict[DType, GemmFit]:
    """Fitted latency models of a profile; one described in the scenario has none."""
    model = profile.gemm_model if isinstance(profile, ProfileRecord) else None
    return {} if model is None else {DType.named(name): fit.domain() for name, fit in model.fits.items()}


def _profile(c: _Columns, span: slice, profile: ProfileRecord | InlineProfile, draw: Draws) -> None:
    c.profile[span] = c.name(profile.name)
    if profile.battery is not None:
        _battery(c, span, profile.battery.numbers)
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
