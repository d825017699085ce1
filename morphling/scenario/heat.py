"""Sections of a device profile on heat, power and battery: records and their checks."""

from __future__ import annotations

from typing import Annotated, NamedTuple, Self, TypeAlias

from pydantic import Field, ValidationInfo, field_validator, model_validator

from morphling.scenario.quantities import (
    Cap,
    Duration,
    Energy,
    EnergyPerBit,
    Power,
    Record,
    Temperature,
    ThermalResistance,
    Warming,
    wrong,
)
from morphling.scenario.sourced import Sourced

__all__ = ["Battery", "BatteryNumbers", "InlineBattery", "SourcedPower", "Thermal"]

_Above0To1: TypeAlias = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
_Below1: TypeAlias = Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)]
_Exponent: TypeAlias = Annotated[float, Field(strict=True, ge=1, le=3, allow_inf_nan=False)]


class SourcedPower(Record):
    """Power of the device, and what its radio adds."""

    idle: Sourced[Power] = Field(description="Power when nothing runs, W.")
    max: Sourced[Power] = Field(description="Power at full load, W.")
    radio_up: Sourced[EnergyPerBit] | None = Field(None, description="Energy of sending one bit, J/bit.")
    radio_down: Sourced[EnergyPerBit] | None = Field(None, description="Energy of receiving one bit, J/bit.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max.value < self.idle.value:
            raise wrong("max is below idle")
        if self.max.value == 0:
            raise wrong("max is 0 W: a device that computes takes power; without 'power' no energy is reported")
        return self


RESUME = 0.5
"""Share of the capacity from which a device comes back where nothing else is said."""


class BatteryNumbers(NamedTuple):
    """A battery in base units: capacity in J, charger in W (0 = none), the others as shares of the capacity."""

    capacity_j: float
    reserve: float
    charger_w: float
    resume: float
    initial: float

    def checked(self, resume: float | None) -> Self:
        """The same; a fault where a device could never be there.  ``resume`` : as given, None if left out."""
        if self.charger_w == 0 and resume is not None:
            raise wrong("resume is given without charger: a device that left would never be charged")
        if self.charger_w > 0 and self.resume <= self.reserve:
            said = f"resume, {self.resume:g}" + (" if left out" if resume is None else "")
            raise wrong(f"{said}, is not above the reserve of {self.reserve:g}: a device would come back only to leave")
        if self.charger_w == 0 and self.initial <= self.reserve:
            raise wrong(
                f"initial, {self.initial:g}, is not above the reserve of {self.reserve:g}, and there is no charger: "
                "the device would never be there"
            )
        return self


class Battery(Record):
    """What a device without a plug can spend."""

    capacity: Sourced[Energy] = Field(description="Energy of the full battery, J.")
    reserve: Sourced[_Below1] = Field(description="Share of it at which the device leaves, in [0, 1).")
    charger: Sourced[Cap] | None = Field(
        None, description="Power of charging while the device is away, W. Left out: it is never charged."
    )
    resume: Sourced[_Above0To1] | None = Field(
        None, description="Share from which a device that left for its battery comes back. Left out: 0.5."
    )
    initial: Sourced[_Above0To1] | None = Field(None, description="Share at time 0, in (0, 1]. Left out: 1.")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        self.numbers.checked(None if self.resume is None else self.resume.value)
        return self

    @property
    def numbers(self) -> BatteryNumbers:
        """In base units, with what was left out."""
        return BatteryNumbers(
            self.capacity.value,
            self.reserve.value,
            0.0 if self.charger is None else self.charger.value,
            RESUME if self.resume is None else self.resume.value,
            1.0 if self.initial is None else self.initial.value,
        )


class InlineBattery(Record):
    """Battery of a device described in the scenario itself."""

    capacity: Energy = Field(description="Energy of the full battery, J.")
    reserve: _Below1 = Field(description="Share of it at which the device leaves, in [0, 1).")
    charger: Cap | None = Field(
        None, description="Power of charging while the device is away, W. Left out: it is never charged."
    )
    resume: _Above0To1 | None = Field(
        None, description="Share from which a device that left for its battery comes back. Left out: 0.5."
    )
    initial: _Above0To1 = Field(1.0, description="Share at time 0, in (0, 1].")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        self.numbers.checked(self.resume)
        return self

    @property
    def numbers(self) -> BatteryNumbers:
        """In base units, with what was left out."""
        resume = RESUME if self.resume is None else self.resume
        return BatteryNumbers(self.capacity, self.reserve, self.charger or 0.0, resume, self.initial)


class Thermal(Record):
    """Two heat stores in a row, junction and case, and a clock that falls when the case is too warm.

    At steady power P the case settles at ``ambient + ambient_to_case * P``, the junction at
    ``junction_to_case * P`` above that.
    """

    ambient: Sourced[Temperature] = Field(description="Temperature around the device, degC.")
    ambient_to_case: Sourced[ThermalResistance] = Field(description="Resistance between case and ambient, K/W.")
    case_time: Sourced[Duration] = Field(description="Time constant of the case while it warms, s.")
    case_cooling_time: Sourced[Duration] = Field(description="Time constant of the case while it cools, s.")
    junction_to_case: Sourced[ThermalResistance] = Field(description="Resistance between junction and case, K/W.")
    junction_time: Sourced[Duration] = Field(description="Time constant of the junction, s.")
    trip: Sourced[Temperature] = Field(description="Temperature of the case from which the clock falls, degC.")
    hysteresis: Sourced[Warming] = Field(description="How far below trip the case cools before the clock rises, K.")
    clock_floor: Sourced[_Above0To1] = Field(description="Lowest clock, as a share of the full one, in (0, 1].")
    clock_steps: Sourced[Annotated[int, Field(strict=True, ge=1, le=1000)]] | None = Field(
        None, description="Steps between the full clock and the floor. Left out: any clock between."
    )
    power_exponent: Sourced[_Exponent] = Field(description="Power above static goes with this power of the clock.")
    static_share: Sourced[_Below1] = Field(description="Share of the full power that no clock changes, in [0, 1).")

    @field_validator("trip")
    @classmethod
    def _trips_above_ambient(cls, trip: Sourced[Temperature], info: ValidationInfo) -> Sourced[Temperature]:
        ambient = info.data.get("ambient")
        if ambient is not None and trip.value <= ambient.value:
            raise wrong(f"trip of {trip.shown} is not above the ambient of {ambient.shown}")
        return trip

    @field_validator("hysteresis")
    @classmethod
    def _recovers(cls, hysteresis: Sourced[Warming], info: ValidationInfo) -> Sourced[Warming]:
        ambient, trip = info.data.get("ambient"), info.data.get("trip")
        if ambient is not None and trip is not None and trip.value - hysteresis.value <= ambient.value:
            raise wrong(
                f"the clock would never rise again: {trip.shown} less {hysteresis.shown} is not above the ambient "
                f"of {ambient.shown}"
            )
        return hysteresis

    def fault_with(self, power: SourcedPower | None) -> str | None:
        """Why this cannot be the heat of a device that takes ``power``; None if it can."""
        if power is None:
            return "heat follows from power: 'power' with idle and max is needed too"
        idle, full, static = power.idle.value, power.max.value, self.static_share.value
        rest = self.ambient.value + self.ambient_to_case.value * idle
        if rest >= self.trip.value:
            return (
                f"the clock would be at its floor for ever: {power.idle.shown} of idling through "
                f"{self.ambient_to_case.shown} keep the case at {rest:.4g} degC, and trip is {self.trip.shown}"
            )
        lowest = full * (static + (1 - static) * self.clock_floor.value**self.power_exponent.value)
        if lowest < idle * (1 - 1e-9):
            return (
                f"computing at clock_floor would take {lowest:.3g} W, less than idling, {power.idle.shown}: "
                "static_share or clock_floor is too low, or power.idle too high"
            )
        return None
