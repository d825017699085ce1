"""What the engine refuses in a task table before it runs a row of it."""

from __future__ import annotations

import numpy as np

from morphling.errors import EngineError, PlanError
from morphling.fleet import Fleet
from morphling.interfaces.strategy import Strategy
from morphling.interfaces.tasks import TaskTable

__all__ = ["check_rows"]


def check_rows(fleet: Fleet, strategy: Strategy, tasks: TaskTable, label: str) -> None:
    """Refuse rows that no device could run as written.

    ``PlanError`` where it is this fleet that cannot, so that a comparison goes on; else ``EngineError``.
    """
    size = fleet.size
    if tasks.device.min() < 0 or tasks.device.max() > size:
        raise EngineError(f"dispatch {label!r}: a row names device {tasks.device.max()} of a fleet of {size}")
    central = tasks.device == size
    ours = central.any()
    if ours and np.any(central & ((tasks.bytes_in > 0) | (tasks.bytes_out > 0))):
        raise EngineError(f"dispatch {label!r}: rows on the coordinator have no link, so their payloads must be 0")
    _check_peers(fleet, strategy, tasks, label)
    perfect = (tasks.overlap == 0) & ~central
    if perfect.any() and np.any(perfect & np.append(fleet.links.half_duplex, False)[tasks.device]):
        raise PlanError(
            "perfect overlap is impossible on a half-duplex link; take another overlap, or give devices duplex: full"
            f" (dispatch {label!r})"
        )
    if max(tasks.bytes_in.max(), tasks.bytes_out.max()) >= 1 << 47:
        raise EngineError(f"dispatch {label!r}: a payload of 2^47 bytes or more")
    if strategy.enforces_memory:
        if not ours and tasks.resident_bytes.sum() <= fleet.memory_bytes[tasks.device].min():
            return  # even all on one device: a small table in a large fleet need not be summed by device
        held = np.bincount(tasks.device, tasks.resident_bytes, minlength=size + 1)[:size]
        over = np.flatnonzero(held > fleet.memory_bytes)
        if len(over):
            d = int(over[0])
            raise EngineError(
                f"dispatch {label!r}: device {d} would hold {held[d]:.0f} bytes of"
                f" {fleet.memory_bytes[d]} bytes"
                f" ({len(over)} of {size} devices are over their memory)"
            )


def _check_peers(fleet: Fleet, strategy: Strategy, tasks: TaskTable, label: str) -> None:
    """Refuse transfers between devices that cannot be."""
    rows = np.flatnonzero(tasks.peer >= 0)
    if not len(rows):
        return
    device, peer = tasks.device[rows], tasks.peer[rows]
    if not strategy.uses_peers:
        raise EngineError(
            f"dispatch {label!r}: row {rows[0]} names device {peer[0]} as its peer, but"
            f" {type(strategy).__name__}.uses_peers is False"
        )
    if peer.max() >= fleet.size:
        raise EngineError(f"dispatch {label!r}: a row names peer {peer.max()} of a fleet of {fleet.size}")
    if np.any(peer == device) or np.any(device == fleet.size):
        raise EngineError(f"dispatch {label!r}: a row's peer is another device, and not for the coordinator's rows")
    half = fleet.links.half_duplex
    if np.any(half[peer] | half[device]):
        d = int(np.flatnonzero(half[peer] | half[device])[0])
        raise PlanError(
            "half-duplex links serve the coordinator only; give devices duplex: full, or take a strategy in which they"
            f" talk to the coordinator alone (dispatch {label!r}: row {rows[d]} moves data between devices {device[d]}"
            f" and {peer[d]})"
        )
