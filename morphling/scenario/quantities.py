"""Field types of scenario files: quantities with units, and quantities that are drawn for each device.

A `Quantity` in an ``Annotated`` type reads text such as ``80 Mbit/s`` to a number in base units and writes it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Generic, Self, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StrictFloat,
    StrictInt,
    Tag,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from morphling import units
from morphling.errors import UnitError
from morphling.fleet import sample
from morphling.scenario.data import suggestion
from morphling.types import FAR_NS, SECOND_NS

__all__ = [
    "DRAW_KEYS",
    "Bandwidth",
    "Bytes",
    "Cap",
    "Choice",
    "Compute",
    "Delay",
    "Draw",
    "Duration",
    "Energy",
    "EnergyPerBit",
    "Frequency",
    "Launch",
    "Lognormal",
    "Normal",
    "Power",
    "Quantity",
    "Rate",
    "Record",
    "Reserve",
    "SampledBandwidth",
    "SampledBytes",
    "SampledCompute",
    "SampledDelay",
    "SampledRate",
    "Share",
    "Temperature",
    "ThermalResistance",
    "Uniform",
    "Warming",
    "fleet_draw",
    "shape_of",
    "wrong",
]

_EXAMPLES = {
    "rate": ["80 Mbit/s", "10 MB/s"],
    "compute": ["5 TFLOP/s", "900 GFLOP/s"],
    "bytes": ["8 GB", "512 MiB"],
    "bandwidth": ["68 GB/s"],
    "time": ["35 ms", "0 s", "2 h"],
    "power": ["15 W", "500 mW"],
    "frequency": ["625 MHz"],
    "temperature": ["42 degC"],
    "warming": ["2 K"],
    "thermal_resistance": ["6 K/W"],
    "energy": ["15 Wh"],
    "energy_per_bit": ["130 nJ/bit"],
}
_UNIT_PATTERNS = {
    "rate": r"([kMGTPE]?|[KMGT]i)(bit|b|B)/s|[kMGTPE]?bps",
    "compute": r"[kMGTPE]?(FLOP/s|FLOPS)",
    "bytes": r"([kMGTPE]?|[KMGT]i)(bit|B)",
    "bandwidth": r"([kMGTPE]?|[KMGT]i)(bit|B)/s",
    "time": r"s|ms|us|µs|μs|ns|min|h",
    "power": r"mW|W|kW",
    "frequency": r"[kMGTPE]?Hz",
    "temperature": r"degC|°C",
    "warming": r"K",
    "thermal_resistance": r"(K|degC|°C)/W",
    "energy": r"[mk]?(J|Wh)",
    "energy_per_bit": r"[munpµμ]?J/bit",
}
DRAW_KEYS = ["uniform", "normal", "lognormal", "choice"]
"""Keys that make a mapping a distribution."""


def wrong(message: str) -> PydanticCustomError:
    """A fault of one field, without pydantic's own words around it; braces are not placeholders here."""
    return PydanticCustomError("quantity", "{reason}", {"reason": message})


@dataclass(frozen=True)
class Quantity:
    """Metadata of a field that holds a quantity.

    ``step`` is the grain in base units (a whole bit/s, a whole byte, a nanosecond): finer values are refused, not
    rounded.
    ``below`` is the first number that is too large.
    """

    dimension: units.Dimension
    zero: bool = False
    step: Fraction | None = None
    below: int = 2**63

    def read(self, value: object) -> float:
        """The number in base units; an int where the grain is 1."""
        try:
            exact = units.parse_exact(value, self.dimension, zero=self.zero)
        except UnitError as error:
            raise wrong(f"{error}{_misspelt_draw(value)}") from None
        base = units.BASE_UNITS[self.dimension]
        if exact >= self.below:
            raise wrong(f"'{value}' is too large: the limit is {units.exact_text(self.below, self.dimension)}")
        if self.step is not None and (exact / self.step).denominator != 1:
            grain = "1 ns" if self.dimension == "time" else f"1 {base}"
            raise wrong(f"'{value}' is finer than {grain}; write a whole multiple of it")
        return int(exact) if self.step == 1 else float(exact)

    def show(self, value: float) -> str:
        """Text that `read` takes back to the same number."""
        return units.exact_text(value, self.dimension)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Replace the number's own schema by reading and writing text."""
        write = core_schema.plain_serializer_function_ser_schema(self.show, return_schema=core_schema.str_schema())
        return core_schema.no_info_plain_validator_function(self.read, serialization=write)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """A string with a number and one of the usual units."""
        sign = r"[+-]?" if self.dimension == "temperature" else r"\+?"
        number = rf"^\s*{sign}(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*"
        return {
            "type": "string",
            "pattern": f"{number}({_UNIT_PATTERNS[self.dimension]})\\s*$",
            "examples": _EXAMPLES[self.dimension],
        }


def _misspelt_draw(value: object) -> str:
    if not isinstance(value, dict):
        return ""
    keys = [str(k) for k in value]
    hint = suggestion(keys[0], DRAW_KEYS, all_known=False) if keys else ""
    return f" with keys {', '.join(keys)}; {hint or 'to draw it for each device use ' + ', '.join(DRAW_KEYS)}"


_LAST_S = FAR_NS // SECOND_NS

Rate: TypeAlias = Annotated[int, Quantity("rate", step=Fraction(1), below=10**18)]
Compute: TypeAlias = Annotated[float, Quantity("compute", below=10**24)]
Bytes: TypeAlias = Annotated[int, Quantity("bytes", step=Fraction(1))]
Reserve: TypeAlias = Annotated[int, Quantity("bytes", zero=True, step=Fraction(1))]
Bandwidth: TypeAlias = Annotated[float, Quantity("bandwidth")]
Delay: TypeAlias = Annotated[float, Quantity("time", zero=True, step=Fraction(1, SECOND_NS), below=_LAST_S)]
Duration: TypeAlias = Annotated[float, Quantity("time", step=Fraction(1, SECOND_NS), below=_LAST_S)]
Launch: TypeAlias = Annotated[float, Quantity("time", zero=True, below=_LAST_S)]
Power: TypeAlias = Annotated[float, Quantity("power", zero=True)]
Cap: TypeAlias = Annotated[float, Quantity("power")]
Frequency: TypeAlias = Annotated[float, Quantity("frequency", below=10**12)]
Temperature: TypeAlias = Annotated[float, Quantity("temperature", zero=True)]
Warming: TypeAlias = Annotated[float, Quantity("warming")]
ThermalResistance: TypeAlias = Annotated[float, Quantity("thermal_resistance")]
Energy: TypeAlias = Annotated[float, Quantity("energy")]
EnergyPerBit: TypeAlias = Annotated[float, Quantity("energy_per_bit", zero=True)]


def _share(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    above = isinstance(value, int | float) and not isinstance(value, bool) and value > 1
    more = ": nothing achieves more than its peak" if above else ""
    raise wrong(f"a share in (0, 1] is needed, found {value!r}{more}")


@dataclass(frozen=True)
class _ShareOf:
    """Metadata of a field that holds a share of a peak."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(_share)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "number", "exclusiveMinimum": 0, "maximum": 1}


Share: TypeAlias = Annotated[float, _ShareOf()]


class Record(BaseModel):
    """Frozen; every key known."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=False)


Q = TypeVar("Q", bound=float)


class _DrawOf(Record, Generic[Q]):
    """A distribution from which each device draws its own value."""

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """``UniformRate``: the default would spell out all metadata."""
        found = next((m for m in getattr(params[0], "__metadata__", ()) if isinstance(m, Quantity)), None)
        return cls.__name__ + ("" if found is None else found.dimension.capitalize() + "OrZero" * found.zero)


class Uniform(_DrawOf[Q], Generic[Q]):
    """Every value between two bounds is as likely as any other."""

    uniform: tuple[Q, Q] = Field(description="Lower and upper bound, each with its unit.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.uniform[0] > self.uniform[1]:
            raise wrong("uniform: the lower bound comes first")
        return self


class NormalBody(_DrawOf[Q], Generic[Q]):
    """Parameters of a normal distribution."""

    mean: Q = Field(description="Mean, with its unit.")
    std: Q = Field(description="Standard deviation, with its unit.")
    min: Q | None = Field(None, description="Values below are drawn again (never clipped).")
    max: Q | None = Field(None, description="Values above are drawn again (never clipped).")


class LognormalBody(_DrawOf[Q], Generic[Q]):
    """Parameters of a lognormal distribution."""

    median: Q = Field(description="Median, with its unit.")
    sigma: float = Field(gt=0, lt=10, allow_inf_nan=False, description="Standard deviation of the natural logarithm.")
    min: Q | None = Field(None, description="Values below are drawn again (never clipped).")
    max: Q | None = Field(None, description="Values above are drawn again (never clipped).")


def _bounded(body: NormalBody[Q] | LognormalBody[Q]) -> None:
    if body.min is not None and body.max is not None and body.min >= body.max:
        raise wrong("min must be below max")


class Normal(_DrawOf[Q], Generic[Q]):
    """Normal, with bounds kept by drawing again."""

    normal: NormalBody[Q] = Field(description="Mean and standard deviation; min is obligatory: a normal has no floor.")

    @model_validator(mode="after")
    def _floored(self) -> Self:
        _bounded(self.normal)
        if self.normal.min is None:
            raise wrong("normal: give min, or values of zero and below would be drawn")
        return self


class Lognormal(_DrawOf[Q], Generic[Q]):
    """Lognormal, with bounds kept by drawing again."""

    lognormal: LognormalBody[Q] = Field(description="Median and sigma.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _bounded(self.lognormal)
        if not self.lognormal.median > 0:
            raise wrong("lognormal: the median must be above zero")
        return self


class Choice(_DrawOf[Q], Generic[Q]):
    """One of a few values."""

    choice: tuple[Q, ...] = Field(min_length=1, description="The values, each with its unit.")
    weights: tuple[StrictInt | StrictFloat, ...] | None = Field(
        None, description="Relative weights, one a value; equal if left out."
    )

    @model_validator(mode="after")
    def _weighed(self) -> Self:
        if self.weights is None:
            return self
        if len(self.weights) != len(self.choice):
            raise wrong(f"choice: {len(self.choice)} values but {len(self.weights)} weights")
        if not all(0 < w < float("inf") for w in self.weights):
            raise wrong("choice: each weight must be a finite number above zero")
        return self


Draw: TypeAlias = Uniform[Q] | Normal[Q] | Lognormal[Q] | Choice[Q]
"""What a sampled field holds instead of a number."""


def fleet_draw(value: float | Draw[Any]) -> sample.Draw:
    """The drawing counterpart of a sampled field, in base units; a plain number is drawn as a constant."""
    match value:
        case Uniform():
            return sample.Uniform(*value.uniform)
        case Normal(normal=body):
            return sample.Normal(body.mean, body.std, body.min, body.max)
        case Lognormal(lognormal=body):
            return sample.Lognormal(body.median, body.sigma, body.min, body.max)
        case Choice():
            return sample.Choice(value.choice, value.weights)
        case _:
            return sample.Constant(value)


def shape_of(value: object) -> str:
    """The tag of the one way to read a sampled field, so that a fault is reported for that way alone."""
    if isinstance(value, _DrawOf):
        return f"<{type(value).__mro__[1].__name__.lower()}>"
    if isinstance(value, dict):
        return next((f"<{key}>" for key in DRAW_KEYS if key in value), "<value>")
    return "<value>"


SampledRate: TypeAlias = Annotated[
    Annotated[Rate, Tag("<value>")]
    | Annotated[Uniform[Rate], Tag("<uniform>")]
    | Annotated[Normal[Rate], Tag("<normal>")]
    | Annotated[Lognormal[Rate], Tag("<lognormal>")]
    | Annotated[Choice[Rate], Tag("<choice>")],
    Discriminator(shape_of),
]
SampledCompute: TypeAlias = Annotated[
    Annotated[Compute, Tag("<value>")]
    | Annotated[Uniform[Compute], Tag("<uniform>")]
    | Annotated[Normal[Compute], Tag("<normal>")]
    | Annotated[Lognormal[Compute], Tag("<lognormal>")]
    | Annotated[Choice[Compute], Tag("<choice>")],
    Discriminator(shape_of),
]
SampledBytes: TypeAlias = Annotated[
    Annotated[Bytes, Tag("<value>")]
    | Annotated[Uniform[Bytes], Tag("<uniform>")]
    | Annotated[Normal[Bytes], Tag("<normal>")]
    | Annotated[Lognormal[Bytes], Tag("<lognormal>")]
    | Annotated[Choice[Bytes], Tag("<choice>")],
    Discriminator(shape_of),
]
SampledBandwidth: TypeAlias = Annotated[
    Annotated[Bandwidth, Tag("<value>")]
    | Annotated[Uniform[Bandwidth], Tag("<uniform>")]
    | Annotated[Normal[Bandwidth], Tag("<normal>")]
    | Annotated[Lognormal[Bandwidth], Tag("<lognormal>")]
    | Annotated[Choice[Bandwidth], Tag("<choice>")],
    Discriminator(shape_of),
]
SampledDelay: TypeAlias = Annotated[
    Annotated[Delay, Tag("<value>")]
    | Annotated[Uniform[Delay], Tag("<uniform>")]
    | Annotated[Normal[Delay], Tag("<normal>")]
    | Annotated[Lognormal[Delay], Tag("<lognormal>")]
    | Annotated[Choice[Delay], Tag("<choice>")],
    Discriminator(shape_of),
]
