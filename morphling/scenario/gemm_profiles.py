"""The section ``gemm_model`` of a device profile: a fitted latency model of matrix products for each dtype."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StrictFloat, StrictInt, StrictStr, create_model, field_validator

from morphling import units
from morphling.errors import ProfileError
from morphling.fleet.gemm import RANGES, GemmFit, GemmParameters
from morphling.scenario.data import full_path
from morphling.scenario.files import file_digest
from morphling.scenario.quantities import Bandwidth, Bytes, Compute, Launch, Record, wrong
from morphling.scenario.schema import DTypeName

__all__ = ["FitRecord", "GemmModelRecord", "SamplesRecord", "check_samples", "fit_plain"]

_Text = Annotated[StrictStr, Field(min_length=1)]
_Paid = Annotated[StrictFloat | StrictInt, Field(ge=0, le=1)]
_Factor = Annotated[StrictFloat | StrictInt, Field(ge=0, lt=1e12, allow_inf_nan=False)]
_Most = Annotated[StrictFloat | StrictInt, Field(gt=0, allow_inf_nan=False)]
_Tile = Annotated[StrictInt, Field(ge=1, le=1024)]
_Error = Annotated[StrictFloat | StrictInt, Field(ge=0, allow_inf_nan=False)]
_End = Annotated[StrictFloat | StrictInt, Field(gt=0, allow_inf_nan=False)]

_TIMES: Final = (
    "launch",
    "item",
    "small_launch",
    "vector_launch",
    "vector_row",
    "vector_step",
    "vector_across_row",
    "vector_across_step",
)
_RATES: Final = ("peak", "small_peak")


def _type_of(name: str) -> Any:
    if name in _TIMES:
        return Launch
    if name in _RATES:
        return Compute
    if name.endswith("bandwidth"):
        return Bandwidth
    if name.endswith("cache_bytes"):
        return Bytes
    if name in {"tile_m", "tile_n"}:
        return _Tile
    return (
        _Most if name == "small_most" else _Paid if "_paid_" in name or name in {"unhidden", "batch_share"} else _Factor
    )


_DIMENSIONS: Final[dict[Any, units.Dimension]] = {
    Launch: "time", Compute: "compute", Bandwidth: "bandwidth", Bytes: "bytes",
}  # fmt: skip

_PARAMETERS: Final[dict[str, Any]] = {
    f.name: (_type_of(f.name), Field(description="See docs/profiles.md.")) for f in fields(GemmParameters)
}
ParametersRecord: Any = create_model("GemmParametersRecord", __base__=Record, **_PARAMETERS)
"""A field for each of `GemmParameters`, with units."""


class HeldOut(Record):
    """Error on shapes that the fit did not see, as shares of the measured time."""

    median: _Error = Field(description="Median absolute error.")
    p90: _Error = Field(description="90th percentile of the absolute error.")


class FitRecord(Record):
    """A fitted model for one dtype."""

    source: _Text = Field(description="What was measured, where and when, for people.")
    kind: Literal["vendor", "derived", "measured", "assumed"] = Field(description="How far it can be trusted.")
    ranges: dict[Literal["m", "n", "k", "batch", "flops"], tuple[_End, _End]] = Field(
        description="Lowest and highest sampled value; beyond, durations count as extrapolated."
    )
    held_out_error: HeldOut | None = Field(None, description="Error on shapes that were held out.")
    parameters: ParametersRecord = Field(description="The parameters of the model.")

    @field_validator("ranges")
    @classmethod
    def _whole_and_ordered(cls, ranges: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        if lacking := [name for name in RANGES if name not in ranges]:
            raise wrong(f"missing {', '.join(lacking)}")
        if turned := [name for name, (low, high) in ranges.items() if low > high]:
            raise wrong(f"{turned[0]}: the lowest value comes first")
        return ranges

    @property
    def shown(self) -> str:
        """The error on held-out shapes, for people."""
        error = self.held_out_error
        return "fitted" if error is None else f"error {error.median:.1%}, p90 {error.p90:.1%}"

    def domain(self) -> GemmFit:
        """As the executor takes it."""
        values = {f.name: getattr(self.parameters, f.name) for f in fields(GemmParameters)}
        error = self.held_out_error
        return GemmFit(
            GemmParameters(**values),
            {str(name): ends for name, ends in self.ranges.items()},
            self.source,
            self.kind,
            None if error is None else float(error.median),
            None if error is None else float(error.p90),
        )


class SamplesRecord(Record):
    """The samples that the model was fitted to."""

    path: _Text = Field(description="CSV file, relative to the profile.")
    sha256: Annotated[StrictStr, Field(min_length=64, max_length=64)] = Field(description="Of the file's bytes.")


class GemmModelRecord(Record):
    """Fitted latency models of a device."""

    samples: SamplesRecord | None = Field(None, description="What they were fitted to; checked where it is named.")
    fits: dict[DTypeName, FitRecord] = Field(min_length=1, description="A model for each dtype that was measured.")


def check_samples(model: GemmModelRecord | None, origin: str, where: str) -> None:
    """``ProfileError`` if the samples that a profile names are not there, or are not those of its fit.

    ``origin`` is the profile's file; ``where`` the position of its samples, for the message.
    """
    if model is None or model.samples is None:
        return
    path = full_path(model.samples.path, Path(origin).resolve().parent)
    if not path.is_file():
        raise ProfileError(f"{where}: gemm_model.samples.path: no such file: {path}")
    if (found := file_digest(path)) != model.samples.sha256:
        raise ProfileError(
            f"{where}: gemm_model.samples.sha256: {path} has {found}: it is not what this model was fitted to; fit "
            "again with 'morphling profiles import-samples'"
        )


def fit_plain(fit: GemmFit) -> dict[str, Any]:
    """What stands under ``fits.<dtype>`` in a profile, as `FitRecord` reads it."""
    plain: dict[str, Any] = {"source": fit.source, "kind": fit.kind, "ranges": {}}
    plain["ranges"] = {name: [_short(low), _short(high)] for name, (low, high) in fit.ranges.items()}
    if fit.median_error is not None and fit.p90_error is not None:
        plain["held_out_error"] = {"median": fit.median_error, "p90": fit.p90_error}
    plain["parameters"] = {f.name: _written(f.name, getattr(fit.parameters, f.name)) for f in fields(GemmParameters)}
    return plain


def _written(name: str, value: float) -> Any:
    dimension = _DIMENSIONS.get(_type_of(name))
    if dimension == "bytes":
        value = round(value)
    return _short(value) if dimension is None else units.exact_text(value, dimension)


def _short(value: float) -> float:
    return int(value) if value == int(value) else value
