"""Device profiles: one YAML file a device class, every number with its source.

A number is ``{value, source, kind}``; ``kind`` says whether it is a vendor's, derived from a vendor's, measured or
assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator, model_validator

from morphling.errors import InputError, ProfileError, ScenarioError
from morphling.scenario.data import find_file, shipped_names
from morphling.scenario.faults import problems_of
from morphling.scenario.files import read_text
from morphling.scenario.gemm_profiles import GemmModelRecord, check_samples
from morphling.scenario.heat import Battery, SourcedPower, Thermal
from morphling.scenario.power_modes import PowerModes, split_mode
from morphling.scenario.quantities import Bandwidth, Bytes, Compute, Launch, Record, Reserve, Share, wrong
from morphling.scenario.schema import DTypeName
from morphling.scenario.sourced import Sourced, Text
from morphling.scenario.yaml12 import read_yaml
from morphling.units import format_compute

__all__ = [
    "Number",
    "ProfileRecord",
    "Sourced",
    "find_profile",
    "list_profiles",
    "load_profile",
    "parse_profile",
    "profile_document",
]

_FORMER_NAMES: Final = {"jetson-orin-nx": "jetson-orin-nx-16gb", "jetson-agx-orin": "jetson-agx-orin-64gb"}
"""Names of version 0.1.0, from when these boards were there in one size only."""


class Number(NamedTuple):
    """One number of a profile, for people: ``compute.float16``, ``15 TFLOP/s``, ``derived``, where from."""

    field: str
    value: str
    kind: str
    source: str


class ProfileRecord(Record):
    """A device profile as read; properties give the numbers in base units, after the reserves and efficiencies."""

    name: Text = Field(description="Name by which scenarios refer to it.")
    title: Text = Field(description="Name for people.")
    device_class: Literal["jetson", "phone", "laptop", "server", "board"] = Field(
        alias="class", description="Kind of device."
    )
    compute: dict[DTypeName, Sourced[Compute]] = Field(min_length=1, description="Peak rate for each dtype, FLOP/s.")
    efficiency: dict[DTypeName, Sourced[Share]] = Field(
        description="Achieved share of the peak in large GEMMs, in (0, 1], for the same dtypes."
    )
    memory: Sourced[Bytes] = Field(description="All memory that training could share, bytes.")
    memory_reserved: Sourced[Reserve] | None = Field(None, description="What the operating system keeps, bytes.")
    memory_bandwidth: Sourced[Bandwidth] = Field(description="Peak rate of the memory, B/s.")
    memory_efficiency: Sourced[Share] = Field(description="Sustained share of that peak, in (0, 1].")
    launch: Sourced[Launch] | None = Field(None, description="Fixed cost of one sub-task, s. Left out: 0.")
    power: SourcedPower | None = Field(
        None, description="Idle and full-load power, W. Left out: no energy is reported."
    )
    battery: Battery | None = Field(None, description="The battery. Left out: plugged in.")
    thermal: Thermal | None = Field(None, description="How it warms and slows. Left out: never slows.")
    power_modes: PowerModes | None = Field(None, description="Modes, named as profile@mode. Left out: there are none.")
    gemm_model: GemmModelRecord | None = Field(
        None, description="Latency model fitted to measured GEMMs, for execution: {mode: profiled}."
    )

    @field_validator("memory_reserved")
    @classmethod
    def _leaves_memory(cls, reserve: Sourced[Reserve] | None, info: ValidationInfo) -> Sourced[Reserve] | None:
        memory = info.data.get("memory")
        if reserve is not None and memory is not None and reserve.value >= memory.value:
            raise wrong(f"the reserve of {reserve.shown} leaves nothing of the memory of {memory.shown}")
        return reserve

    @field_validator("thermal")
    @classmethod
    def _fits_the_power(cls, thermal: Thermal | None, info: ValidationInfo) -> Thermal | None:
        if thermal is not None and "power" in info.data and (fault := thermal.fault_with(info.data["power"])):
            raise wrong(fault)
        return thermal

    @field_validator("gemm_model")
    @classmethod
    def _fits_the_peaks(cls, model: GemmModelRecord | None, info: ValidationInfo) -> GemmModelRecord | None:
        peaks: Any = info.data.get("compute")
        for dtype, fit in () if model is None or peaks is None else model.fits.items():
            if dtype not in peaks:
                raise wrong(f"fits.{dtype}: compute has no {dtype}")
            for name in ("peak", "small_peak"):
                if (rate := getattr(fit.parameters, name)) > peaks[dtype].value:
                    raise wrong(
                        f"fits.{dtype}.parameters.{name}: {format_compute(rate)} is above the stated peak "
                        f"compute.{dtype}, {format_compute(peaks[dtype].value)}"
                    )
        return model

    @field_validator("battery")
    @classmethod
    def _drains(cls, battery: Battery | None, info: ValidationInfo) -> Battery | None:
        if battery is not None and info.data.get("power", battery) is None:
            raise wrong("a battery needs power: {idle, max}, or nothing would drain it")
        return battery

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if set(self.compute) != set(self.efficiency):
            odd = sorted(set(self.compute) ^ set(self.efficiency))
            raise wrong(f"compute and efficiency must name the same dtypes; only one of them has {', '.join(odd)}")
        return self

    @property
    def peak_flops(self) -> dict[str, float]:
        """Peak rate for each dtype, FLOP/s."""
        return {dtype: number.value for dtype, number in self.compute.items()}

    @property
    def achieved_share(self) -> dict[str, float]:
        """Efficiency for each dtype, in (0, 1]."""
        return {dtype: number.value for dtype, number in self.efficiency.items()}

    @property
    def achieved_flops(self) -> dict[str, float]:
        """Rate of large GEMMs for each dtype, FLOP/s."""
        return {dtype: peak.value * self.efficiency[dtype].value for dtype, peak in self.compute.items()}

    @property
    def ridge(self) -> dict[str, float]:
        """Arithmetic intensity from which computing takes longer than memory, for each dtype, FLOP/B.

        Achieved rate over sustained bandwidth: the ridge point of the roofline (Williams et al., CACM 2009).
        """
        return {dtype: rate / self.sustained_bandwidth for dtype, rate in self.achieved_flops.items()}

    @property
    def usable_memory(self) -> int:
        """Memory without the operating system's reserve, bytes."""
        return self.memory.value - (0 if self.memory_reserved is None else self.memory_reserved.value)

    @property
    def sustained_bandwidth(self) -> float:
        """Rate of the memory that programs reach, B/s."""
        return self.memory_bandwidth.value * self.memory_efficiency.value

    @property
    def launch_s(self) -> float:
        """Fixed cost of one sub-task, s."""
        return 0.0 if self.launch is None else self.launch.value

    @property
    def idle_w(self) -> float:
        """Power when nothing runs, W; NaN where not stated."""
        return float("nan") if self.power is None else self.power.idle.value

    @property
    def max_w(self) -> float:
        """Power at full load, W; NaN where not stated."""
        return float("nan") if self.power is None else self.power.max.value

    @property
    def numbers(self) -> list[Number]:
        """Every number with its unit, kind and source, in the order of the file's schema; without the power modes."""
        fits = {} if self.gemm_model is None else self.gemm_model.fits
        return [
            *(Number(field, number.shown, number.kind, number.source) for field, number in _numbers("", self)),
            *(Number(f"gemm_model.{dtype}", fit.shown, fit.kind, fit.source) for dtype, fit in fits.items()),
        ]

    @property
    def sources(self) -> dict[str, str]:
        """Field (``compute.float16``, ``power.idle``) → kind and source."""
        fits = {} if self.gemm_model is None else self.gemm_model.fits
        fitted = {f"gemm_model.{dtype}": f"{fit.kind}: {fit.source}" for dtype, fit in fits.items()}
        return {field: number.origin for field, number in _numbers("", self)} | fitted

    @property
    def mode_names(self) -> list[str]:
        """Names of the power modes, in the order of the file."""
        return [] if self.power_modes is None else list(self.power_modes.modes)

    def in_mode(self, name: str) -> ProfileRecord:
        """The profile of the same board in a power mode; its name is ``profile@mode``.

        Peak rates go with multiprocessors times clock, the memory's rate with the memory's clock, full-load power is
        the mode's budget.  The achieved shares and the idle power's share of the budget are taken to be those of the
        reference mode.  ``ProfileError`` if there is no such mode.
        """
        modes = self.power_modes
        if modes is None:
            raise ProfileError(f"{self.name} has no power modes; name it without '@{name}'")
        mode = modes.named(name, self.name)
        called = {"name": f"{self.name}@{name}", "title": f"{self.title}, power mode {name}"}
        if name == modes.reference:
            return self.model_copy(update=called)
        changed: dict[str, Any] = {
            "compute": {d: modes.compute(peak, mode) for d, peak in self.compute.items()},
            "efficiency": {d: modes.efficiency(share) for d, share in self.efficiency.items()},
            "memory_bandwidth": modes.bandwidth(self.memory_bandwidth, mode),
            "gemm_model": None,  # it was fitted in the reference mode
        }
        if self.power is not None:
            changed["power"] = modes.powers(self.power, mode)
        return self.model_copy(update=called | changed)


def _numbers(path: str, value: object) -> Iterator[tuple[str, Sourced[Any]]]:
    if isinstance(value, Sourced):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(f"{path}.{key}", item)
    elif isinstance(value, BaseModel) and not isinstance(value, PowerModes):
        for key in type(value).model_fields:
            yield from _numbers(f"{path}.{key}".lstrip("."), getattr(value, key))


def list_profiles() -> list[str]:
    """Names of the shipped profiles, sorted."""
    return shipped_names("device_profiles")


def find_profile(reference: str, folder: Path | None = None) -> tuple[Path, str | None]:
    """The file and the power mode (None without one) that ``name``, ``path`` or either with ``@mode`` means.

    ``InputError`` if there is no such file; names the nearest shipped name.
    """
    name, mode = split_mode(reference)
    return find_file("device_profiles", _FORMER_NAMES.get(name, name), folder), mode


def load_profile(reference: str, folder: Path | None = None) -> ProfileRecord:
    """The profile of that name, or at that path (relative to ``folder``); with ``@mode``, in that power mode.

    Raises
    ------
    ProfileError
        There is none, or it has faults: all of them, each as file:line:col: field: reason.
    """
    try:
        path, mode = find_profile(reference, folder)
        record = parse_profile(read_text(path), str(path))
    except ProfileError:
        raise
    except InputError as error:
        raise ProfileError(str(error)) from None
    return record if mode is None else record.in_mode(mode)


def profile_document(reference: str, folder: Path | None = None) -> dict[str, Any]:
    """What `load_profile` reads, as plain YAML values in base units; without power modes and fitted model."""
    record = load_profile(reference, folder)
    plain: dict[str, Any] = record.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"power_modes", "gemm_model"}
    )
    return plain


def parse_profile(text: str, origin: str) -> ProfileRecord:
    """The profile in ``text``; ``origin`` is its name in errors.  Raises `ProfileError` with all faults."""
    try:
        document = read_yaml(text, origin)
    except ScenarioError as error:
        raise ProfileError(str(error)) from None
    try:
        profile = ProfileRecord.model_validate(document.value)
    except ValidationError as error:
        raise ProfileError("\n".join(problems_of(error, ProfileRecord, document.value, document.where))) from None
    check_samples(profile.gemm_model, origin, document.where(("gemm_model", "samples"), value=True))
    return profile
