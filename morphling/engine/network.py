"""The network of a fleet as the kernels want it: which links exist, who is behind which cell, what TCP adds."""

from __future__ import annotations

import numpy as np

from morphling.engine.kernels import records as K  # noqa: N812 - a table of column names
from morphling.engine.kernels.records import LinkArrays, Net
from morphling.engine.links import link_arrays, millibits
from morphling.errors import EngineError
from morphling.fleet import Coordinator, Links
from morphling.types import IntArray

__all__ = ["LONGEST_TCP_LATENCY_NS", "MOST_SEGMENTS", "network_arrays"]

LONGEST_TCP_LATENCY_NS = 2_300_000_000
"""One-way latency of a device up to which a window's rate is exact in int64, with two devices on a path."""

MOST_SEGMENTS = 65_535
"""Largest initial window, in segments, and largest segment, in bytes."""


def network_arrays(links: Links, coordinator: Coordinator) -> Net:
    """Resources and flow slots of a fleet.

    Raises ``EngineError`` on a TCP setting that int64 does not hold exactly.
    """
    cells = None if links.cells is None else link_arrays(links.cells)
    size = links.size
    count = 0 if links.cells is None else links.cells.size
    resources = 2 * size + 2 * count + 2
    link = np.zeros((resources, K.LINK_COLUMNS), np.int64)
    link[:, K.CAPACITY] = link[:, K.FIRST_ON] = link[:, K.NEXT_AT] = -1
    flow = np.zeros((2 * size, K.FLOW_COLUMNS), np.int64)
    flow[:, K.PATH :] = flow[:, K.LAST_END] = flow[:, K.WIDEN_AT] = -1
    real = np.zeros((len(flow), 4))
    real[:, K.ENDS] = 9e18
    near = np.zeros((-(-len(flow) // 64), 2))
    near[:, 0] = 9e18
    longest = max(resources, len(flow))
    tcp = np.zeros((size, 2), np.int64)
    loss = np.zeros(size)
    down, up = links.peak_bps()
    link[:size, K.PEAK], link[size : 2 * size, K.PEAK] = millibits(down), millibits(up)
    for place, rate in ((-2, coordinator.uplink_bps), (-1, coordinator.downlink_bps)):
        link[place, K.CAPACITY] = -1 if rate is None else int(millibits(np.array([rate]))[0])
    _tcp(links, tcp, loss)
    return Net(
        state=np.array([count, -1, 0, 0, 0], np.int64),
        cell=_cells_of(links),
        cells=cells or _nothing(),
        link=link,
        spare=np.zeros((resources, 2)),
        flow=flow,
        real=real,
        near=near,
        far=np.full(-(-len(near) // 64), 9e18),
        dirty=np.zeros((longest, 2), np.int64),
        listed=np.zeros((longest, 3), np.int64),
        binding=np.full((len(flow), 5), -1, np.int64),
        tcp=tcp,
        loss=loss,
    )


def _cells_of(links: Links) -> IntArray:
    return np.full(links.size, -1, np.int64) if links.cell is None else links.cell.astype(np.int64)


def _nothing() -> LinkArrays:
    return LinkArrays(np.zeros((1, 3), np.int64), np.zeros((1, 10), np.int64), np.zeros((1, 7), np.int64))


def _tcp(links: Links, tcp: IntArray, loss: np.ndarray) -> None:
    """Fill in the connections' settings."""
    if links.tcp is None:
        return
    for name, values in (("segment_bytes", links.tcp.segment_bytes), ("initial_window", links.tcp.initial_window)):
        bad = np.flatnonzero((values < (0 if name == "segment_bytes" else 1)) | (values > MOST_SEGMENTS))
        if len(bad):
            raise EngineError(f"tcp.{name} of device {bad[0]} is {values[bad[0]]}, outside 1 … {MOST_SEGMENTS}")
    if not np.all((links.tcp.loss >= 0) & (links.tcp.loss < 1)):
        raise EngineError("tcp.loss is a share in [0, 1)")
    slow = np.flatnonzero((links.tcp.segment_bytes > 0) & (links.latency_ns > LONGEST_TCP_LATENCY_NS))
    if len(slow):
        d = int(slow[0])
        raise EngineError(
            f"device {d} has TCP and a one-way latency of {links.latency_ns[d] / 1e9:g} s; windows are exact up to"
            f" {LONGEST_TCP_LATENCY_NS / 1e9:g} s"
        )
    tcp[:, K.SEGMENT] = links.tcp.segment_bytes * K.MILLIBITS
    tcp[:, K.INITIAL] = links.tcp.initial_window
    loss[:] = links.tcp.loss
