"""Batteries: the charge of each device, when one is at its reserve and leaves, and when it is charged and comes back.

Charge falls by idle power while a device is online, by what computing takes above that, and by the radio's energy for
transfers that have ended; it rises by the charger's power while the device is away.  It is worked out when something
can have changed it, and at checks that lie no later than the earliest instant at which it could be at the reserve:
that of idling while the device has nothing to do, that of full load while it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from morphling.engine.event_lane import EventLane
from morphling.engine.faults import called
from morphling.engine.kernels import records as K  # noqa: N812 - a table of column names
from morphling.engine.kernels.records import FAR
from morphling.engine.running import Running
from morphling.errors import EngineError
from morphling.fleet import Battery
from morphling.interfaces.recording import BatteryRecord
from morphling.types import SECOND_NS, BoolArray, FloatArray, Int32Array, IntArray

if TYPE_CHECKING:
    from morphling.engine.engine import Engine

__all__ = ["Batteries"]

CHURN_FIRST = -1
"""Devices leave and come before anything else is told at an instant, as the engine has it."""

SHORTEST_NS = 1_000_000
"""Least time between two checks of a device that has something to do: a departure is late by at most that."""

FRUITLESS = 100_000
"""Departures and returns without any dispatch after which a run without a limit of virtual time is given up."""


class Batteries:
    """The batteries of a run.

    Raises ``EngineError`` where a device has a battery but its idle or full-load power is not stated, or where it would
    come back only to leave.
    """

    def __init__(self, engine: Engine, battery: Battery) -> None:
        fleet = engine.fleet
        self.engine, self.battery, self.has = engine, battery, battery.has
        silent = np.flatnonzero(self.has & (np.isnan(fleet.idle_w) | np.isnan(fleet.max_w)))
        if len(silent):
            d = int(silent[0])
            raise EngineError(f"device {d} ({fleet.names()[d]}) has a battery, but states no idle and full-load power")
        useless = np.flatnonzero(self.has & (battery.charger_w > 0) & (battery.resume_j <= battery.reserve_j))
        if len(useless):
            d = int(useless[0])
            raise EngineError(f"device {d} ({fleet.names()[d]}) would come back with a battery not above its reserve")
        size = fleet.size
        self.level = battery.initial_j.copy()
        self.lowest = battery.initial_j.copy()
        self.since = np.zeros(size, np.int64)
        self.over = np.zeros(size)  # joules above idling of dispatches that are settled
        self.counted = np.zeros(size)  # joules above idling that `level` has in it
        self.out = self.has & (battery.initial_j <= battery.reserve_j)
        self.here = np.zeros(size, bool)  # by the sessions alone
        self.until = np.zeros(size, np.int64)
        self.departures = np.zeros(size, np.int64)
        self.due = np.full(size, FAR, np.int64)
        self.armed = FAR
        self.flying: dict[int, dict[int, Running]] = {}
        self.fruitless = 0
        # Checks fall on whole nanoseconds, and sums of charge are rounded.
        self.grain = np.where(self.has, np.nan_to_num(fleet.max_w + battery.charger_w) * 1e-9, 0.0)
        self.grain += 1e-12 * np.nan_to_num(battery.capacity_j)
        radio = (fleet.radio_down_j, fleet.radio_up_j)
        self.down_j, self.up_j = (np.zeros(size) if j is None else 8.0 * np.nan_to_num(j) for j in radio)

    # ------------------------------------------------------------------------------------------------------ sessions

    def start(self, until: IntArray) -> None:
        """Time 0: who is here by the sessions stays away if the battery is at its reserve.  ``until`` : int64[N]."""
        online = self.engine.online
        self.here, self.until = online.copy(), until.copy()
        online &= ~self.out
        self.plan(np.flatnonzero(self.has))

    def sessions(self, left: IntArray, joined: IntArray, until: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Sessions end and begin now; returns who really leaves, who really joins, and until when."""
        self.here[left] = False
        self.here[joined] = True
        self.until[joined] = until
        changed = np.concatenate([left, joined])
        changed = changed[self.has[changed]]
        self.bring(changed)
        self.out[changed] |= self.at_reserve(changed)
        left = left[self.engine.online[left]]
        comes = ~self.out[joined]
        self.due[changed] = self.engine.now_ns  # looked at once they are gone or here
        self.arm()
        return left, joined[comes], until[comes]

    # ------------------------------------------------------------------------------------------------------ dispatches

    def sent(self, running: Running) -> None:
        """A dispatch goes out: devices that had nothing to do may now drain at full load."""
        self.fruitless = 0
        devices = self.touched(running)
        fresh = np.array([d for d in devices.tolist() if not self.flying.get(d)], np.int64)
        for d in devices.tolist():
            self.flying.setdefault(d, {})[running.serial] = running
        self.bring(fresh)
        self.plan(fresh)

    def settled(self, running: Running) -> None:
        """A dispatch is settled: what it took is known, and a device may be at its reserve."""
        devices = self.touched(running)
        for d in devices.tolist():
            self.flying[d].pop(running.serial, None)
        self.over += self.spent_on(running)
        self.bring(devices)
        self.plan(devices)

    def touched(self, running: Running) -> IntArray:
        """Devices with a battery that a dispatch names, peers among them."""
        named = np.union1d(running.tasks.device, running.tasks.peer).astype(np.int64)
        named = named[(named >= 0) & (named < self.engine.fleet.size)]
        return named[self.has[named]]

    # ---------------------------------------------------------------------------------------------------------- charge

    def bring(self, devices: IntArray) -> None:
        """Bring the charge of devices to now."""
        if not len(devices):
            return
        now, fleet, b = self.engine.now_ns, self.engine.fleet, self.battery
        seconds = (now - self.since[devices]) / SECOND_NS
        watts = np.where(self.engine.online[devices], -fleet.idle_w[devices], b.charger_w[devices])
        spent = self.spent(devices)
        level = self.level[devices] + watts * seconds - (spent - self.counted[devices])
        self.level[devices] = np.minimum(level, b.capacity_j[devices])  # a full battery takes no more
        self.lowest[devices] = np.minimum(self.lowest[devices], self.level[devices])
        self.since[devices] = now
        self.counted[devices] = spent

    def spent(self, devices: IntArray) -> FloatArray:
        """Joules above idling that devices have spent since time 0, float64[len(devices)]."""
        total = self.over.copy()
        flying = {serial: r for d in devices.tolist() for serial, r in self.flying.get(d, {}).items()}
        for serial in sorted(flying):
            total += self.spent_on(flying[serial])
        heat = self.engine.heat
        if heat is not None:
            state, clock, now = heat.state, heat.clock, self.engine.now_ns
            span = clock[devices, K.RUN_END] - clock[devices, K.RUN_START]
            left = np.maximum(clock[devices, K.RUN_END] - now, 0)  # what it computes now is in the state up to its end
            share = np.where(left > 0, left / np.maximum(span, 1), 0.0)
            ahead = (state[devices, K.JOULES] - state[devices, K.STATES + K.JOULES]) * share
            total[devices] += state[devices, K.JOULES] - ahead
        taken: FloatArray = total[devices]
        return taken

    def spent_on(self, running: Running) -> FloatArray:
        """Joules above idling that a dispatch has taken so far, float64[N]: computing without heat, and the radio."""
        fleet, now, size = self.engine.fleet, self.engine.now_ns, self.engine.fleet.size
        tasks, times = running.tasks, running.times
        lane = self.engine.lane
        assert isinstance(lane, EventLane)  # noqa: S101 - the engine takes this lane for batteries
        slot = lane.slots.get(running.serial)
        if slot is not None:
            times = lane.row[slot.first : slot.last, K.DOWN_START : K.SETTLED + 1].T
        start, end, over = times[2], times[3], times[6]
        stop = np.minimum(np.where(end >= 0, end, np.where(over >= 0, over, now)), now)
        worked = np.where(start >= 0, np.minimum(running.durations, stop - start), 0)
        down = np.where((times[1] >= 0) & (times[1] <= now), tasks.bytes_in, 0)
        up = np.where((times[5] >= 0) & (times[5] <= now), tasks.bytes_out, 0)

        def by(device: Int32Array, amount: IntArray) -> FloatArray:
            mine = (device >= 0) & (device < size)
            summed: FloatArray = np.bincount(device[mine], amount[mine], minlength=size).astype(np.float64)
            return summed

        watts = np.where(self.has, fleet.max_w - fleet.idle_w, 0.0)
        if self.engine.heat is not None:
            watts = np.where(self.engine.heat.law[:size, K.SLOWS] > 0, 0.0, watts)
        joules: FloatArray = watts * by(tasks.device, worked) / SECOND_NS
        joules += self.down_j * by(tasks.device, down) + self.up_j * by(tasks.device, up)
        if np.any(tasks.peer >= 0):  # what a row receives from its peer, the peer has sent
            joules += self.up_j * by(tasks.peer, down) + self.down_j * by(tasks.peer, up)
        return joules

    def at_reserve(self, devices: IntArray) -> BoolArray:
        """Which of the devices are at their reserve or below, as far as their charge has been brought."""
        below: BoolArray = self.level[devices] <= self.battery.reserve_j[devices] + self.grain[devices]
        return below

    # ---------------------------------------------------------------------------------------------------------- checks

    def plan(self, devices: IntArray) -> None:
        """Say when devices, whose charge is that of now, are to be looked at next."""
        if not len(devices):
            return
        now, fleet, b = self.engine.now_ns, self.engine.fleet, self.battery
        busy = np.array([bool(self.flying.get(d)) for d in devices.tolist()])
        online, out = self.engine.online[devices], self.out[devices]
        falls = np.where(busy, fleet.max_w[devices], fleet.idle_w[devices])
        rate = np.where(online, falls, np.where(out, b.charger_w[devices], 0.0))
        level = self.level[devices]
        way = np.where(online, level - b.reserve_j[devices], b.resume_j[devices] - level)
        with np.errstate(divide="ignore", invalid="ignore"):
            wait = np.where(rate > 0, np.maximum(way, 0.0) / rate * SECOND_NS, np.inf)
        charged = (way <= self.grain[devices]) & (b.charger_w[devices] > 0)
        at_once = np.where(online, self.at_reserve(devices), charged)
        wait = np.where(online & busy & ~at_once, np.maximum(wait, SHORTEST_NS), wait)
        wait = np.where(at_once & (online | out), 0.0, wait)
        soon = wait < FAR - now - 1
        self.due[devices] = np.where(soon, now + np.rint(np.where(soon, wait, 0.0)).astype(np.int64), FAR)
        self.arm()

    def arm(self) -> None:
        """Have the earliest check made."""
        first = int(self.due.min())
        if first < self.armed:
            self.armed = first
            self.engine.at(first, CHURN_FIRST, self.check)

    def check(self) -> None:
        """Devices at their reserve leave; devices that are charged come back."""
        engine, now = self.engine, self.engine.now_ns
        if now < self.armed:
            return
        self.armed = FAR
        devices = np.flatnonzero(self.due <= now)
        self.bring(devices)
        online, out, b = engine.online[devices], self.out[devices], self.battery
        left = devices[online & self.at_reserve(devices)]
        full = devices[out & (b.charger_w[devices] > 0)]
        full = full[self.level[full] >= b.resume_j[full] - self.grain[full]]
        self.out[left], self.out[full] = True, False
        self.departures[left] += 1
        joined = full[self.here[full] & (self.until[full] > now)]
        if len(left) or len(joined):
            self.fruitless += 1
            self.give_up()
            engine.move(left, joined, self.until[joined])
        self.plan(devices)
        self.arm()

    def give_up(self) -> None:
        """Refuse a run in which devices drain and charge for ever, and nobody asks anything of them."""
        engine = self.engine
        if self.fruitless > FRUITLESS and not engine.running and engine.horizon_ns >= FAR - 1:
            raise EngineError(
                f"devices have left for their batteries and come back {FRUITLESS:,} times without any dispatch, up to "
                f"{engine.now_ns / SECOND_NS:.9g} s, and {called(engine)} has not said Done"
            )

    # ----------------------------------------------------------------------------------------------------------- words

    def next_join(self) -> int:
        """When the next device comes, by its battery and its sessions; ``FAR`` if none does."""
        a, now = self.engine.fleet.availability, self.engine.now_ns
        device = a.device()
        charged = np.where(self.out, np.maximum(self.due, now), now)
        first = np.maximum(a.start_ns, charged[device])
        comes = (first > now) & (first < a.end_ns)
        return int(first[comes].min(initial=FAR))

    def words(self) -> str:
        """Who is away because of the battery, for errors; empty if nobody is."""
        out = int(self.out.sum())
        if not out:
            return ""
        bare = int((self.out & (self.battery.charger_w == 0)).sum())
        which = "all" if bare == out else bare or "none"
        size = self.engine.fleet.size
        return f"; the batteries of {out} of {size} devices are empty (down to the reserve), {which} without a charger"

    def record(self) -> BatteryRecord:
        """What batteries did, when the run is over."""
        engine = self.engine
        self.bring(np.flatnonzero(self.has))
        online = np.zeros(engine.fleet.size, np.int64)
        for time, device, joins in engine.churn:  # who is here from the beginning came at 0
            online[device] += -time if joins else time
        online[engine.online] += engine.now_ns
        return BatteryRecord(
            capacity_j=self.battery.capacity_j.copy(),
            final_j=self.level.copy(),
            lowest_j=self.lowest.copy(),
            departures=self.departures.copy(),
            online_ns=online,
        )
