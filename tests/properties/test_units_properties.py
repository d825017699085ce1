"""Any quantity survives being written and read; display never lies by more than its digits."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from morphling import units
from morphling.errors import UnitError

DIMENSIONS = st.sampled_from(list(units.BASE_UNITS))


@given(DIMENSIONS, st.floats(1e-29, 1e29) | st.integers(0, 2**53))
def test_exact_text_reads_back(dimension: units.Dimension, value: float) -> None:
    assert units.parse(units.exact_text(value, dimension), dimension) == float(value)


@given(DIMENSIONS, st.floats(1e-6, 1e17))
def test_display_is_near_and_short(dimension: units.Dimension, value: float) -> None:
    text = units.format_quantity(value, dimension)
    number, _, unit = text.partition(" ")
    if " h " not in text:
        assert len(number.replace(".", "").lstrip("0")) <= 8  # three digits and an exponent
        assert abs(units.parse(f"{number} {unit}", dimension) - value) <= 0.006 * value


@given(st.text(max_size=12), DIMENSIONS)
def test_any_text_is_a_number_or_a_unit_error(text: str, dimension: units.Dimension) -> None:
    with contextlib.suppress(UnitError):
        assert units.parse(text, dimension) >= (-273.15 if dimension == "temperature" else 0)
