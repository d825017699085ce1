"""`morphling profiles fit-thermal`: constants of heat from a log of temperatures."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from morphling.executors.thermal_fit import ThermalFit
    from morphling.executors.thermal_numbers import Estimate
    from morphling.fleet.thermal_log import ThermalLog
    from morphling.scenario import ProfileRecord
    from morphling.scenario.thermal_section import HeatNumber
    from morphling.types import FloatArray

__all__ = ["fit_thermal_command"]

_UNITS: Final = {
    "ambient_c": "degC", "ambient_to_case": "K/W", "case_s": "s", "case_cooling_s": "s", "junction_to_case": "K/W",
    "junction_s": "s", "trip_c": "degC", "hysteresis_k": "K", "clock_floor": "of full clock", "case_rise_k": "K",
    "junction_rise_k": "K", "junction_idle_k": "K", "junction_above_k": "K", "idle_case_c": "degC",
    "settled_case_c": "degC",
}  # fmt: skip
_RESISTANCES: Final = ("ambient_c", "ambient_to_case", "junction_to_case")


def fit_thermal_command(
    log: Annotated[Path, typer.Argument(metavar="LOG.csv", help="The log; see docs/heat.md.")],
    out: Annotated[Path | None, typer.Option("-o", "--output", help="YAML file to write.")] = None,
    base: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Write a whole profile: this one with the fitted constants.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw measured and simulated.")] = None,
    holdout: Annotated[float, typer.Option(help="Share of the time, at the end, that is not fitted.")] = 0.3,
    ambient: Annotated[str | None, typer.Option(help="Temperature around the device, such as '23 degC'.")] = None,
    max_power: Annotated[str | None, typer.Option(help="Power at full load and clock, such as '5 W'.")] = None,
    idle_power: Annotated[str | None, typer.Option(help="Power when idle.")] = None,
    power_exponent: Annotated[
        float | None, typer.Option(help="Power above static goes with this power of the clock.")
    ] = None,
    static_share: Annotated[float | None, typer.Option(help="Share of the full power that no clock changes.")] = None,
    load: Annotated[float | None, typer.Option(help="The load throughout, if no column has it; 0 to 1.")] = None,
    start: Annotated[str | None, typer.Option(help="Leave out what is before, such as '450 s'.")] = None,
    end: Annotated[str | None, typer.Option(help="Leave out what is after.")] = None,
    time_column: Annotated[str | None, typer.Option(help="Its name, if not time_s.")] = None,
    time_unit: Annotated[str, typer.Option(help="s or ms.")] = "s",
    case_column: Annotated[str | None, typer.Option(help="Its name, if not case_c; skin and battery do.")] = None,
    junction_column: Annotated[str | None, typer.Option(help="Its name, if not junction_c.")] = None,
    clock_column: Annotated[str | None, typer.Option(help="Its name, if not clock.")] = None,
    load_column: Annotated[str | None, typer.Option(help="Its name, if not load.")] = None,
    power_column: Annotated[str | None, typer.Option(help="Its name, if not power_w.")] = None,
    full_clock: Annotated[
        str | None, typer.Option(help="The clock is in MHz, and this is the full one: '1 GHz'.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what would be dropped or repaired.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Fit the constants of a profile's `thermal` section to a log of temperatures, and test them on its last part."""
    from morphling.errors import InputError
    from morphling.executors.governor_fit import read_governor
    from morphling.executors.thermal_fit import fit_thermal
    from morphling.figures.axes import writable
    from morphling.scenario.files import file_digest
    from morphling.scenario.thermal_log import LogColumns, read_thermal_log
    from morphling.scenario.thermal_section import base_profile

    if not 0 < holdout < 1:
        raise InputError(f"--holdout: a share between 0 and 1 is needed, found {holdout:g}")
    if time_unit not in {"s", "ms"}:
        raise InputError(f"--time-unit: s or ms, found '{time_unit}'")
    if base is not None and out is None:
        raise InputError("--base writes a profile: give its file with -o")
    if load is not None and not 0 <= load <= 1:
        raise InputError(f"--load: a share in [0, 1] is needed, found {load:g}")
    if figure is not None:
        writable(figure)
    columns = LogColumns(
        time_column, case_column, junction_column, clock_column, load_column, power_column, time_unit,
        _quantity("--full-clock", full_clock, "frequency"), load,
        _or(_quantity("--start", start, "time"), -math.inf), _or(_quantity("--end", end, "time"), math.inf),
    )  # fmt: skip
    record = None if base is None else base_profile(base)
    found, report = read_thermal_log(log, columns, strict=strict)
    asked = _Asked(
        _quantity("--max-power", max_power, "power"), _quantity("--idle-power", idle_power, "power"),
        power_exponent, static_share, _quantity("--ambient", ambient, "temperature"),
    )  # fmt: skip
    drive = _drive(found, asked, record, log)
    try:
        fit = fit_thermal(found, drive.values, in_watts=drive.in_watts, ambient_c=asked.ambient_c, hold_out=holdout)
    except InputError as error:
        raise InputError(f"{log}: {error}") from None
    estimates = dict(fit.estimates)
    if found.clock is not None:
        estimates |= read_governor(found.clock, found.case_c, found.load)
    told = _Told(log.name, file_digest(log), estimates, fit, drive, asked)
    said = [] if out is None else _write(out, record, told)
    if figure is not None:
        _draw(figure, found, told)
        said.append(f"figure: {figure}")
    if as_json:
        print(json.dumps(_plain(told, report.plain(), found), indent=2))
    else:
        _print(told, report, found, said)


@dataclass(frozen=True)
class _Asked:
    max_w: float | None
    idle_w: float | None
    exponent: float | None
    static_share: float | None
    ambient_c: float | None


@dataclass(frozen=True, eq=False)
class _Drive:
    """What warms the device: values (W, or share of full load), and in words where a power comes from."""

    values: FloatArray
    in_watts: bool
    measured: bool
    words: str


@dataclass(frozen=True, eq=False)
class _Told:
    name: str
    digest: str
    estimates: dict[str, Estimate]
    fit: ThermalFit
    drive: _Drive
    asked: _Asked

    @property
    def source(self) -> str:
        return f"fit to {self.name}, sha256 {self.digest}"


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _quantity(option: str, text: str | None, dimension: Any) -> float | None:
    from morphling import units
    from morphling.errors import InputError, UnitError

    if text is None:
        return None
    try:
        return units.parse(text, dimension)
    except UnitError as error:
        raise InputError(f"{option}: {error}") from None


def _drive(log: ThermalLog, asked: _Asked, base: ProfileRecord | None, path: Path) -> _Drive:
    from morphling.errors import InputError
    from morphling.executors.thermal_model import computing_share
    from morphling.units import format_power

    given = [asked.max_w, asked.idle_w, asked.exponent, asked.static_share]
    if log.power_w is not None:
        if any(v is not None for v in given):
            raise InputError(f"{path}: the log has a power; --max-power and the like are not to be given as well")
        return _Drive(log.power_w, True, True, "power as logged")
    if log.load is None:
        raise InputError(
            f"{path}: no column says what warms the device: name that of the load or the power (--load-column, "
            "--power-column), or give --load 1 if it was fully loaded throughout"
        )
    if (asked.max_w is None) != (asked.idle_w is None):
        raise InputError("--max-power and --idle-power go together")
    max_w, idle_w, where = asked.max_w, asked.idle_w, "given"
    if max_w is None and base is not None and base.power is not None:
        max_w, idle_w, where = base.max_w, base.idle_w, f"from {base.name}"
    if max_w is None or idle_w is None:
        if log.clock is not None:
            raise InputError(
                f"{path}: the log has a clock and no power; give --max-power and --idle-power, or a --base "
                "that has them"
            )
        return _Drive(log.load, False, False, "no power known: only rises in K can be told, no resistances")
    if max_w <= idle_w:
        raise InputError(f"--max-power of {max_w:g} W is not above --idle-power of {idle_w:g} W")
    words = f"power of {format_power(max_w)} at full load and {format_power(idle_w)} when idle, {where}"
    share, shape = log.load, ""
    if log.clock is not None:
        exponent, static = _shape(asked, base, path)
        share = computing_share(log.load, log.clock, exponent=exponent, static_share=static)
        shape = f"; exponent {exponent:g} and static share {static:g} of the clock"
    return _Drive(idle_w * (1 - log.load) + max_w * share, True, False, words + shape)


def _shape(asked: _Asked, base: ProfileRecord | None, path: Path) -> tuple[float, float]:
    from morphling.errors import InputError

    exponent, static = asked.exponent, asked.static_share
    if base is not None and base.thermal is not None:
        exponent = base.thermal.power_exponent.value if exponent is None else exponent
        static = base.thermal.static_share.value if static is None else static
    if exponent is None or static is None:
        raise InputError(
            f"{path}: the log has a clock; say how the power goes with it, by --power-exponent and --static-share or a "
            "--base that has a thermal section"
        )
    if not 1 <= exponent <= 3 or not 0 <= static < 1:
        raise InputError(
            f"--power-exponent of 1 to 3 and --static-share in [0, 1) are needed, found {exponent:g} and {static:g}"
        )
    return exponent, static


def _numbers(told: _Told) -> tuple[dict[str, HeatNumber], dict[str, str]]:
    """What goes into a profile, and why the rest does not."""
    from morphling.scenario.thermal_section import FIELDS, HeatNumber

    numbers: dict[str, HeatNumber] = {}
    lacking: dict[str, str] = {}
    for column in FIELDS:
        estimate = told.estimates.get(column)
        if estimate is None:
            why = "the log has no clock" if column in {"trip_c", "hysteresis_k", "clock_floor"} else "no power is known"
            lacking[column] = "the log has no junction" if column.startswith("junction") else why
        elif not estimate.told:
            lacking[column] = estimate.why
        else:
            by_power = column in _RESISTANCES and not told.drive.measured
            spread = f", +- {estimate.spread:.2g} {_UNITS[column]}" if math.isfinite(estimate.spread) else ""
            source = told.source + spread + (f"; {told.drive.words}" if by_power else "")
            numbers[column] = HeatNumber(estimate.value, "derived" if by_power else "measured", source)
    given = {
        "ambient_c": ("--ambient", told.asked.ambient_c),
        "power_exponent": ("--power-exponent", told.asked.exponent),
        "static_share": ("--static-share", told.asked.static_share),
    }
    for column in ("power_exponent", "static_share"):
        lacking[column] = "not fitted, and not given"
    for column, (option, value) in given.items():
        if value is not None:
            numbers[column] = HeatNumber(value, "assumed", f"given with {option} when {told.name} was fitted")
            lacking.pop(column, None)
    return numbers, lacking


def _write(out: Path, base: ProfileRecord | None, told: _Told) -> list[str]:
    from morphling.errors import InputError
    from morphling.scenario.thermal_section import HeatNumber, profile_with_heat, thermal_section, write_whole

    if out.suffix not in {".yaml", ".yml"}:
        raise InputError(f"{out}: a profile ends in .yaml")
    numbers, lacking = _numbers(told)
    if not numbers:
        raise InputError(f"{told.name}: tells no constant; nothing is written")
    head = [
        f"Heat by `morphling profiles fit-thermal` from {told.name}, sha256 {told.digest}.",
        *(f"held out: {line}" for line in _misfits(told.fit.held_out)),
        *_doubts(told.fit),
    ]
    if base is None:
        write_whole(out, thermal_section(numbers, lacking, head))
        return [f"wrote: {out} (the section thermal alone: {', '.join(numbers)})"]
    power = {}
    if told.asked.max_w is not None and told.asked.idle_w is not None:
        source = f"given with --max-power and --idle-power when {told.name} was fitted"
        power = {"idle": HeatNumber(told.asked.idle_w, "assumed", source),
                 "max": HeatNumber(told.asked.max_w, "assumed", source)}  # fmt: skip
    text, kept = profile_with_heat(base, out.stem, numbers, lacking, power, head)
    write_whole(out, text)
    said = [f"wrote: {out} (profile {out.stem})"]
    return [*said, f"kept from {base.name}: {', '.join(kept)}"] if kept else said


def _misfits(errors: dict[str, Any]) -> list[str]:
    return [
        f"{name}: mean absolute error {m.mean_k:.2f} K, largest {m.max_k:.2f} K, {m.count} readings"
        + (f" ({m.missing} without a reading or a simulated temperature)" if m.missing else "")
        if m.count
        else f"{name}: nothing can be simulated; the fitted part does not tell what is needed"
        for name, m in errors.items()
    ]


def _doubts(fit: ThermalFit) -> list[str]:
    """Where the fit fails its test; errors below the resolution of common sensors are none."""
    return [
        f"warning: {name}: on the held-out part the fit does worse ({m.mean_k:.2f} K) than to say that nothing changes "
        f"({fit.unchanged[name].mean_k:.2f} K); its constants are not to be trusted"
        for name, m in fit.held_out.items()
        if m.count and m.mean_k > max(1.0, fit.unchanged[name].mean_k)
    ]


def _draw(path: Path, log: ThermalLog, told: _Told) -> None:
    from morphling.figures.thermal_fit import ThermalPicture, draw_thermal_fit

    fit, parts = told.fit, []
    for name, m in fit.held_out.items():
        parts.append(f"{name} {m.mean_k:.2f} K (largest {m.max_k:.2f} K)" if m.count else f"{name} not simulated")
    title = f"{told.name}\nheld out, mean absolute error: {', '.join(parts)}"
    unit = "W" if told.drive.in_watts else "load"
    picture = ThermalPicture(title, log, fit.case_c, fit.junction_c, fit.split, told.drive.values, unit)
    draw_thermal_fit(picture, path)


def _print(told: _Told, report: Any, log: ThermalLog, said: list[str]) -> None:
    from morphling.cli.listing import print_table
    from morphling.units import format_number

    rows = []
    for name, e in told.estimates.items():
        shown = "-" if math.isnan(e.value) or not e.told else f"{format_number(e.value, 4)} {_UNITS[name]}"
        spread = f"{format_number(e.spread, 2)}" if e.told and math.isfinite(e.spread) else "-"
        rows.append([name, shown, spread, e.why or "told"])
    print_table(told.name, ["constant", "value", "+-", "told by the log?"], rows, (1, 2))
    print(f"heat: {told.drive.words}")
    for line in report.lines()[4:]:
        print(line)
    fit, at = told.fit, log.time_s
    print(f"fitted: {at[0]:g} s to {at[fit.split - 1]:g} s")
    for line in _misfits(fit.fitted):
        print(f"  {line}")
    print(f"held out: {at[fit.split]:g} s to {at[-1]:g} s, simulated freely from its first reading")
    for line in _misfits(fit.held_out):
        print(f"  {line}")
    for name, m in fit.unchanged.items():
        if m.count:
            print(f"  {name}, if nothing changed after its first reading: mean absolute error {m.mean_k:.2f} K")
    for line in [*_doubts(fit), *said]:
        print(line)


def _plain(told: _Told, report: dict[str, Any], log: ThermalLog) -> dict[str, Any]:
    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    fit = told.fit
    return {
        "log": told.name,
        "sha256": told.digest,
        "read": {k: report[k] for k in ("read", "dropped", "repaired", "notes")},
        "drive": told.drive.words,
        "constants": {
            name: {"value": finite(e.value), "unit": _UNITS[name], "spread": finite(e.spread), "why": e.why}
            for name, e in told.estimates.items()
        },
        "warnings": _doubts(fit),
        "held_out_from_s": float(log.time_s[fit.split]),
        "errors": {
            part: {s: {k: finite(v) for k, v in asdict(m).items()} for s, m in errors.items()}
            for part, errors in (("fitted", fit.fitted), ("held_out", fit.held_out), ("unchanged", fit.unchanged))
        },
    }  # fmt: skip
