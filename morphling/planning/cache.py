"""The shard cache: which rows or columns of which tensors each device still holds.

A model of the devices' memory, kept by a strategy; no bytes are stored here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from morphling.types import BoolArray, IntArray

__all__ = ["ShardCache", "ShardKey"]

ShardKey: TypeAlias = tuple[int, int, int]
"""(tensor id, axis, placement id): a device holds the shard of the tensor along the axis that the placement gave it."""


class ShardCache:
    """Shards on N devices, each device evicting its least recently used first.

    capacity_bytes : int64[N], what shards and a running row may fill together.

    ``hits``, ``misses``, ``evictions`` and ``refusals`` count shards (one device, one shard); a refusal is a shard too
    large to be kept beside its own row.
    """

    def __init__(self, capacity_bytes: ArrayLike) -> None:
        self.capacity: IntArray = np.array(capacity_bytes, np.int64).reshape(-1)
        if (self.capacity < 0).any():
            raise ValueError("a capacity is negative")
        self.hits = self.misses = self.evictions = self.refusals = 0
        self._tick = 0
        self._slots: dict[ShardKey, int] = {}
        self._free: list[int] = []
        self._bytes: IntArray = np.zeros((0, len(self.capacity)), np.int64)
        self._used_at: IntArray = np.zeros((0, len(self.capacity)), np.int64)

    @property
    def cached_bytes(self) -> IntArray:
        """Bytes of shards on each device, int64[N]."""
        total: IntArray = self._bytes.sum(axis=0)
        return total

    def holds(self, key: ShardKey) -> BoolArray:
        """Which devices hold their shard of ``key``, bool[N]; counts nothing and makes nothing more recent."""
        slot = self._slots.get(key)
        return np.zeros(len(self.capacity), np.bool_) if slot is None else self._bytes[slot] > 0

    def use(self, key: ShardKey, bytes: ArrayLike, working_set: ArrayLike = 0) -> BoolArray:  # noqa: A002 - the unit
        """Each device with ``bytes`` > 0 needs its shard of ``key``; returns which had it, bool[N].

        bytes : int64[N], the shard's size, 0 for devices that take no part (nothing changes there)
        working_set : int64[N] or scalar, what the row needs beside this shard

        On each device the least recently used other shards go until shards and working set fit the capacity.  A shard
        that does not fit even alone is not kept.  Raises ``ValueError`` if a device holds this key in another size,
        because then the placement is not the one it was.
        """
        size = np.broadcast_to(np.asarray(bytes, np.int64), self.capacity.shape)
        beside = np.broadcast_to(np.asarray(working_set, np.int64), self.capacity.shape)
        if (size < 0).any() or (beside < 0).any():
            raise ValueError("bytes and working sets must not be negative")
        slot = self._slot(key)
        part, held = size > 0, self._bytes[slot]
        wrong = part & (held > 0) & (held != size)
        if wrong.any():
            i = int(np.argmax(wrong))
            raise ValueError(f"device {i} holds {held[i]} bytes of shard {key}, not {size[i]}")
        hit: BoolArray = part & (held > 0)
        self._tick += 1
        self.hits += int(hit.sum())
        self.misses += int((part & ~hit).sum())
        room = self.capacity - beside - size
        fits = part & (room >= 0)
        self.refusals += int((part & ~fits).sum())
        # Taken out while the others are weighed, put back at the end: it is never its own victim.
        self._bytes[slot] = np.where(part, 0, held)
        self._evict(part, np.maximum(room, 0))
        self._bytes[slot] = np.where(fits, size, self._bytes[slot])
        self._used_at[slot] = np.where(fits, self._tick, self._used_at[slot])
        return hit

    def reserve(self, working_set: ArrayLike) -> None:
        """Make room for rows that need ``working_set`` bytes, int64[N], beside the shards: the least recently used
        go.
        """
        beside = np.broadcast_to(np.asarray(working_set, np.int64), self.capacity.shape)
        if (beside < 0).any():
            raise ValueError("working sets must not be negative")
        self._evict(beside > 0, np.maximum(self.capacity - beside, 0))

    def drop(self, devices: BoolArray) -> None:
        """Devices, bool[N], that left: their memory is gone.  Not counted as evictions."""
        self._bytes[:, np.asarray(devices, np.bool_)] = 0

    def forget(self, tensors: Iterable[int]) -> None:
        """Tensors that changed or are needed no more: their shards go everywhere.  Not counted as evictions."""
        gone = set(tensors)
        for key in [k for k in self._slots if k[0] in gone]:
            slot = self._slots.pop(key)
            self._bytes[slot] = 0
            self._free.append(slot)

    def _slot(self, key: ShardKey) -> int:
        """The row of ``key`` in the tables, made if new."""
        if key not in self._slots:
            if not self._free:
                self._reclaim()
            if not self._free:
                old = len(self._bytes)
                grown = np.zeros((max(8, old), len(self.capacity)), np.int64)
                self._bytes, self._used_at = (
                    np.concatenate([self._bytes, grown]),
                    np.concatenate([self._used_at, grown]),
                )
                self._free = list(range(len(self._bytes) - 1, old - 1, -1))
            self._slots[key] = self._free.pop()
        return self._slots[key]

    def _reclaim(self) -> None:
        """Free the rows of keys that no device holds any more."""
        empty: BoolArray = ~np.asarray(self._bytes.any(axis=1))
        for key in [k for k, slot in self._slots.items() if empty[slot]]:
            self._free.append(self._slots.pop(key))

    def _evict(self, part: BoolArray, room: IntArray) -> None:
        """On devices of ``part``, evict the least recently used until what stays fits ``room`` bytes, int64[N]."""
        over = np.flatnonzero(part & (self._bytes.sum(axis=0) > room))
        if not len(over):
            return
        held = self._bytes[:, over]
        newest = np.argsort(-self._used_at[:, over], axis=0, kind="stable")
        recent = np.take_along_axis(held, newest, axis=0)
        # Evicting from the oldest until the rest fits keeps the longest run of the newest that fits.
        kept = np.where(np.cumsum(recent, axis=0) <= room[over], recent, 0)
        self.evictions += int(((recent > 0) & (kept == 0)).sum())
        np.put_along_axis(held, newest, kept, axis=0)
        self._bytes[:, over] = held
