"""Device profiles: one YAML file a device class, every number with its source.

A number is ``{value, source, kind}``; ``kind`` says whether it is a vendor's, derived from a vendor's, measured or
assumed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Generic, Literal, Self, TypeVar

from pydantic import Field, StrictStr, ValidationError, model_validator

from morphling.errors import InputError, ProfileError, ScenarioError
from morphling.scenario.data import find_file, shipped_names
from morphling.scenario.faults import problems_of
from morphling.scenario.files import read_text
from morphling.scenario.quantities import Bandwidth, Bytes, Compute, Launch, Power, Record, Reserve, Share, wrong
from morphling.scenario.schema import DTypeName
from morphling.scenario.yaml12 import read_yaml

__all__ = ["ProfileRecord", "Sourced", "SourcedPower", "list_profiles", "load_profile", "parse_profile"]

V = TypeVar("V")
_Text = Annotated[StrictStr, Field(min_length=1)]


class Sourced(Record, Generic[V]):
    """A number and where it comes from."""

    value: V = Field(description="The number, with its unit.")
    source: _Text = Field(description="Where it comes from, for people.")
    kind: Literal["vendor", "derived", "measured", "assumed"] = Field(description="How far it can be trusted.")

    @property
    def origin(self) -> str:
        """``vendor: NVIDIA data sheet``."""
        return f"{self.kind}: {self.source}"


class SourcedPower(Record):
    """Power of the device."""

    idle: Sourced[Power] = Field(description="Power when nothing runs, W.")
    max: Sourced[Power] = Field(description="Power at full load, W.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max.value < self.idle.value:
            raise wrong("max is below idle")
        return self


class ProfileRecord(Record):
    """A device profile as read; properties give the numbers in base units, after the reserves and efficiencies."""

    name: _Text = Field(description="Name by which scenarios refer to it.")
    title: _Text = Field(description="Name for people.")
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

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if set(self.compute) != set(self.efficiency):
            odd = sorted(set(self.compute) ^ set(self.efficiency))
            raise wrong(f"compute and efficiency must name the same dtypes; only one of them has {', '.join(odd)}")
        if self.memory_reserved is not None and self.memory_reserved.value >= self.memory.value:
            raise wrong("memory_reserved leaves nothing of memory")
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
    def sources(self) -> dict[str, str]:
        """Field (``compute.float16``, ``power.idle``) → kind and source."""
        out = {f"compute.{d}": n.origin for d, n in self.compute.items()}
        out |= {f"efficiency.{d}": n.origin for d, n in self.efficiency.items()}
        out |= {"memory": self.memory.origin}
        if self.memory_reserved is not None:
            out["memory_reserved"] = self.memory_reserved.origin
        out |= {"memory_bandwidth": self.memory_bandwidth.origin, "memory_efficiency": self.memory_efficiency.origin}
        if self.launch is not None:
            out["launch"] = self.launch.origin
        if self.power is not None:
            out |= {"power.idle": self.power.idle.origin, "power.max": self.power.max.origin}
        return out


def list_profiles() -> list[str]:
    """Names of the shipped profiles, sorted."""
    return shipped_names("device_profiles")


def load_profile(reference: str, folder: Path | None = None) -> ProfileRecord:
    """The profile of that name, or at that path (relative to ``folder``).

    Raises
    ------
    ProfileError
        There is none, or it has faults: all of them, each as file:line:col: field: reason.
    """
    try:
        path = find_file("device_profiles", reference, folder)
        return parse_profile(read_text(path), str(path))
    except ProfileError:
        raise
    except InputError as error:
        raise ProfileError(str(error)) from None


def parse_profile(text: str, origin: str) -> ProfileRecord:
    """The profile in ``text``; ``origin`` is its name in errors.  Raises `ProfileError` with all faults."""
    try:
        document = read_yaml(text, origin)
    except ScenarioError as error:
        raise ProfileError(str(error)) from None
    try:
        return ProfileRecord.model_validate(document.value)
    except ValidationError as error:
        raise ProfileError("\n".join(problems_of(error, ProfileRecord, document.value, document.where))) from None
