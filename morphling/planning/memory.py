"""Memory that a sub-task needs on a device, by the published formulas."""

from __future__ import annotations

from math import sqrt

from morphling.planning.costs import tile_bytes

__all__ = ["FRAMEWORK_BYTES", "published_device_memory"]

FRAMEWORK_BYTES = 5 * 2**20
"""Overhead of the framework on a device in the published memory figure."""


def published_device_memory(d: int, f: int, tokens: int, devices: int, *, item_bytes: int = 2) -> float:
    """Cleave's memory on each device as its published memory figure counts it, bytes.

    The larger of the MLP's two products, cut into equal tiles of C's own aspect (tokens/sqrt(N) rows of A and
    q/sqrt(N) columns of B) with their operands, plus `FRAMEWORK_BYTES`.  ``d`` hidden size, ``f`` MLP size.
    Source: ``plot_model_memory`` of the figure scripts in the history of netsys-edinburgh/morphling.
    """
    if min(d, f, tokens, devices, item_bytes) < 1:
        raise ValueError("sizes and the number of devices must be at least 1")
    cut = sqrt(devices)
    tiles = (tile_bytes(tokens / cut, q / cut, inner, item_bytes) for inner, q in ((d, f), (f, d)))
    return float(max(tiles)) + FRAMEWORK_BYTES
