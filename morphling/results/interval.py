"""Intervals of means over seeds: Student's t, and the ratio of two paired means."""

from __future__ import annotations

import math
from collections.abc import Sequence

from morphling.errors import InputError

__all__ = ["CONFIDENCE", "half_width", "ratio_half_width", "t_quantile"]

CONFIDENCE = 0.95


def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The t that a Student variable of ``freedom`` degrees stays within, on both sides, with that probability.

    Found by bisection of the closed form for whole degrees of freedom (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4),
    so that one number of statistics does not make a library of statistics a dependency.  ``InputError`` below 1 degree
    or for a probability that is not between 0 and 1.
    """
    if freedom < 1 or not 0 < confidence < 1:
        raise InputError(f"Student's t needs 1 degree of freedom and a probability, not {freedom} and {confidence}")
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(|T| < t)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of the mean of ``values``; None of fewer than two."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (count - 1))
    return t_quantile(count - 1) * deviation / math.sqrt(count)


def ratio_half_width(values: Sequence[float], base: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of mean(values) / mean(base), both of the same seeds in the same order.

    The residuals of the ratio estimator (Cochran 1977, Sampling Techniques, chapter 6) stay small where a seed is
    slow for both, which is what the same seeds are for.  None of fewer than two; ``InputError`` if they are not pairs.
    """
    if len(values) != len(base):
        raise InputError(f"{len(values)} values and {len(base)} are no pairs")
    if len(values) < 2:
        return None
    ratio, mean = math.fsum(values) / math.fsum(base), math.fsum(base) / len(base)
    spread = half_width([y - ratio * x for y, x in zip(values, base, strict=True)])
    return None if spread is None else spread / mean
