"""What a scenario file may say: one frozen model a section, every field with its unit.

Models hold base units (bit/s, FLOP/s, bytes, seconds); text with units is read and written by `quantities`.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from morphling.scenario.availability_schema import Behaviour, Fit, Renewing, SpotCounts, availability_model
from morphling.scenario.heat import InlineBattery
from morphling.scenario.network_schema import (
    Behind,
    Cells,
    ConstantLink,
    Count,
    Link,
    PopulationLink,
    Text,
    TraceFile,
    TraceLink,
    check_cells,
)
from morphling.scenario.quantities import (
    DRAW_KEYS,
    Delay,
    Duration,
    Launch,
    Power,
    Rate,
    Record,
    SampledBandwidth,
    SampledBytes,
    SampledCompute,
    Share,
    shape_of,
    wrong,
)

__all__ = [
    "AlwaysOn",
    "Availability",
    "Cells",
    "ConstantLink",
    "Coordinator",
    "DTypeName",
    "Execution",
    "FleetEntry",
    "InlinePower",
    "InlineProfile",
    "PopulationLink",
    "Run",
    "Scenario",
    "Session",
    "SessionFile",
    "Sessions",
    "StrategyChoice",
    "TraceFile",
    "TraceLink",
    "TracedWorkload",
    "Workload",
]

DTypeName: TypeAlias = Literal["float32", "float16", "bfloat16", "tfloat32", "int8"]

MOST_DEVICES = 10_000_000
"""A hundred times the largest fleet that was tried; some 2 GB of columns.  Beyond it the system kills the run."""


class Workload(Record):
    """What is trained."""

    model: Text = Field(description="Name of a known model (opt-13b), or a path to a config.json.")
    batch_size: Count = Field(description="Sequences in one iteration, over the whole fleet.")
    sequence_length: Count = Field(description="Tokens in a sequence.")
    dtype: DTypeName = Field("float16", description="Number format of operands and results.")
    lm_head: Literal["devices", "coordinator"] = Field(
        "coordinator", description="Where the product with the vocabulary matrix runs."
    )
    fused_projections: StrictBool = Field(
        False,
        description="Whether query, key and value (and gate and up) are one GEMM.",
    )
    recompute: Literal["none", "full"] = Field(
        "none", description="Whether layers run forward again during the backward pass, to save activations."
    )


class TracedWorkload(Record):
    """What is trained, as the matrix products that were traced from a script or a model."""

    gemms: Text = Field(description="File of products, as `morphling emulate --trace-only` writes it.")
    dtype: DTypeName = Field("float16", description="Number format of operands and results.")


def _workload_shape(value: object) -> str:
    traced = "gemms" in value if isinstance(value, dict) else isinstance(value, TracedWorkload)
    return "<gemms>" if traced else "<model>"


AnyWorkload: TypeAlias = Annotated[
    Annotated[Workload, Tag("<model>")] | Annotated[TracedWorkload, Tag("<gemms>")], Discriminator(_workload_shape)
]


class InlinePower(Record):
    """Power of a device described in the scenario itself."""

    idle: Power = Field(description="Power when nothing runs, W.")
    max: Power = Field(description="Power at full load, W.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max < self.idle:
            raise wrong("power: max is below idle")
        return self


def _compute_shape(value: object) -> str:
    """One rate, or one for each dtype; a mapping of neither is read as whichever its first key resembles."""
    if not isinstance(value, dict) or shape_of(value) != "<value>":
        return "<one>"
    first = str(next(iter(value), ""))
    return "<one>" if get_close_matches(first, DRAW_KEYS, n=1) else "<dtypes>"


PerDType: TypeAlias = dict[DTypeName, SampledCompute]


class InlineProfile(Record):
    """A device described in the scenario itself; sampled fields are drawn anew for each device."""

    name: Text = Field("inline", description="What to call these devices in results.")
    compute: Annotated[
        Annotated[SampledCompute, Tag("<one>")] | Annotated[PerDType, Tag("<dtypes>")],
        Discriminator(_compute_shape),
    ] = Field(description="Rate of large GEMMs, FLOP/s: one for all dtypes, or one for each; may be sampled.")
    memory: SampledBytes = Field(description="What training may use, bytes; may be sampled.")
    memory_bandwidth: SampledBandwidth | None = Field(
        None, description="Sustained rate of the memory, B/s; may be sampled. Left out: never the limit."
    )
    efficiency: Annotated[
        Annotated[Share, Tag("<one>")] | Annotated[dict[DTypeName, Share], Tag("<dtypes>")],
        Discriminator(lambda value: "<dtypes>" if isinstance(value, dict) else "<one>"),
    ] = Field(1.0, description="Achieved share of ``compute`` in (0, 1]; 1 means that compute is the achieved rate.")
    launch: Launch = Field(0.0, description="Fixed cost of one sub-task, s.")
    power: InlinePower | None = Field(None, description="Idle and full-load power, W. Left out: no energy is reported.")
    battery: InlineBattery | None = Field(None, description="The battery. Left out: plugged in.")

    @field_validator("battery")
    @classmethod
    def _drains(cls, battery: InlineBattery | None, info: ValidationInfo) -> InlineBattery | None:
        if battery is not None and info.data.get("power", battery) is None:
            raise wrong("a battery needs power: {idle, max}, or nothing would drain it")
        return battery

    @model_validator(mode="after")
    def _same_dtypes(self) -> Self:
        if isinstance(self.compute, dict) and not self.compute:
            raise wrong("compute: no dtype has a rate")
        if isinstance(self.efficiency, dict):
            rates = set(self.compute) if isinstance(self.compute, dict) else set()
            if rates != set(self.efficiency):
                raise wrong(
                    f"efficiency is given for {', '.join(sorted(self.efficiency)) or 'no dtype'}, "
                    f"compute for {', '.join(sorted(rates)) or 'all dtypes at once'}; give both for the same dtypes"
                )
        return self


Profile: TypeAlias = Annotated[
    Annotated[Text, Tag("<name>")] | Annotated[InlineProfile, Tag("<inline>")],
    Discriminator(lambda value: "<inline>" if isinstance(value, dict | InlineProfile) else "<name>"),
]


class FleetEntry(Record):
    """A group of devices of one kind."""

    profile: Profile = Field(
        description="Name of a shipped profile or a path, either with @mode; or the device itself."
    )
    count: Count = Field(1, description="How many such devices.")
    link: Link = Field(description="Either {downlink, uplink}, {trace} or {population}; latency, duplex and tcp.")
    cell: Behind | None = Field(
        None, description="The cells that these devices are behind: a name from cells, or {name, assign}."
    )


class Coordinator(Record):
    """The parameter server; rates are seen from it, so it sends on its uplink what devices download."""

    profile: Profile = Field(
        "cloud-server", description="Name of a shipped profile or a path, either with @mode; or the machine itself."
    )
    downlink: Rate | None = Field(None, description="Rate at which it receives, bit/s. Left out: unlimited.")
    uplink: Rate | None = Field(None, description="Rate at which it sends, bit/s. Left out: unlimited.")

    @model_validator(mode="after")
    def _not_sampled(self) -> Self:
        if isinstance(self.profile, InlineProfile):
            rates = self.profile.compute.values() if isinstance(self.profile.compute, dict) else [self.profile.compute]
            values = [*rates, self.profile.memory, self.profile.memory_bandwidth]
            if any(isinstance(v, Record) for v in values):
                raise wrong("profile: the coordinator is one machine; give numbers, not distributions")
            if self.profile.battery is not None:
                raise wrong("profile: the coordinator is plugged in; leave battery out")
        return self


_Always: TypeAlias = Annotated[Literal["always"], BeforeValidator(availability_model)]
_Sessions: TypeAlias = Annotated[Literal["sessions"], BeforeValidator(availability_model)]


class AlwaysOn(Record):
    """Nobody leaves."""

    model: _Always = Field("always", description="Every device is there from beginning to end.")


class Session(Record):
    """One stay of one device."""

    device: Annotated[StrictInt, Field(ge=0)] = Field(description="Index of the device, from 0, in fleet order.")
    start: Delay = Field(0.0, description="When it comes, s of virtual time.")
    end: Duration | None = Field(None, description="When it leaves, s of virtual time. Left out: it stays.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.end is not None and self.end <= self.start:
            raise wrong("a session ends after it starts")
        return self


class Sessions(Record):
    """Stays of devices, listed here."""

    model: _Sessions = Field(description="Devices are there during their sessions.")
    sessions: tuple[Session, ...] = Field(
        description="A device may have several; they must not touch. A device that is not listed is always there."
    )


class SessionFile(Record):
    """Stays of devices, listed in a file."""

    model: _Sessions = Field(description="Devices are there during their sessions.")
    path: Text = Field(
        description="CSV with header device,start_s,end_s (seconds; an empty end_s: it stays), relative to the "
        "scenario; a device that is not listed is always there. Or client,start_s,end_s, see assign."
    )
    assign: Literal["in_order", "draw"] | None = Field(
        None, description="Clients to devices in the order of the file (the default), or drawn with replacement."
    )
    repair: StrictBool = Field(
        False, description="Clients only: leave out empty sessions and join touching ones, counted; or refuse them."
    )
    start: Delay = Field(0.0, description="Clients only: time in the file at which virtual time 0 lies, s.")


def _availability_shape(value: object) -> str:
    if isinstance(value, dict):
        named = value.get("model")
        if named in ("fedscale", "spot", "renewal"):
            return f"<{named}>"
        if named in ("phones-flash", "desktops-boinc"):
            return "<fit>"
        if named == "sessions" or "sessions" in value or "path" in value:
            return "<file>" if "path" in value else "<sessions>"
        return "<always>"
    if isinstance(value, SessionFile):
        return "<file>"
    if isinstance(value, Behaviour | SpotCounts | Renewing):
        return f"<{value.model}>"
    return "<sessions>" if isinstance(value, Sessions) else "<fit>" if isinstance(value, Fit) else "<always>"


Availability: TypeAlias = Annotated[
    Annotated[AlwaysOn, Tag("<always>")]
    | Annotated[Sessions, Tag("<sessions>")]
    | Annotated[SessionFile, Tag("<file>")]
    | Annotated[Behaviour, Tag("<fedscale>")]
    | Annotated[SpotCounts, Tag("<spot>")]
    | Annotated[Renewing, Tag("<renewal>")]
    | Annotated[Fit, Tag("<fit>")],
    Discriminator(_availability_shape),
]


class _Open(Record):
    """A section whose other keys belong to what it names, and are checked there."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def config(self) -> dict[str, Any]:
        """The keys that are not ours, as read."""
        return dict(self.__pydantic_extra__ or {})


class StrategyChoice(_Open):
    """The strategy and its configuration (all other keys)."""

    name: Text | None = Field(None, description="Name of an installed strategy.")
    plugin: Text | None = Field(
        None,
        description="Or a class to import, as 'package.module:Class'; or one in a file beside the scenario, as "
        "'my_strategy.py:Class', whose code is run only where that is allowed.",
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.name is None) == (self.plugin is None):
            raise wrong("give either name or plugin")
        return self


class Execution(_Open):
    """How long computing takes, and the configuration of that executor (all other keys)."""

    mode: Text = Field(
        "analytic", description="Name of an installed executor; analytic takes the numbers of the device profiles."
    )
    heat: StrictBool = Field(
        True, description="Whether devices whose profile has a thermal section warm and slow down."
    )


class Run(Record):
    """How much to run and what to keep."""

    iterations: Count = Field(1, description="Training iterations.")
    record: Literal["rows", "dispatches"] = Field(
        "rows",
        description="Keep every sub-task (rows). One line a dispatch (dispatches) is not there yet and is refused.",
    )
    max_time: Duration | None = Field(
        None, description="Virtual time after which the run is stopped, s. Left out: none."
    )


class Scenario(Record):
    """A whole experiment."""

    name: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)] = Field(
        description="Name of the run folder: letters, digits, '.', '_' and '-'."
    )
    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)] = Field(0, description="Seed of all random streams; 0 is a seed.")
    workload: AnyWorkload = Field(description="What is trained: a model by name, or a file of traced products.")
    fleet: tuple[FleetEntry, ...] = Field(min_length=1, description="Groups of devices.")
    cells: tuple[Cells, ...] = Field((), description="Access points and radio cells, whose links devices share.")
    coordinator: Coordinator = Field(default_factory=Coordinator, description="The parameter server.")
    availability: Availability = Field(default_factory=AlwaysOn, description="When devices are there.")
    strategy: StrategyChoice = Field(description="Who decides, with its configuration.")
    execution: Execution = Field(default_factory=Execution, description="How long computing takes.")
    run: Run = Field(default_factory=Run, description="How much to run and what to keep.")

    @model_validator(mode="after")
    def _countable(self) -> Self:
        if self.size > MOST_DEVICES:
            raise wrong(f"fleet: {self.size:,} devices are more than the {MOST_DEVICES:,} that one run can hold")
        cells = sum(entry.count for entry in self.cells)
        if cells > MOST_DEVICES:
            raise wrong(f"cells: {cells:,} cells are more than the {MOST_DEVICES:,} that one run can hold")
        return self

    @model_validator(mode="after")
    def _cells_known(self) -> Self:
        check_cells([cells.name for cells in self.cells], [entry.cell for entry in self.fleet])
        return self

    @property
    def size(self) -> int:
        """Number of devices."""
        return sum(entry.count for entry in self.fleet)
