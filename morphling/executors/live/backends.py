"""Which back ends this host has, and why not more."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Literal

from morphling.executors.live.cuda import Cuda
from morphling.executors.live.host import Host
from morphling.executors.live.partition import BackEnd, Unavailable

__all__ = ["BACK_ENDS", "offers", "open_back_end"]

BACK_ENDS: Final[dict[str, type[BackEnd]]] = {"cuda": Cuda, "host": Host}
"""By name, the most faithful first."""


def open_back_end(asked: Literal["auto", "cuda", "host"]) -> tuple[BackEnd, dict[str, str]]:
    """The one asked for, or with ``auto`` the first that this host has; and why others were not taken.

    ``Unavailable`` if there is none.  A back end that fails its own test is never replaced unless ``auto`` says so.
    """
    if asked != "auto":
        return _opened(asked), {}
    passed_over: dict[str, str] = {}
    for name in BACK_ENDS:
        try:
            return _opened(name), passed_over
        except Unavailable as error:
            passed_over[name] = str(error)
    raise Unavailable("; ".join(f"{name}: {why}" for name, why in passed_over.items()))


@cache
def _opened(name: str) -> BackEnd:
    """Once a process: a driver keeps descriptors of parts for as long as it lives."""
    return BACK_ENDS[name]()


def offers() -> dict[str, dict[str, Any]]:
    """By back end: its partitions, dtypes and fingerprint, or why it is not there."""
    out: dict[str, dict[str, Any]] = {}
    for name in BACK_ENDS:
        try:
            back_end = _opened(name)
        except Unavailable as error:
            out[name] = {"ready": False, "why": str(error)}
            continue
        out[name] = {
            "ready": True,
            "partitions": [p.name for p in back_end.partitions()],
            "dtypes": [d.label for d in back_end.dtypes()],
            "clock": back_end.clock,
            "limiting": ["virtual", "enforced"] if back_end.paces else ["virtual"],
            "fingerprint": back_end.fingerprint(),
            **back_end.facts(),
        }
    return out
