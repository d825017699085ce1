"""What a scenario's ``availability`` may say beyond lists of sessions: recordings to replay, distributions, fits."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    model_validator,
)

from morphling.scenario.data import suggestion
from morphling.scenario.quantities import Delay, Duration, Lognormal, Record, wrong

__all__ = [
    "AVAILABILITY_MODELS",
    "AvailabilityModel",
    "Behaviour",
    "Fit",
    "Renewing",
    "SpotCounts",
    "availability_model",
]

AVAILABILITY_MODELS = ["always", "sessions", "fedscale", "spot", "renewal", "phones-flash", "desktops-boinc"]
"""All models of availability, by name."""


def availability_model(value: object) -> object:
    """All models are named, whichever of them the file's other keys point to."""
    if value not in AVAILABILITY_MODELS:
        hint = suggestion(str(value), AVAILABILITY_MODELS, all_known=False)
        known = ", ".join(AVAILABILITY_MODELS)
        raise wrong(f"must be one of {known}, found {value!r}{', ' + hint if hint else ''}")
    return value


_Path: TypeAlias = Annotated[StrictStr, Field(min_length=1)]
_Hour: TypeAlias = Annotated[StrictInt | StrictFloat, Field(ge=0, lt=24)]
_Past: TypeAlias = Literal["repeat", "hold", "error"]

_PAST = (
    "After the horizon: all starts again (repeat; needs run.max_time), nobody comes or goes any more (hold), or a run "
    "that gets there stops (error)."
)


class _UpTo(Record):
    horizon: Duration = Field(description="How far sessions are laid out, s of virtual time.")
    past_horizon: _Past = Field("error", description=_PAST)


class Behaviour(_UpTo):
    """Recorded behaviour of clients in FedScale's schema, each repeated with its own period."""

    model: Annotated[Literal["fedscale"], BeforeValidator(availability_model)] = Field(
        description="FedScale JSON or pickle."
    )
    path: _Path = Field(
        description="{client: {active: [s, …], inactive: [s, …], finish_time: s}} as JSON or as a pickle of plain "
        "values, relative to the scenario. A client is there in [active, inactive) and starts again after finish_time."
    )
    assign: Literal["in_order", "draw"] = Field(
        "in_order", description="Clients to devices in the order of the file, or drawn with replacement."
    )
    repair: StrictBool = Field(
        False, description="Leave out empty sessions and join those that touch, counted in the notes; or refuse them."
    )
    start: Delay = Field(0.0, description="Time in the file at which virtual time 0 lies, s.")


class SpotCounts(Record):
    """Counts of machines over time, as recorded of preemptible machines in a cloud."""

    model: Annotated[Literal["spot"], BeforeValidator(availability_model)] = Field(description="Counts over time.")
    path: _Path = Field(
        description="CSV without header, time,count in each line, relative to the scenario; of equal times the last "
        "line holds. Which devices come and go is drawn."
    )
    time_unit: Literal["s", "min", "h"] = Field(description="Unit of the file's first column.")
    horizon: Duration | None = Field(None, description="Where the recording ends, s. Left out: at its last line.")
    past_horizon: _Past = Field("error", description=_PAST)


class _Bounds(Record):
    min: Duration | None = Field(None, description="Lengths below are drawn again (never clipped).")
    max: Duration | None = Field(None, description="Lengths above are drawn again (never clipped).")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min is not None and self.max is not None and self.min >= self.max:
            raise wrong("min must be below max")
        return self


class WeibullBody(_Bounds):
    """Parameters of a Weibull distribution."""

    shape: StrictInt | StrictFloat = Field(ge=0.1, le=100, description="Shape; below 1, long ones last.")
    scale: Duration = Field(description="Scale, s.")


class Weibull(Record):
    """Weibull, with bounds kept by drawing again."""

    weibull: WeibullBody = Field(description="Shape and scale.")


class ExponentialBody(_Bounds):
    """Parameters of an exponential distribution."""

    mean: Duration = Field(description="Mean, s.")


class Exponential(Record):
    """Exponential, with bounds kept by drawing again."""

    exponential: ExponentialBody = Field(description="Mean.")


def _length_shape(value: object) -> str:
    if isinstance(value, Record):
        return f"<{next(iter(type(value).model_fields))}>"
    keys = value if isinstance(value, dict) else {}
    return next((f"<{key}>" for key in ("weibull", "exponential") if key in keys), "<lognormal>")


Length: TypeAlias = Annotated[
    Annotated[Weibull, Tag("<weibull>")]
    | Annotated[Lognormal[Duration], Tag("<lognormal>")]
    | Annotated[Exponential, Tag("<exponential>")],
    Discriminator(_length_shape),
]


class Daily(Record):
    """How much more readily absent devices come at one hour than at another."""

    ratio: StrictInt | StrictFloat = Field(ge=1, le=1000, description="Rate of coming at its peak over its trough.")
    peak_hour: _Hour = Field(description="Hour of the peak, in [0, 24).")
    start_hour: _Hour = Field(0.0, description="Hour of the day at virtual time 0, in [0, 24).")


class BetaBody(Record):
    """Parameters of a Beta distribution."""

    alpha: StrictInt | StrictFloat = Field(ge=0.01, le=1e6, description="Alpha.")
    beta: StrictInt | StrictFloat = Field(ge=0.01, le=1e6, description="Beta.")


class BetaShare(Record):
    """Beta."""

    beta: BetaBody = Field(description="Alpha and beta.")


class Renewing(_UpTo):
    """Sessions and gaps in turn, each length drawn."""

    model: Annotated[Literal["renewal"], BeforeValidator(availability_model)] = Field(description="Drawn lengths.")
    on: Length = Field(description="How long a device stays: {weibull}, {lognormal} or {exponential}.")
    off: Length = Field(description="How long it is away.")
    share: BetaShare | None = Field(
        None, description="Distribution of devices' shares of time online; each device's gaps are scaled to its share."
    )
    diurnal: Daily | None = Field(None, description="Variation over the day. Left out: none.")
    initial: Annotated[
        Annotated[Literal["stationary", "online", "offline"], Tag("<word>")]
        | Annotated[Annotated[StrictInt | StrictFloat, Field(ge=0, le=1)], Tag("<share>")],
        Discriminator(lambda value: "<word>" if isinstance(value, str) else "<share>"),
    ] = Field("stationary", description="Share of devices online at time 0: as in the long run, all, none, or a share.")


class Fit(_UpTo):
    """A published fit of sessions and gaps."""

    model: Annotated[Literal["phones-flash", "desktops-boinc"], BeforeValidator(availability_model)] = Field(
        description="phones-flash: phones that are locked, on Wi-Fi and charging; desktops-boinc: volunteers' hosts."
    )
    start_hour: _Hour = Field(0.0, description="Hour of the day at virtual time 0; matters to phones only.")


AvailabilityModel: TypeAlias = Behaviour | SpotCounts | Renewing | Fit
