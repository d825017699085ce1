"""What a scenario file may say of links: rates, latency, TCP, and the cells that devices share."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, StrictBool, StrictInt, StrictStr, Tag, model_validator

from morphling.scenario.data import suggestion
from morphling.scenario.quantities import Bytes, Duration, Record, SampledDelay, SampledRate, wrong

__all__ = [
    "Behind",
    "CellChoice",
    "Cells",
    "ConstantLink",
    "ConstantRates",
    "Count",
    "Link",
    "PopulationLink",
    "PopulationRates",
    "Rates",
    "Tcp",
    "Text",
    "TraceFile",
    "TraceLink",
    "TraceRates",
    "check_cells",
]

Text: TypeAlias = Annotated[StrictStr, Field(min_length=1)]
Count: TypeAlias = Annotated[StrictInt, Field(ge=1, lt=2**31)]


class TraceFile(Record):
    """A trace by path."""

    path: Text = Field(description="Path of the file, relative to the scenario.")
    format: Literal[
        "csv",
        "mobiperf",
        "ndt",
        "fedscale",
        "mahimahi",
        "fcc",
        "pensieve",
        "5gophers",
        "lumos5g",
        "nyu-mets",
        "ucc",
        "ookla",
    ] = Field(
        "csv",
        description="As 'morphling traces import' reads it. csv without any option: time_s,down_bps,up_bps as shipped.",
    )
    up: Text | None = Field(None, description="The uplink as a rate, where the format has none.")
    up_file: Text | None = Field(None, description="File of the same format whose rates are the uplink.")
    up_ratio: Annotated[float, Field(gt=0)] | None = Field(None, description="The uplink as a share of the downlink.")
    pick: Text | None = Field(None, description="Name of one trace, where the file holds several.")
    time_column: Text | None = Field(None, description="csv: name of the column of times.")
    time_unit: Literal["s", "ms", "us"] | None = Field(None, description="csv: unit of the times.")
    down_column: Text | None = Field(None, description="csv: name of the column of rates towards the device.")
    down_unit: Text | None = Field(None, description="csv: unit of that column, such as kbit/s.")
    up_column: Text | None = Field(None, description="csv: name of the column of rates from the device.")
    up_unit: Text | None = Field(None, description="csv: unit of that column.")
    separator: Literal["comma", "semicolon", "tab"] | None = Field(None, description="What separates the columns.")
    decimal_comma: StrictBool = Field(False, description="Whether numbers are written with a decimal comma.")
    clock: Literal["seconds", "milliseconds", "epoch-s", "epoch-ms"] | None = Field(
        None, description="What kind of clock the times are from, where it looks like another."
    )
    missing: Literal["hold", "pause"] = Field("hold", description="What a missing reading means.")
    gaps: Literal["hold", "pause"] = Field("hold", description="What a hole in time means.")
    strict: StrictBool = Field(False, description="Refuse what would be dropped or repaired.")

    def options(self) -> dict[str, Any]:
        """What is stated beside path and format."""
        fields = type(self).model_fields
        return {
            name: getattr(self, name)
            for name in fields
            if name not in {"path", "format", "strict"} and getattr(self, name) != fields[name].default
        }

    @property
    def shipped_form(self) -> bool:
        """Whether the file has the columns of the shipped traces, and is not imported."""
        return self.format == "csv" and not self.options()


class Tcp(Record):
    """What TCP adds: slow start, and a limit where segments are lost."""

    segment: Bytes = Field(1460, description="Payload of a segment, bytes; at most 65,535.")
    initial_window: Annotated[StrictInt, Field(ge=1, lt=65536)] = Field(
        10, description="Segments sent in the first round trip."
    )
    loss: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = Field(
        0.0, description="Share of segments lost on the way: 0.01 is 1 %."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.segment > 65_535:
            raise wrong(f"segment: at most 65535 bytes, not {self.segment}")
        return self


class _Link(Record):
    latency: SampledDelay = Field(0.0, description="One-way delay of each transfer, s; may be sampled.")
    duplex: Literal["full", "half"] = Field(
        "full", description="Whether a device can send and receive at once (full) or one at a time (half)."
    )
    tcp: Tcp | None = Field(
        None, description="Slow start and loss (Mathis et al. 1997) for each transfer. Left out: transfers are fluid."
    )


class ConstantRates(Record):
    """Rates that do not change."""

    downlink: SampledRate = Field(description="Rate towards the device, bit/s; may be sampled.")
    uplink: SampledRate = Field(description="Rate from the device, bit/s; may be sampled.")


class TraceRates(Record):
    """Rates that follow a step trace."""

    trace: Annotated[
        Annotated[Text, Tag("<name>")] | Annotated[TraceFile, Tag("<file>")],
        Discriminator(lambda value: "<file>" if isinstance(value, dict | TraceFile) else "<name>"),
    ] = Field(description="Name of a shipped trace, a path, or {path, format}.")
    offset: SampledDelay = Field(0.0, description="Where in the trace the device starts, s; may be sampled.")
    past_end: Literal["repeat", "hold", "error"] = Field(
        "repeat", description="After the last step: start again, keep the last rates, or stop the run with an error."
    )


class PopulationRates(Record):
    """Rates of its own for each of a group, drawn from a population."""

    population: Literal["home-wifi-ndt", "cleave-2-10x", "fedscale-like", "lte", "5g", "driving-lte"] = Field(
        description="Whose links; each device draws its own pair of mean rates."
    )
    variation: StrictBool = Field(
        True, description="Whether rates vary in time and pause as the population's do, or stay at the mean pair."
    )
    duration: Duration = Field(
        600.0, description="Length of each device's trace, s; it repeats. A whole number of steps."
    )
    step: Duration = Field(1.0, description="Time between changes of the rates, s.")


class ConstantLink(ConstantRates, _Link):
    """A link whose rates do not change."""


class TraceLink(TraceRates, _Link):
    """A link that follows a step trace."""


class PopulationLink(PopulationRates, _Link):
    """A link of its own for each device of the group, drawn from a population."""


def _link_shape(value: object) -> str:
    if not isinstance(value, dict):
        if isinstance(value, TraceRates):
            return "<trace>"
        return "<population>" if isinstance(value, PopulationRates) else "<constant>"
    if "trace" in value:
        return "<trace>"
    return "<population>" if any(get_close_matches("population", [str(k)], cutoff=0.8) for k in value) else "<constant>"


Link: TypeAlias = Annotated[
    Annotated[ConstantLink, Tag("<constant>")]
    | Annotated[TraceLink, Tag("<trace>")]
    | Annotated[PopulationLink, Tag("<population>")],
    Discriminator(_link_shape),
]
Rates: TypeAlias = Annotated[
    Annotated[ConstantRates, Tag("<constant>")]
    | Annotated[TraceRates, Tag("<trace>")]
    | Annotated[PopulationRates, Tag("<population>")],
    Discriminator(_link_shape),
]


class Cells(Record):
    """Access points or radio cells of one kind: the devices behind one share its downlink and its uplink."""

    name: Text = Field(description="What fleet entries call them.")
    count: Count = Field(1, description="How many such cells.")
    link: Rates = Field(description="Either {downlink, uplink}, {trace} or {population}, for each cell.")


class CellChoice(Record):
    """Which cell each device of a group is behind."""

    name: Text = Field(description="Name of the cells.")
    assign: Literal["in_turn", "blocks", "draw"] = Field(
        "in_turn",
        description="Device i behind cell i modulo their count (in_turn); equal runs of neighbours (blocks); or at "
        "random (draw).",
    )


Behind: TypeAlias = Annotated[
    Annotated[Text, Tag("<name>")] | Annotated[CellChoice, Tag("<choice>")],
    Discriminator(lambda value: "<choice>" if isinstance(value, dict | CellChoice) else "<name>"),
]


def check_cells(known: list[str], used: list[str | CellChoice | None]) -> None:
    """Refuse two cells of one name, names of no cells, and cells that no device is behind."""
    twice = [name for name in known if known.count(name) > 1]
    if twice:
        raise wrong(f"cells: two entries are called '{twice[0]}'")
    names = [x.name if isinstance(x, CellChoice) else x for x in used]
    for number, name in enumerate(names):
        if name is not None and name not in known:
            hint = suggestion(name, known) if known else "there is no section cells"
            raise wrong(f"fleet.{number}.cell: there are no cells called '{name}'; {hint}")
    for cells in known:
        if cells not in names:
            raise wrong(f"cells: no device is behind '{cells}'; name it in a fleet entry as cell, or leave it out")
