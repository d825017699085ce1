"""Draws: how a number that differs from device to device is sampled.

A draw knows no units: it is given base units and gives them back.  Bounds of `Normal` and `Lognormal` are kept by
drawing rejected values again, so the shape between the bounds stays that of the distribution; nothing is ever clipped
onto a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import TypeAlias

import numpy as np

from morphling.errors import InputError
from morphling.types import FloatArray

__all__ = ["Choice", "Constant", "Draw", "Lognormal", "Normal", "Uniform"]

_MAX_ROUNDS = 1000
_EXP = Context(prec=17)


@dataclass(frozen=True)
class Constant:
    """The same ``value`` for every device."""

    value: float

    def __post_init__(self) -> None:
        _finite("constant", value=self.value)

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:  # noqa: ARG002 - one signature for all draws
        """``count`` times the value, float64[count]; takes nothing from ``rng``."""
        return np.full(count, self.value, np.float64)


@dataclass(frozen=True)
class Uniform:
    """Evenly between ``lo`` (included) and ``hi`` (excluded, but for rounding); ``lo == hi`` is a constant."""

    lo: float
    hi: float

    def __post_init__(self) -> None:
        _finite("uniform", lo=self.lo, hi=self.hi)
        if self.lo > self.hi:
            raise InputError(f"uniform: lower bound {self.lo:g} is above upper bound {self.hi:g}")

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Independent values, float64[count], in the unit of the bounds."""
        return np.asarray(self.lo + (self.hi - self.lo) * rng.random(count), np.float64)


@dataclass(frozen=True)
class Normal:
    """Gaussian with ``mean`` and ``std``; ``min`` and ``max`` (included) by drawing again what falls outside.

    With bounds, ``mean`` and ``std`` are those before the rejection.
    """

    mean: float
    std: float
    min: float | None = None
    max: float | None = None

    def __post_init__(self) -> None:
        _finite("normal", mean=self.mean, std=self.std)
        if self.std < 0:
            raise InputError(f"normal: std {self.std:g} is negative")
        _check_bounds("normal", self.min, self.max)

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Independent values, float64[count]; `InputError` if values within the bounds are too rare to find."""
        return _within(lambda size: self.mean + self.std * rng.standard_normal(size), self.min, self.max, count, self)


@dataclass(frozen=True)
class Lognormal:
    """``median · exp(sigma · z)`` with z standard normal; ``min`` and ``max`` (included) by drawing again.

    ``median`` > 0 is in the unit of the result, ``sigma`` >= 0 is the standard deviation of the natural logarithm.
    With bounds, both are those before the rejection.
    """

    median: float
    sigma: float
    min: float | None = None
    max: float | None = None

    def __post_init__(self) -> None:
        _finite("lognormal", median=self.median, sigma=self.sigma)
        if self.median <= 0:
            raise InputError(f"lognormal: median {self.median:g} is not above zero")
        if self.sigma < 0:
            raise InputError(f"lognormal: sigma {self.sigma:g} is negative")
        _check_bounds("lognormal", self.min, self.max)

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Independent values, float64[count]; `InputError` if values within the bounds are too rare to find."""
        return _within(
            lambda size: self.median * _exp(self.sigma * rng.standard_normal(size)), self.min, self.max, count, self
        )


@dataclass(frozen=True)
class Choice:
    """One of ``values``, evenly, or in proportion to ``weights`` (each above zero; they need not sum to one)."""

    values: tuple[float, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError("choice: there is nothing to choose from")
        _finite("choice", **{f"value {i}": value for i, value in enumerate(self.values)})
        if self.weights is None:
            return
        if len(self.weights) != len(self.values):
            raise InputError(f"choice: {len(self.values)} values but {len(self.weights)} weights")
        _finite("choice", **{f"weight {i}": weight for i, weight in enumerate(self.weights)})
        if min(self.weights) <= 0:
            raise InputError("choice: every weight must be above zero; leave out what is never chosen")

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Independent values, float64[count]."""
        weights = self.weights if self.weights is not None else (1.0,) * len(self.values)
        reach = np.cumsum(np.array(weights, np.float64))
        # The last entry is exactly 1 and random() stays below it, so the index is always in range.
        chosen = np.searchsorted(reach / reach[-1], rng.random(count), side="right")
        return np.array(self.values, np.float64)[chosen]


Draw: TypeAlias = Constant | Uniform | Normal | Lognormal | Choice
"""Anything with ``sample(rng, count) -> float64[count]``; the draws are independent from device to device."""


def _finite(draw: str, **numbers: float) -> None:
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise InputError(f"{draw}: {name} is {number}, not a finite number")


def _check_bounds(draw: str, low: float | None, high: float | None) -> None:
    _finite(draw, **{name: bound for name, bound in (("min", low), ("max", high)) if bound is not None})
    if low is not None and high is not None and low >= high:
        raise InputError(f"{draw}: min {low:g} is not below max {high:g}")


def _within(
    draw: Callable[[int], FloatArray], low: float | None, high: float | None, count: int, what: Normal | Lognormal
) -> FloatArray:
    values = np.empty(count, np.float64)
    pending = np.arange(count)
    for _ in range(_MAX_ROUNDS):
        drawn = draw(len(pending))
        values[pending] = drawn
        outside = np.zeros(len(pending), np.bool_)
        if low is not None:
            outside |= drawn < low
        if high is not None:
            outside |= drawn > high
        pending = pending[outside]
        if len(pending) == 0:
            return values
    raise InputError(
        f"{what}: {len(pending)} of {count} values still lie outside the bounds after {_MAX_ROUNDS} redraws; "
        "the bounds leave out nearly all of the distribution"
    )


def _exp(exponents: FloatArray) -> FloatArray:
    # numpy's and libm's exp differ in the last digit from processor to processor, which would give two machines two
    # fleets; the decimal module rounds correctly everywhere, at about 9 microseconds a value.
    factors = np.array([float(_EXP.exp(Decimal(x))) for x in exponents.tolist()], np.float64)
    if not np.all(np.isfinite(factors)):
        raise InputError(f"lognormal: exp({exponents.max():g}) is beyond what a float can hold; sigma is too large")
    return factors
