"""Power modes of a board: how many of its multiprocessors run, at which clocks, under which cap.

A mode is named behind the profile: ``jetson-orin-nx-16gb@25w``.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field, StrictInt, StrictStr, ValidationInfo, field_validator

from morphling.errors import ProfileError
from morphling.scenario.data import is_path, suggestion
from morphling.scenario.heat import SourcedPower
from morphling.scenario.quantities import Cap, Frequency, Record, wrong
from morphling.scenario.sourced import Kind, Sourced, Text
from morphling.units import format_frequency, format_number

__all__ = ["PowerMode", "PowerModes", "split_mode"]


def _mode_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        hint = f", did you mean '{near}'?" if near else ""
        raise wrong(f"the name of a mode has small letters, digits and '-' only{hint}")
    return name


_ModeName: TypeAlias = Annotated[StrictStr, AfterValidator(_mode_name)]


class PowerMode(Record):
    """One mode; its numbers share a source."""

    sm: Annotated[StrictInt, Field(ge=1)] = Field(description="Streaming multiprocessors that run.")
    gpu_clock: Frequency = Field(description="Highest clock of the GPU, Hz.")
    memory_clock: Frequency | None = Field(None, description="Highest clock of the memory, Hz. Left out: not capped.")
    power: Cap = Field(description="Power budget of the mode, W.")
    source: Text = Field(description="Where the numbers come from, for people.")
    kind: Kind = Field(description="How far they can be trusted.")


class PowerModes(Record):
    """All modes of a board, and the one in which the profile's own numbers hold."""

    reference: Text = Field(description="The mode in which the numbers of the profile hold.")
    modes: dict[_ModeName, PowerMode] = Field(min_length=1, description="The modes by name.")

    @field_validator("modes")
    @classmethod
    def _scalable(cls, modes: dict[str, PowerMode], info: ValidationInfo) -> dict[str, PowerMode]:
        name = info.data.get("reference")
        if name is None:
            return modes
        if name not in modes:
            raise wrong(f"the reference mode '{name}' is not among them, {suggestion(name, list(modes))}")
        full = modes[name]
        for other, mode in modes.items():
            if mode.sm > full.sm:
                raise wrong(f"{other} runs {mode.sm} multiprocessors, the reference mode {name} only {full.sm}")
            if mode.memory_clock is not None and full.memory_clock is None:
                raise wrong(f"{other} caps the memory's clock, so the reference mode {name} must state it")
            if mode.memory_clock is not None and full.memory_clock is not None:
                _not_above(other, mode.memory_clock, name, full.memory_clock)
        return modes

    def named(self, name: str, profile: str) -> PowerMode:
        """The mode of that name.  ``ProfileError``, with the nearest one, if there is none."""
        if name in self.modes:
            return self.modes[name]
        near = suggestion(name, list(self.modes), all_known=False)
        hint = near or f"known: {', '.join(self.modes)}"
        raise ProfileError(f"{profile} has no power mode '{name}', {hint}")

    def compute(self, peak: Sourced[float], mode: PowerMode) -> Sourced[float]:
        """The peak rate in that mode: by multiprocessors that run and by clock."""
        full = self.modes[self.reference]
        ratio = mode.sm * mode.gpu_clock / (full.sm * full.gpu_clock)
        how = f"{mode.sm} of {full.sm} SM x {_mhz(mode.gpu_clock)} of {_mhz(full.gpu_clock)} of: {peak.source}"
        return _changed(peak, peak.value * ratio, how)

    def bandwidth(self, peak: Sourced[float], mode: PowerMode) -> Sourced[float]:
        """The peak rate of the memory in that mode: by its clock."""
        full = self.modes[self.reference].memory_clock
        if mode.memory_clock is None or full is None or mode.memory_clock == full:
            return peak
        how = f"{_mhz(mode.memory_clock)} of {_mhz(full)} of: {peak.source}"
        return _changed(peak, peak.value * mode.memory_clock / full, how)

    def efficiency(self, share: Sourced[float]) -> Sourced[float]:
        """The achieved share, which nobody measured in another mode."""
        how = f"as in mode {self.reference}, where: {share.source} ({share.kind})"
        return share.model_copy(update={"source": how, "kind": "assumed"})

    def powers(self, power: SourcedPower, mode: PowerMode) -> SourcedPower:
        """Full load is the mode's budget; idle keeps its share of it."""
        share = 0.0 if power.max.value == 0 else power.idle.value / power.max.value
        watts = power.idle.value * mode.power / power.max.value if power.max.value else 0.0
        budget = power.max.model_copy(update={"value": mode.power, "source": mode.source, "kind": mode.kind})
        how = f"{share:.0%} of the mode's budget, as in mode {self.reference}: {power.idle.source}"
        idle = power.idle.model_copy(update={"value": watts, "source": how, "kind": "assumed"})
        return power.model_copy(update={"idle": idle, "max": budget})


def split_mode(reference: str) -> tuple[str, str | None]:
    """``board@25w`` → (``board``, ``25w``); without a mode the second is None."""
    profile, at, mode = reference.rpartition("@")
    return (profile, mode) if at and profile and not is_path(mode) else (reference, None)


def _changed(number: Sourced[float], value: float, source: str) -> Sourced[float]:
    kind = "assumed" if number.kind == "assumed" else "derived"
    return number.model_copy(update={"value": value, "source": source, "kind": kind})


def _not_above(other: str, clock: float, name: str, full: float) -> None:
    if clock > full:
        raise wrong(f"{other} clocks the memory at {_mhz(clock)}, above the {_mhz(full)} of the reference mode {name}")


def _mhz(clock: float) -> str:
    return f"{format_number(clock / 1e6, 5)} MHz" if clock < 1e10 else format_frequency(clock)
