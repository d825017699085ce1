"""A number and where it comes from: what device profiles are made of."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, Field, StrictStr

from morphling import units
from morphling.scenario.quantities import Quantity, Record, wrong

__all__ = ["Kind", "Sourced", "Text"]

V = TypeVar("V")


def _said(text: str) -> str:
    if not text.strip():
        raise wrong("must not be blank")
    return text


Text: TypeAlias = Annotated[StrictStr, Field(min_length=1), AfterValidator(_said)]
Kind: TypeAlias = Literal["vendor", "derived", "measured", "assumed"]


class Sourced(Record, Generic[V]):
    """A number and where it comes from."""

    value: V = Field(description="The number, with its unit.")
    source: Text = Field(description="Where it comes from, for people.")
    kind: Kind = Field(description="How far it can be trusted.")

    @property
    def origin(self) -> str:
        """``vendor: NVIDIA data sheet``."""
        return f"{self.kind}: {self.source}"

    @property
    def shown(self) -> str:
        """The number with its unit, for people; a plain number where it has none."""
        found = next((m for m in type(self).model_fields["value"].metadata if isinstance(m, Quantity)), None)
        if found is None:
            return units.format_number(float(self.value), 4)  # type: ignore[arg-type]
        return units.format_quantity(float(self.value), found.dimension, 4)  # type: ignore[arg-type]
