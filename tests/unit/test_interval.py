"""Student's t against published values and scipy; intervals by hand."""

from __future__ import annotations

import math

import pytest
from scipy.stats import t

from morphling.errors import InputError
from morphling.results.interval import half_width, ratio_half_width, t_quantile

# Two-sided 95 % values of the usual printed table (for instance NIST/SEMATECH e-Handbook, 1.3.6.7.2).
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 29: 2.045, 100: 1.984}


@pytest.mark.parametrize(("freedom", "value"), TABLE.items())
def test_the_quantile_is_that_of_the_printed_table(freedom, value):
    assert t_quantile(freedom) == pytest.approx(value, abs=6e-4)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_the_quantile_is_that_of_scipy(confidence):
    for freedom in [*range(1, 60), 199, 1000]:
        assert t_quantile(freedom, confidence) == pytest.approx(t.ppf((1 + confidence) / 2, freedom), rel=1e-9)


@pytest.mark.parametrize(("freedom", "confidence"), [(0, 0.95), (-1, 0.95), (3, 0.0), (3, 1.0)])
def test_what_has_no_quantile_is_refused(freedom, confidence):
    with pytest.raises(InputError, match="degree of freedom"):
        t_quantile(freedom, confidence)


def test_half_the_width_by_hand():
    # Mean 3, standard deviation sqrt(10 / 4), so 2.776 * 1.5811 / sqrt(5) = 1.963.
    assert half_width([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(1.963, abs=1e-3)
    assert half_width([7.0, 7.0]) == 0
    assert half_width([7.0]) is None


def test_the_ratio_of_pairs_by_hand():
    # Ratio 12 / 6 = 2; residuals 3-2, 4-4, 5-6 = 1, 0, -1: sd 1; 4.303 * 1 / sqrt(3) / mean 2 = 1.2421.
    assert ratio_half_width([3.0, 4.0, 5.0], [1.0, 2.0, 3.0]) == pytest.approx(1.2421, abs=1e-3)


def test_the_ratio_of_pairs_that_move_together_is_certain():
    base = [1.0, 5.0, 2.0]
    assert ratio_half_width([3 * x for x in base], base) == pytest.approx(0, abs=1e-12)
    assert half_width(base) > 4
    assert ratio_half_width([1.0], [1.0]) is None
    with pytest.raises(InputError, match="no pairs"):
        ratio_half_width([1.0], [1.0, 2.0])


def test_the_ratio_is_that_of_the_definition():
    values, base = [2.0, 3.5, 9.0, 4.0], [1.0, 2.0, 4.0, 3.0]
    ratio = sum(values) / sum(base)
    residuals = [y - ratio * x for y, x in zip(values, base, strict=True)]
    deviation = math.sqrt(sum(r**2 for r in residuals) / 3)
    assert ratio_half_width(values, base) == pytest.approx(3.18245 * deviation / 2 / 2.5, rel=1e-5)
