"""Temperatures of case and junction over time, exact between samples: the model that logs are fitted with.

The case goes to ``ambient + ambient_to_case · P`` with one time constant while it warms and another while it cools; the
junction goes to ``junction_to_case · P`` above the case.  It is the model of `morphling.fleet.Thermal`.
"""

from __future__ import annotations

import math

import numpy as np

from morphling.types import FloatArray

__all__ = ["case_temperatures", "computing_share", "junction_temperatures"]


def computing_share(
    load: FloatArray, clock: FloatArray | None, *, exponent: float = 1.0, static_share: float = 0.0
) -> FloatArray:
    """Share of the full power that computing takes, in [0, 1]: ``load · (static + (1 - static) · clock^exponent)``.

    ``load`` in [0, 1], ``clock`` as a share of the full one (None: always full), both float64[n].
    """
    if clock is None:
        return load
    return load * (static_share + (1 - static_share) * clock**exponent)


def case_temperatures(
    time_s: FloatArray, target_c: FloatArray, *, warming_s: float, cooling_s: float, start_c: float
) -> FloatArray:
    """Temperature of the case at each sample, degC, float64[n].

    time_s, target_c : float64[n]    ``target_c[i]`` holds from ``time_s[i]`` to ``time_s[i + 1]``
    warming_s, cooling_s : float     time constants while the target is above and below the case, s
    start_c : float                  at the first sample, degC

    A constant or target that is NaN makes NaN of everything from its first use on.
    """
    step = np.diff(time_s)
    warms, cools = np.exp(-step / warming_s).tolist(), np.exp(-step / cooling_s).tolist()
    now = start_c
    out = [now]
    # Within a step the case only comes nearer to its target, so it warms or cools all through it.
    for target, warm, cool in zip(target_c[:-1].tolist(), warms, cools, strict=True):
        now = target + (now - target) * (warm if target >= now else cool)
        out.append(now)
    return np.array(out)


def junction_temperatures(
    time_s: FloatArray,
    case_c: FloatArray,
    target_c: FloatArray,
    above_k: FloatArray,
    *,
    warming_s: float,
    cooling_s: float,
    junction_s: float,
    start_c: float,
) -> FloatArray:
    """Temperature of the junction at each sample, degC, float64[n], beside a case from `case_temperatures`.

    above_k : float64[n]    how far above the case the junction settles, K; holds like ``target_c``
    junction_s : float      time constant of the junction, s

    While the case goes to X as ``a · exp(-t/T)``, the junction is
    ``X + above + A · exp(-t/T) + B · exp(-t/junction_s)`` with ``A = a · T / (T - junction_s)``.
    """
    step, target, case = np.diff(time_s), target_c[:-1], case_c[:-1]
    case_s = np.where(target >= case, warming_s, cooling_s)
    fades, case_fades = np.exp(-step / junction_s), np.exp(-step / case_s)
    apart = case_s - junction_s
    same = np.abs(apart) < 1e-6 * junction_s
    both = np.where(same, step / junction_s * fades, case_s * (case_fades - fades) / np.where(same, math.inf, apart))
    pushed = (target + above_k[:-1]) * (1 - fades) + (case - target) * both
    now = start_c
    out = [now]
    for fade, push in zip(fades.tolist(), pushed.tolist(), strict=True):
        now = now * fade + push
        out.append(now)
    return np.array(out)
