"""Delays of a recovery as a scenario writes them, and how a report words them."""

from __future__ import annotations

from math import isfinite

__all__ = ["check_delay", "delay_range", "recovery_assumptions"]


def check_delay(name: str, delay: float | list[float]) -> None:
    """Refuse, with ``ValueError``, what is no duration in seconds, nor a list of the lowest and the highest."""
    listed = delay if isinstance(delay, list) else [delay]
    if isinstance(delay, list) and len(delay) != 2:
        raise ValueError(f"{name}: a list needs two values, the lowest and the highest, not {len(delay)}")
    for value in listed:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name}: a number of seconds is needed, found {value!r}")  # noqa: TRY004 - a fault of input
        if not isfinite(value) or value < 0:
            raise ValueError(f"{name}: seconds from 0 on, and finite, not {value:g}")
    if listed[0] > listed[-1]:
        raise ValueError(f"{name}: the lowest comes first; did you mean [{listed[1]:g}, {listed[0]:g}]?")


def delay_range(delay: float | list[float]) -> tuple[float, float]:
    """The lowest and the highest delay, seconds."""
    return (float(delay[0]), float(delay[1])) if isinstance(delay, list) else (float(delay), float(delay))


def recovery_assumptions(detection_s: float | list[float], planning_s: float | str) -> list[str]:
    """What a reader of recovery times should know."""
    low, high = delay_range(detection_s)
    drawn = f"{low:g} s" if low == high else f"{low:g} to {high:g} s (drawn for each instant at which devices leave)"
    measured = "the wall time that it took, so two runs of this scenario differ"
    charged = measured if isinstance(planning_s, str) else f"{planning_s:g} s"
    return [
        f"a device that leaves is noticed after {drawn}; until then it is planned for, and what it is sent is lost",
        f"each plan of lost blocks is charged {charged}; plans of the steps are not charged",
    ]
