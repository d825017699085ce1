"""The section ``thermal`` of a device profile, written from fitted constants; alone or in a whole profile."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from morphling import units
from morphling.errors import InputError, ProfileError
from morphling.scenario.heat import Thermal
from morphling.scenario.power_modes import split_mode
from morphling.scenario.profiles import ProfileRecord, load_profile, parse_profile
from morphling.scenario.sourced import Kind
from morphling.scenario.yaml12 import dump

__all__ = ["FIELDS", "HeatNumber", "base_profile", "profile_with_heat", "thermal_section", "write_whole"]

FIELDS: Final[dict[str, tuple[str, units.Dimension | None]]] = {
    "ambient_c": ("ambient", "temperature"),
    "ambient_to_case": ("ambient_to_case", "thermal_resistance"),
    "case_s": ("case_time", "time"),
    "case_cooling_s": ("case_cooling_time", "time"),
    "junction_to_case": ("junction_to_case", "thermal_resistance"),
    "junction_s": ("junction_time", "time"),
    "trip_c": ("trip", "temperature"),
    "hysteresis_k": ("hysteresis", "warming"),
    "clock_floor": ("clock_floor", None),
    "power_exponent": ("power_exponent", None),
    "static_share": ("static_share", None),
}
"""Column of `morphling.fleet.Thermal` → field of the profile, and its dimension."""


@dataclass(frozen=True)
class HeatNumber:
    """A constant in the unit of its column of `morphling.fleet.Thermal`, and where it comes from."""

    value: float
    kind: Kind
    source: str


def thermal_section(numbers: dict[str, HeatNumber], lacking: dict[str, str], head: list[str]) -> str:
    """YAML text of the section.

    numbers : column of `morphling.fleet.Thermal` → constant; in four significant digits, but for a few more digits
        nothing is known
    lacking : column → why it is not there, written as a comment
    head : lines of a comment above
    """
    lines = [f"# {line}" for line in head]
    lines += [f"# not told by the log: {FIELDS[column][0]} ({why})" for column, why in lacking.items()]
    return "\n".join(lines) + "\n" + dump({"thermal": _mapping(numbers)})


def _mapping(numbers: dict[str, HeatNumber]) -> dict[str, Any]:
    out = {}
    for column, (name, dimension) in FIELDS.items():
        if column in numbers:
            n = numbers[column]
            value = float(f"{n.value:.4g}")
            shown = value if dimension is None else f"{units.format_number(value, 4)} {units.BASE_UNITS[dimension]}"
            out[name] = {"value": shown, "source": n.source, "kind": n.kind}
    return out


def base_profile(reference: str) -> ProfileRecord:
    """The profile that another one is made from; `ProfileError` if there is none, or if it names a power mode."""
    if split_mode(reference)[1] is not None:
        raise ProfileError(f"--base {reference}: name the profile without its power mode")
    return load_profile(reference)


def profile_with_heat(
    base: ProfileRecord,
    name: str,
    numbers: dict[str, HeatNumber],
    lacking: dict[str, str],
    power: dict[str, HeatNumber],
    head: list[str],
) -> tuple[str, list[str]]:
    """YAML text of the profile ``base`` with these constants, and the fields of ``thermal`` that stay as they were.

    name : of the new profile
    power : ``idle`` and ``max``, if they replace those of the base, W

    Raises
    ------
    ProfileError
        A field is in neither, or the two do not go together.
    """
    plain: dict[str, Any] = base.model_dump(mode="json", by_alias=True, exclude_none=True)
    fitted, old = _mapping(numbers), plain.get("thermal", {})
    kept = [field for field in Thermal.model_fields if field in old and field not in fitted]
    needed = [f for f, info in Thermal.model_fields.items() if info.is_required() and f not in fitted | old]
    if needed:
        columns = {field: column for column, (field, _) in FIELDS.items()}
        why = "; ".join(f"{f}: {lacking.get(columns[f], 'not in a log')}" for f in needed)
        raise ProfileError(
            f"neither the log nor {base.name} has thermal.{', thermal.'.join(needed)} ({why}). Give a --base that has, "
            "or write the section alone, without --base"
        )
    plain["thermal"] = {f: fitted.get(f, old.get(f)) for f in Thermal.model_fields if f in fitted or f in old}
    for field, n in power.items():
        plain.setdefault("power", {})[field] = {
            "value": units.exact_text(n.value, "power"), "source": n.source, "kind": n.kind,
        }  # fmt: skip
    plain["name"], plain["title"] = name, f"{base.title}, heat fitted to a log"
    lines = [f"# {line}" for line in head]
    lines += [f"# not told by the log, kept from {base.name}: {', '.join(kept)}"] if kept else []
    text = "\n".join(lines) + "\n" + dump(plain)
    _read_back(text, name)
    return text, kept


def _read_back(text: str, name: str) -> ProfileRecord:
    try:
        return parse_profile(text, name)
    except ProfileError as error:
        faults = re.sub(rf"^{re.escape(name)}:\d+:\d+: ", "", str(error), flags=re.MULTILINE)
        raise ProfileError(f"the constants do not go together with the rest of the profile: {faults}") from None


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all; ``InputError`` if it cannot be written."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
