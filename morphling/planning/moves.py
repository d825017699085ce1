"""States on their way: to a checkpoint, from it, and from device to device, as rows of a task table.

Who needs what is decided by plans; only the translation into transfers belongs here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from morphling.interfaces.tasks import TaskTable
from morphling.planning.collectives import join
from morphling.types import IntArray, Kind

__all__ = ["copied", "gathered", "moved_bytes", "restored", "saved", "shifted"]

COORDINATOR = -1


def saved(devices: ArrayLike, size: ArrayLike) -> TaskTable:
    """Each of ``devices`` uploads its ``size`` bytes to the coordinator; those with none have no row."""
    return _transfers(devices, np.int64(COORDINATOR), 0, size)


def restored(devices: ArrayLike, size: ArrayLike) -> TaskTable:
    """Each of ``devices`` downloads its ``size`` bytes from the coordinator; those with none have no row."""
    return _transfers(devices, np.int64(COORDINATOR), size, 0)


def copied(sender: ArrayLike, receiver: ArrayLike, size: ArrayLike) -> TaskTable:
    """Sends between devices, in order; a sender of -1 is the coordinator, whose sends are downloads."""
    s, r, b = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, np.int64)) for x in (sender, receiver, size)))
    central = s < 0
    return _transfers(
        np.where(central, r, s),
        np.where(central, COORDINATOR, r),
        np.where(central, b, 0),
        np.where(central, 0, b),
    )


def gathered(first: TaskTable, then: TaskTable, coordinator: int) -> TaskTable:
    """``then`` begins when ``first`` has all arrived; ``coordinator`` is its number, the size of the fleet."""
    if not len(first) or not len(then):
        return TaskTable.concat([first, then])
    meets = TaskTable.build(device=coordinator, kind=Kind.TRANSFER, memory_bytes=0.0, resident_bytes=0)
    return join([(first, None), (meets, np.arange(len(first))), (then, len(first))])


def moved_bytes(tasks: TaskTable) -> int:
    """Bytes of all transfers of a table, each once."""
    return int(tasks.bytes_in.sum() + tasks.bytes_out.sum())


def shifted(
    held: Mapping[int, range],
    needed: Mapping[int, range],
    layer_bytes: Sequence[int],
    *,
    copies: Mapping[int, Sequence[int]] | None = None,
) -> TaskTable:
    """Moves after layers changed hands: each device fetches the layers that it needs and lacks.

    held : device → the layers whose states it has (devices that lost theirs are left out)
    needed : device → the layers that it needs
    copies : device → layers of others of which it keeps a copy
    layer_bytes : of each layer's states

    A layer comes from the holder with the fewest bytes to send so far (the first of equals in the order of ``held``),
    from a copy if no holder is left (its own if it has one), and from the coordinator if there is no copy either; one
    row for each pair.
    """
    holders: dict[int, list[int]] = {}
    for device, layers in held.items():
        for layer in layers:
            holders.setdefault(layer, []).append(device)
    spare: dict[int, list[int]] = {}
    for device, kept in (copies or {}).items():
        for layer in kept:
            spare.setdefault(layer, []).append(device)
    load: dict[int, int] = {}
    sends: dict[tuple[int, int], int] = {}
    for device, layers in needed.items():
        have, own = set(held.get(device, ())), set((copies or {}).get(device, ()))
        for layer in layers:
            if layer in have or (layer in own and layer not in holders):
                continue
            sources = holders.get(layer) or spare.get(layer) or [COORDINATOR]
            source = min(sources, key=lambda d: (load.get(d, 0), sources.index(d)))
            load[source] = load.get(source, 0) + layer_bytes[layer]
            sends[source, device] = sends.get((source, device), 0) + layer_bytes[layer]
    pairs = np.array(list(sends), np.int64).reshape(-1, 2)
    return copied(pairs[:, 0], pairs[:, 1], np.array(list(sends.values()), np.int64))


def _transfers(device: ArrayLike, peer: ArrayLike, bytes_in: ArrayLike, bytes_out: ArrayLike) -> TaskTable:
    columns = (np.atleast_1d(np.asarray(x, np.int64)) for x in (device, peer, bytes_in, bytes_out))
    d, p, i, o = np.broadcast_arrays(*columns)
    keep: IntArray = np.flatnonzero((i > 0) | (o > 0))
    return TaskTable.build(
        device=d[keep],
        kind=Kind.TRANSFER,
        peer=p[keep],
        bytes_in=i[keep],
        bytes_out=o[keep],
        memory_bytes=0.0,
        resident_bytes=0,
    )
