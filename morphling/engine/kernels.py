"""The compiled loops: links in exact integers, the closed-form lane, the event lane, fair sharing.

Everything here is plain Python over flat arrays, so that one source runs both interpreted (over memoryviews, no import
cost) and compiled by numba (`morphling.engine.compiled`), with bit-identical results.  That is why this file is long,
calls nothing outside itself, and keeps its state in named tuples of arrays.

Exact links.  A trace is a step function of whole millibits per second over whole nanoseconds.  The service it has given
since its start is kept as a pair (millibits, billionths of one), so that products of a rate and a time are exact: a
transfer
ends at the first nanosecond at which the integral of the rate has reached its size, with no floating point involved.
Rates stay below 2^50 millibit/s (1.1 Tbit/s) and one period of a trace below 2^61 millibits (`morphling.engine.links`
checks both).

Two lanes.  `run_closed` resolves a whole dispatch row by row when no capacity is shared.  `submit` and `advance` are an
event loop over device queues for everything else: the coordinator's link shared max-min fairly (virtual-time
water-filling, O(log n) a change), and half-duplex links.

Fair sharing.  Flows above the water level share one rate, so they are ordered by *virtual* finish (V = the integral of
the level); flows below it run at their own cap and are ordered by real finish.  Rates are reals, so the shared lane
works
in float64 and rounds each completion to the nanosecond.
"""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

__all__ = [
    "ClosedRows",
    "Devices",
    "LinkArrays",
    "Pool",
    "Shared",
    "Times",
    "advance",
    "drop_device",
    "run_closed",
    "submit",
    "transfer_end",
    "withdraw",
]

GIGA = 1_000_000_000
MILLIBITS = 8_000  # of a byte
FAR = 1 << 62
REPEAT, HOLD, ERROR = 0, 1, 2
NEVER = FAR  # a transfer that never ends
MAX_LAPS = 1_000_000_000


TRACE, OFFSET, LATENCY = range(3)
FIRST, LAST, PERIOD, PAST_END = range(4)  # then the totals of one period: down (two columns), a gap, up (two columns)
START, DOWN_RATE, DOWN_SERVED, DOWN_NANO, UP_RATE, UP_SERVED, UP_NANO = range(7)


class LinkArrays(NamedTuple):
    """Links as int64 tables (columns named above).

    ``device[D + 1, 3]``; ``trace[T, 10]``; ``step[S, 7]``: start (ns), then for each direction the rate (millibit/s)
    and the
    service before the step as (millibits, billionths of one).
    """

    device: Any
    trace: Any
    step: Any


class Devices(NamedTuple):
    """Per device (the coordinator is the last): when each stage is next free, and when the session ends."""

    free_down: Any
    free_compute: Any
    free_up: Any
    off: Any


class ClosedRows(NamedTuple):
    """The columns of a task table that the closed lane reads."""

    device: Any
    bytes_in: Any
    bytes_out: Any
    overlap: Any
    release: Any
    dep_ptr: Any
    dep_idx: Any
    duration: Any


class Times(NamedTuple):
    """The seven time columns of the events table, in its order, and the lost flag."""

    down_start: Any
    down_end: Any
    comp_start: Any
    comp_end: Any
    up_start: Any
    up_end: Any
    settled: Any
    lost: Any


# columns of Shared.slot, Shared.real
AT_LEVEL, U_FIN, U_FIN_AT, U_CAP, U_CAP_AT, K_FIN, K_FIN_AT, K_CAP, K_CAP_AT, NEXT_STEP = range(10)
FINISH, CAP, LEFT = range(3)


class Shared(NamedTuple):
    """Two shared capacities (0: out of the coordinator, 1: into it) and the flows on them.

    Slot ``side · D + device`` is the one flow a device can have on a side.  Four indexed heaps of a side hold slots:
    U_*
    flows at the level, K_* flows at their own cap, each by finish and by cap; *_AT is a slot's place in its heap.
    """

    capacity: Any  # int64[2], millibit/s; -1 = unlimited
    count: Any  # int64[4]: flows at the level, flows at their cap; per side
    cap_sum: Any  # int64[2]: sum of the caps of flows at their cap
    level: Any  # float64[2], millibit/s; -1 = every flow runs at its cap
    virtual: Any  # float64[2]: V, millibits
    moment: Any  # int64[2]: time of V
    slot: Any  # int64[2 D, 10]; NEXT_STEP: next trace step of the slot's flow, -1 = no flow
    real: Any  # float64[2 D, 3]: FINISH virtual (millibits) at the level, else real (ns); CAP; LEFT if the cap is 0


# columns of Pool.row, Pool.dev, Pool.disp, Pool.heap
(
    ON_DEVICE,
    BITS_IN,
    BITS_OUT,
    TILES,
    DURATION,
    OF_DISPATCH,
    FOLLOWS,
    WAITS,
    READY,
    OUT_PTR,
    OUT_LEN,
    SENT_DOWN,
    GOT_DOWN,
    COMPUTED,
    SENT_UP,
    GOT_UP,
    STATE,
    DOWN_START,
    DOWN_END,
    COMP_START,
    COMP_END,
    UP_START,
    UP_END,
    SETTLED,
    ASKED_UP,
    LOG,
    STACK,
) = range(27)
(
    Q_DOWN,
    Q_COMP,
    Q_UP,
    Q_TAIL,
    Q_HEAD,
    BUSY_DOWN,
    BUSY_COMP,
    BUSY_UP,
    HALF_DUPLEX,
    PICKING,
    EPOCH,
) = range(11)
DEV_COLUMNS = EPOCH + 3
ROW_COLUMNS = STACK + 1
D_NOTIFY, D_LEFT, D_DONE, D_FLAG = range(4)
HEAP_TIME, HEAP_SERIAL, HEAP_WHAT, HEAP_ID, HEAP_TAG = range(5)


class Pool(NamedTuple):
    """Rows in flight, their queues, and the event heap (int64 tables, columns named above).

    ``row[R, ·]``: a sub-task; FOLLOWS is the next row of its device, WAITS the dependencies not yet done plus one until
    it is
    released, READY since when it may start (-1: it may not), OUT_PTR and OUT_LEN frame ``edge``, the rows that wait for
    it;
    sent, got and computed count tiles.  LOG and STACK are no part of a row: they lend their columns as lists.
    ``dev[D + 1, ·]``: the row at the front of each stage's queue, the last queued, the oldest unsettled; whether the
    stage is
    at work; the epoch of each stage (an event of an older epoch is stale).
    ``disp[·, 4]``: dispatches in flight.  ``heap[·, 5]``: pending events by (time, serial of the event).
    ``counter``: 0 events pending, 1 serial of the next event, 2 rows, 3 settled rows in LOG, 4 rows not settled,
    5 dispatches with something to tell, 6 room to keep free in the heap.
    """

    row: Any
    dev: Any
    disp: Any
    heap: Any
    edge: Any
    counter: Any


# ---------------------------------------------------------------------------------------------------------------- links


def product(rate, ns):
    """``rate`` (< 2^50) times ``ns`` (<= 2·10^9) as (millibits, billionths of one), exactly."""
    high = (rate >> 25) * ns
    q = high // GIGA
    low = ((high - q * GIGA) << 25) + (rate & 0x1FFFFFF) * ns
    r = low // GIGA
    return (q << 25) + r, low - r * GIGA


def service(rate, ns):
    """``rate`` times any ``ns`` as (bits, nanobits), exactly."""
    seconds = ns // GIGA
    bits, nano = product(rate, ns - seconds * GIGA)
    return rate * seconds + bits, nano


def time_for(bits, nano, rate):
    """Fewest whole nanoseconds in which ``rate`` > 0 delivers (bits, nanobits)."""
    seconds, rest = 0, bits
    if bits >= rate:
        seconds = bits // rate
        rest = bits - seconds * rate
    ns = int((float(rest) * 1e9 + float(nano)) / float(rate)) - 1  # within one of the truth; then made exact
    if ns < 0:
        ns = 0
    while True:
        got_bits, got_nano = product(rate, ns)
        if got_bits > rest or (got_bits == rest and got_nano >= nano):
            return seconds * GIGA + ns
        ns += 1


def step_at(step, first, last, period, x):
    """Index of the last of the steps ``first:last`` that begins at or before ``x``."""
    lo, hi = first, last
    guess = last - 1
    if x < period:  # right at once where steps are equally long
        guess = min(guess, first + int(float(x) / float(period) * (last - first)))
    if step[guess, START] <= x:
        lo = guess
        if guess + 1 < last and step[guess + 1, START] > x:
            return guess
    else:
        hi = guess
    while hi - lo > 1:
        mid = (lo + hi) >> 1
        if step[mid, START] <= x:
            lo = mid
        else:
            hi = mid
    return lo


def transfer_end(k, device, upward, begin, bits):
    """First nanosecond at which ``bits`` have left a link that has served this transfer alone since ``begin``.

    ``NEVER`` if the link never delivers them, ``-1`` if the trace has ended before.
    """
    if bits == 0 or begin >= FAR:
        return begin
    t = k.device[device, TRACE]
    first, last, mode = k.trace[t, FIRST], k.trace[t, LAST], k.trace[t, PAST_END]
    rate_col = UP_RATE if upward else DOWN_RATE
    if last - first == 1 and mode != ERROR:
        rate = k.step[first, rate_col]
        if rate == 0:
            return NEVER
        return begin + time_for(bits, 0, rate)
    period = k.trace[t, PERIOD]
    offset = k.device[device, OFFSET]
    x = begin + offset
    laps = 0
    if mode == REPEAT:
        if x >= period:
            laps = x // period
            x -= laps * period
    elif mode == ERROR and x >= period:
        return -1
    j = step_at(k.step, first, last, period, x)
    if mode == HOLD and j == last - 1:
        if k.step[j, rate_col] == 0:
            return NEVER
        return begin + time_for(bits, 0, k.step[j, rate_col])
    rate = k.step[j, rate_col]
    span = (k.step[j + 1, START] if j + 1 < last else period) - x
    if float(bits) * 1e9 <= float(rate) * float(span):  # most transfers are over before the next step
        ns = time_for(bits, 0, rate)
        if ns <= span:
            return begin + ns
    got_bits, got_nano = service(rate, x - k.step[j, START])
    want_bits = k.step[j, rate_col + 1] + got_bits + bits
    want_nano = k.step[j, rate_col + 2] + got_nano
    if want_nano >= GIGA:
        want_nano -= GIGA
        want_bits += 1
    over = False  # whether the target lies in a later period
    if mode == REPEAT:
        all_bits, all_nano = k.trace[t, PAST_END + rate_col], k.trace[t, PAST_END + rate_col + 1]
        if all_bits == 0 and all_nano == 0:
            return NEVER
        q = 0 if want_bits < all_bits else want_bits // all_bits if all_bits > 0 else MAX_LAPS
        if q >= MAX_LAPS:
            return NEVER
        while q > 0:  # the largest q with q periods strictly below the target
            n = q * all_nano
            c = n // GIGA
            b = q * all_bits + c
            n -= c * GIGA
            if b < want_bits or (b == want_bits and n < want_nano):
                want_bits -= b
                want_nano -= n
                if want_nano < 0:
                    want_nano += GIGA
                    want_bits -= 1
                over = True
                break
            q -= 1
        laps += q
    lo, hi = (first, last) if over else (j, last)
    near = min(lo + 8, last)
    mid = lo + 1
    while hi - lo > 1:  # last step before which less than the target has been served: near by, or by halving
        served = k.step[mid, rate_col + 1]
        if served < want_bits or (served == want_bits and k.step[mid, rate_col + 2] < want_nano):
            lo = mid
        else:
            hi = mid
        mid = lo + 1 if mid < near else (lo + hi) >> 1
    want_bits -= k.step[lo, rate_col + 1]
    want_nano -= k.step[lo, rate_col + 2]
    if want_nano < 0:
        want_nano += GIGA
        want_bits -= 1
    if k.step[lo, rate_col] == 0:
        return NEVER if mode == HOLD else -1
    end = k.step[lo, START] + time_for(want_bits, want_nano, k.step[lo, rate_col])
    if mode == ERROR and end > period:
        return -1
    return laps * period + end - offset


def rate_at(k, device, upward, now):
    """Rate (bit/s) at ``now`` and the time of the next step (FAR if none; -1 as a rate: the trace has ended)."""
    t = k.device[device, TRACE]
    first, last, mode = k.trace[t, FIRST], k.trace[t, LAST], k.trace[t, PAST_END]
    rate_col = UP_RATE if upward else DOWN_RATE
    if last - first == 1 and mode != ERROR:
        return k.step[first, rate_col], FAR
    x = now + k.device[device, OFFSET]
    period = k.trace[t, PERIOD]
    laps = 0
    if mode == REPEAT:
        laps = x // period
        x -= laps * period
    elif mode == ERROR and x >= period:
        return -1, FAR
    j = step_at(k.step, first, last, period, x)
    if j < last - 1:
        following = k.step[j + 1, START]
    elif mode == HOLD:
        return k.step[j, rate_col], FAR
    else:
        following = period
    return k.step[j, rate_col], laps * period + following - k.device[device, OFFSET]


# ---------------------------------------------------------------------------------------------------------- closed lane


def run_closed(k, dev, rows, out, now, cut, coordinator, part_of, part):
    """Resolve the rows of one dispatch, in table order, when links are private and full duplex.

    Only those whose device has ``part_of`` equal to ``part``; all if ``part`` < 0.  Rows of different devices that wait
    for none have nothing in common, so parts may run side by side.

    ``cut`` is when the dispatch is withdrawn (FAR: never).  Returns 0, or ``4 i + why`` for the first row i that can
    never settle (why 1: its link never delivers; 2: its trace has ended).
    """
    trouble = 0
    for i in range(len(rows.device)):
        d = rows.device[i]
        if part >= 0 and part_of[d] != part:
            continue
        ready = now + rows.release[i]
        doomed = FAR
        for j in range(rows.dep_ptr[i], rows.dep_ptr[i + 1]):
            before = rows.dep_idx[j]
            at = out.settled[before]
            if out.lost[before]:
                if at < doomed:
                    doomed = at
            elif at > ready:
                ready = at
        limit = dev.off[d]
        if limit < now:
            limit = now
        withdrawn = False
        if cut < limit:
            limit = cut
            withdrawn = True
        if doomed < FAR:
            out.down_start[i] = out.down_end[i] = out.comp_start[i] = out.comp_end[i] = -1
            out.up_start[i] = out.up_end[i] = -1
            at = min(doomed, limit)
            out.settled[i] = at
            out.lost[i] = 1
            if at >= dev.off[d]:  # the device leaves at that instant too: nothing moves up any more
                at = dev.off[d] + 1
            if rows.bytes_in[i] > 0 or rows.overlap[i] == 0:  # until then it stood in its queues, the next behind it
                dev.free_down[d] = max(dev.free_down[d], at)
            dev.free_compute[d] = max(dev.free_compute[d], at)
            if rows.bytes_out[i] > 0 or rows.overlap[i] == 0:
                dev.free_up[d] = max(dev.free_up[d], at)
            continue
        duration = rows.duration[i]
        fd, fc, fu = dev.free_down[d], dev.free_compute[d], dev.free_up[d]
        why = 0
        if d == coordinator:
            ds = de = ready
            cs = max(ready, fc)
            ce = cs + duration
            us = ue = settled = ce
            nd, nc, nu = fd, ce, fu
        else:
            bits_in, bits_out = rows.bytes_in[i] * MILLIBITS, rows.bytes_out[i] * MILLIBITS
            latency = k.device[d, LATENCY]
            tiles = rows.overlap[i]
            if tiles == 0:
                begin = max(max(ready, fd), max(fc, fu))
                ds = cs = us = begin
                nd = transfer_end(k, d, False, begin, bits_in)
                nu = transfer_end(k, d, True, begin, bits_out)
                if nd < 0 or nu < 0:
                    why = 2
                    nd = FAR if nd < 0 else nd
                    nu = FAR if nu < 0 else nu
                nc = ce = begin + duration
                de = nd + latency if bits_in > 0 else nd
                ue = nu + latency if bits_out > 0 else nu
                settled = max(max(de, ce), ue)
            else:
                ds = ready
                if bits_in > 0 and fd > ds:
                    ds = fd
                nd, nc, nu = ds, fc, fu
                de = ready
                cs = us = -1
                ce = ue = -1
                in_each, work_each, out_each = bits_in // tiles, duration // tiles, bits_out // tiles
                in_rest, work_rest, out_rest = (
                    bits_in - in_each * tiles,
                    duration - work_each * tiles,
                    bits_out - out_each * tiles,
                )
                in_more = work_more = out_more = 0
                for tile in range(tiles):  # tile j gets x (j + 1) // tiles - x j // tiles, without dividing each time
                    in_now, work_now, out_now = in_each, work_each, out_each
                    in_more += in_rest
                    if in_more >= tiles:
                        in_more -= tiles
                        in_now += 1
                    work_more += work_rest
                    if work_more >= tiles:
                        work_more -= tiles
                        work_now += 1
                    out_more += out_rest
                    if out_more >= tiles:
                        out_more -= tiles
                        out_now += 1
                    if bits_in > 0:
                        nd = transfer_end(k, d, False, nd, in_now)
                        if nd < 0:
                            why = 2
                            nd = FAR
                        de = nd + latency
                    start = max(de, nc)
                    if tile == 0:
                        cs = start
                    nc = ce = start + work_now
                    if bits_out > 0:
                        start = max(nc, nu)
                        if tile == 0:
                            us = start
                        nu = transfer_end(k, d, True, start, out_now)
                        if nu < 0:
                            why = 2
                            nu = FAR
                        ue = nu + latency
                if bits_in == 0:
                    nd = fd
                if bits_out == 0:
                    us = ue = ce
                settled = ue
        if (settled > limit and limit < FAR) or dev.off[d] <= now:  # on an absent device nothing is instant
            out.lost[i] = 1
            if withdrawn:  # a stage that had not begun stood in its queue until now; one that had is cut short
                if nd != fd:
                    nd = max(fd, limit) if ds >= limit else min(nd, limit)
                nc = max(fc, limit) if cs >= limit else min(nc, limit)
                if nu != fu:
                    nu = max(fu, limit) if us >= limit else min(nu, limit)
            settled = limit
            if de > limit:
                de = -1
            if ds >= limit:
                ds = de = -1
            if ce > limit:
                ce = -1
            if cs >= limit:
                cs = ce = -1
            if ue > limit:
                ue = -1
            if us >= limit:
                us = ue = -1
        else:
            out.lost[i] = 0
            if settled >= FAR and trouble == 0:
                trouble = 4 * i + (why if why > 0 else 1)
        dev.free_down[d] = nd
        dev.free_compute[d] = nc
        dev.free_up[d] = nu
        out.down_start[i] = ds
        out.down_end[i] = de
        out.comp_start[i] = cs
        out.comp_end[i] = ce
        out.up_start[i] = us
        out.up_end[i] = ue
        out.settled[i] = settled
    return trouble


# ----------------------------------------------------------------------------------------------------------- fair share


def before(s, key, sign, a, b):
    """Whether slot ``a`` comes before slot ``b``: by key (descending if ``sign`` < 0), then by slot."""
    x, y = s.real[a, key] * sign, s.real[b, key] * sign
    return x < y or (x == y and a < b)


def heap_up(s, heap, place, key, sign, base, i):
    """Move the entry at ``i`` towards the root."""
    slot = s.slot[base + i, heap]
    while i > 0:
        parent = (i - 1) >> 1
        other = s.slot[base + parent, heap]
        if not before(s, key, sign, slot, other):
            break
        s.slot[base + i, heap] = other
        s.slot[other, place] = i
        i = parent
    s.slot[base + i, heap] = slot
    s.slot[slot, place] = i


def heap_down(s, heap, place, key, sign, base, size, i):
    """Move the entry at ``i`` towards the leaves."""
    slot = s.slot[base + i, heap]
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and before(s, key, sign, s.slot[base + child + 1, heap], s.slot[base + child, heap]):
            child += 1
        other = s.slot[base + child, heap]
        if not before(s, key, sign, other, slot):
            break
        s.slot[base + i, heap] = other
        s.slot[other, place] = i
        i = child
    s.slot[base + i, heap] = slot
    s.slot[slot, place] = i


def heap_add(s, heap, place, key, sign, base, size, slot):
    """Insert ``slot`` into a heap that holds ``size`` entries."""
    s.slot[base + size, heap] = slot
    heap_up(s, heap, place, key, sign, base, size)


def heap_remove(s, heap, place, key, sign, base, size, slot):
    """Remove ``slot`` from a heap that holds ``size`` entries."""
    i = s.slot[slot, place]
    last = size - 1
    if i != last:
        moved = s.slot[base + last, heap]
        s.slot[base + i, heap] = moved
        s.slot[moved, place] = i
        heap_up(s, heap, place, key, sign, base, i)
        heap_down(s, heap, place, key, sign, base, last, s.slot[moved, place])


def heap_fix(s, heap, place, key, sign, base, size, slot):
    """The key of ``slot`` has changed: move its entry to where it belongs."""
    heap_up(s, heap, place, key, sign, base, s.slot[slot, place])
    heap_down(s, heap, place, key, sign, base, size, s.slot[slot, place])


def share_clock(s, side, now):
    """Bring V to ``now``."""
    if s.count[2 * side] > 0 and s.level[side] > 0.0:
        s.virtual[side] += s.level[side] * (now - s.moment[side]) / 1e9
    s.moment[side] = now


def share_enter(s, side, base, slot, now, bits, at_level):
    """Put a flow with ``bits`` left at the level or at its own cap."""
    if at_level:
        s.slot[slot, AT_LEVEL] = 1
        s.real[slot, FINISH] = s.virtual[side] + bits
        n = s.count[2 * side]
        heap_add(s, U_FIN, U_FIN_AT, FINISH, 1, base, n, slot)
        heap_add(s, U_CAP, U_CAP_AT, CAP, 1, base, n, slot)
        s.count[2 * side] = n + 1
    else:
        s.slot[slot, AT_LEVEL] = 0
        s.real[slot, FINISH] = now + bits / s.real[slot, CAP] * 1e9 if s.real[slot, CAP] > 0 else 9e18
        n = s.count[2 * side + 1]
        heap_add(s, K_FIN, K_FIN_AT, FINISH, 1, base, n, slot)
        heap_add(s, K_CAP, K_CAP_AT, CAP, -1, base, n, slot)
        s.count[2 * side + 1] = n + 1
        s.cap_sum[side] += int(s.real[slot, CAP])


def share_exit(s, side, base, slot):
    """Take a flow out of its heaps."""
    if s.slot[slot, AT_LEVEL]:
        n = s.count[2 * side]
        heap_remove(s, U_FIN, U_FIN_AT, FINISH, 1, base, n, slot)
        heap_remove(s, U_CAP, U_CAP_AT, CAP, 1, base, n, slot)
        s.count[2 * side] = n - 1
    else:
        n = s.count[2 * side + 1]
        heap_remove(s, K_FIN, K_FIN_AT, FINISH, 1, base, n, slot)
        heap_remove(s, K_CAP, K_CAP_AT, CAP, -1, base, n, slot)
        s.count[2 * side + 1] = n - 1
        s.cap_sum[side] -= int(s.real[slot, CAP])


def share_left(s, side, slot, now):
    """Bits a flow has still to send."""
    if s.slot[slot, AT_LEVEL]:
        return s.real[slot, FINISH] - s.virtual[side]
    if s.real[slot, FINISH] >= 9e18:
        return s.real[slot, LEFT]
    return (s.real[slot, FINISH] - now) * s.real[slot, CAP] / 1e9


def share_level(s, side, base, now):
    """Find the water level again after a change."""
    while True:
        n = s.count[2 * side]
        if n > 0:
            level = (s.capacity[side] - s.cap_sum[side]) / n
            slot = s.slot[base, U_CAP]
            if level >= s.real[slot, CAP]:  # the flow with the lowest cap is below the level: it runs at its cap
                left = s.real[slot, FINISH] - s.virtual[side]
                share_exit(s, side, base, slot)
                s.real[slot, LEFT] = left
                share_enter(s, side, base, slot, now, left, False)
                continue
        else:
            s.virtual[side] = 0.0  # nobody is measured by V now, so it may start afresh and stay small
            if s.cap_sum[side] <= s.capacity[side]:
                s.level[side] = -1.0
                return
            level = -1.0
        if s.count[2 * side + 1] > 0:
            slot = s.slot[base, K_CAP]
            if level < s.real[slot, CAP]:  # the fastest capped flow is above the level: it shares
                left = share_left(s, side, slot, now)
                share_exit(s, side, base, slot)
                share_enter(s, side, base, slot, now, left, True)
                continue
        s.level[side] = level
        return


def share_add(s, side, base, slot, now, cap, bits):
    """A new flow."""
    share_clock(s, side, now)
    s.real[slot, CAP] = cap
    s.real[slot, LEFT] = bits
    level = s.level[side]
    share_enter(s, side, base, slot, now, float(bits), not (s.count[2 * side] == 0 or cap <= level))
    share_level(s, side, base, now)


def share_recap(s, side, base, slot, now, cap):
    """A flow's own cap changes: a step of its trace.  Most steps leave it where it is, and cost one or two sifts."""
    level = s.level[side]
    if s.slot[slot, AT_LEVEL] == 1 and cap > level:
        s.real[slot, CAP] = cap
        heap_fix(s, U_CAP, U_CAP_AT, CAP, 1, base, s.count[2 * side], slot)
        return
    share_clock(s, side, now)
    left = share_left(s, side, slot, now)
    if s.slot[slot, AT_LEVEL] == 0 and (s.count[2 * side] == 0 or cap <= level):
        n = s.count[2 * side + 1]
        s.cap_sum[side] += int(cap - s.real[slot, CAP])
        s.real[slot, CAP] = cap
        s.real[slot, LEFT] = left
        s.real[slot, FINISH] = now + left / cap * 1e9 if cap > 0 else 9e18
        heap_fix(s, K_FIN, K_FIN_AT, FINISH, 1, base, n, slot)
        heap_fix(s, K_CAP, K_CAP_AT, CAP, -1, base, n, slot)
    else:
        share_exit(s, side, base, slot)
        s.real[slot, CAP] = cap
        s.real[slot, LEFT] = left
        share_enter(s, side, base, slot, now, left, not (s.count[2 * side] == 0 or cap <= level))
    share_level(s, side, base, now)


def share_remove(s, side, base, slot, now):
    """A flow is over, or is withdrawn."""
    share_clock(s, side, now)
    share_exit(s, side, base, slot)
    s.slot[slot, NEXT_STEP] = -1
    share_level(s, side, base, now)


def share_next(s, side, base):
    """When the next flow of a side ends (ns) and which; (FAR, -1) if none does."""
    best, slot = 9e18, -1
    if s.count[2 * side] > 0 and s.level[side] > 0.0:
        slot = s.slot[base, U_FIN]
        best = s.moment[side] + (s.real[slot, FINISH] - s.virtual[side]) / s.level[side] * 1e9
    if s.count[2 * side + 1] > 0:
        other = s.slot[base, K_FIN]
        if s.real[other, FINISH] < best:
            slot = other
            best = s.real[other, FINISH]
    if slot < 0 or best >= 4e18:
        return FAR, -1
    at = int(ceil(best - 1e-3))  # noqa: RUF046 - 1/1000 ns of float error is no ns; compiled, ceil gives a float
    return (at if at > s.moment[side] else s.moment[side]), slot


# ----------------------------------------------------------------------------------------------------------- event lane

WAITING, DONE, LOST = 0, 1, 2
RELEASE, ARRIVE_DOWN, ARRIVE_UP, OVER_COMP, OVER_DOWN, OVER_UP, STEP_DOWN, STEP_UP, PICK, NOTHING = range(10)
AFTER_ALL = 1 << 60
REACHED, NOTICE, GROW, STUCK = 0, 1, 2, 3
NOTIFY_ALL, NOTIFY_EACH = -1, 0  # a positive number is a quorum


def event_add(p, time, what, ident, tag):
    """Schedule an event."""
    i = p.counter[0]
    serial = p.counter[1]
    p.counter[0] = i + 1
    p.counter[1] = serial + 1
    if what == PICK:  # behind everything else of its instant, also behind what is yet to be scheduled
        serial += AFTER_ALL
    while i > 0:
        parent = (i - 1) >> 1
        if p.heap[parent, HEAP_TIME] < time or (
            p.heap[parent, HEAP_TIME] == time and p.heap[parent, HEAP_SERIAL] < serial
        ):
            break
        p.heap[i, HEAP_TIME] = p.heap[parent, HEAP_TIME]
        p.heap[i, HEAP_SERIAL] = p.heap[parent, HEAP_SERIAL]
        p.heap[i, HEAP_WHAT] = p.heap[parent, HEAP_WHAT]
        p.heap[i, HEAP_ID] = p.heap[parent, HEAP_ID]
        p.heap[i, HEAP_TAG] = p.heap[parent, HEAP_TAG]
        i = parent
    p.heap[i, HEAP_TIME] = time
    p.heap[i, HEAP_SERIAL] = serial
    p.heap[i, HEAP_WHAT] = what
    p.heap[i, HEAP_ID] = ident
    p.heap[i, HEAP_TAG] = tag


def event_pop(p):
    """Remove the first event; its (what, id, tag)."""
    what, ident, tag = p.heap[0, HEAP_WHAT], p.heap[0, HEAP_ID], p.heap[0, HEAP_TAG]
    n = p.counter[0] - 1
    p.counter[0] = n
    time, serial = p.heap[n, HEAP_TIME], p.heap[n, HEAP_SERIAL]
    last_what, last_id, last_tag = p.heap[n, HEAP_WHAT], p.heap[n, HEAP_ID], p.heap[n, HEAP_TAG]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and (
            p.heap[child + 1, HEAP_TIME] < p.heap[child, HEAP_TIME]
            or (
                p.heap[child + 1, HEAP_TIME] == p.heap[child, HEAP_TIME]
                and p.heap[child + 1, HEAP_SERIAL] < p.heap[child, HEAP_SERIAL]
            )
        ):
            child += 1
        if time < p.heap[child, HEAP_TIME] or (
            time == p.heap[child, HEAP_TIME] and serial < p.heap[child, HEAP_SERIAL]
        ):
            break
        p.heap[i, HEAP_TIME] = p.heap[child, HEAP_TIME]
        p.heap[i, HEAP_SERIAL] = p.heap[child, HEAP_SERIAL]
        p.heap[i, HEAP_WHAT] = p.heap[child, HEAP_WHAT]
        p.heap[i, HEAP_ID] = p.heap[child, HEAP_ID]
        p.heap[i, HEAP_TAG] = p.heap[child, HEAP_TAG]
        i = child
    if n > 0:
        p.heap[i, HEAP_TIME] = time
        p.heap[i, HEAP_SERIAL] = serial
        p.heap[i, HEAP_WHAT] = last_what
        p.heap[i, HEAP_ID] = last_id
        p.heap[i, HEAP_TAG] = last_tag
    return what, ident, tag


def settle(p, r, now, state):
    """A row is done or lost; tell its dispatch."""
    p.row[r, STATE] = state
    p.row[r, SETTLED] = now
    p.row[p.counter[3], LOG] = r
    p.counter[3] += 1
    p.counter[4] -= 1
    head = p.dev[p.row[r, ON_DEVICE], Q_HEAD]
    while head >= 0 and p.row[head, STATE] != WAITING:
        head = p.row[head, FOLLOWS]
    p.dev[p.row[r, ON_DEVICE], Q_HEAD] = head
    d = p.row[r, OF_DISPATCH]
    p.disp[d, D_LEFT] -= 1
    tell = state == LOST
    if state == DONE:
        p.disp[d, D_DONE] += 1
        if p.disp[d, D_NOTIFY] == NOTIFY_EACH or p.disp[d, D_DONE] == p.disp[d, D_NOTIFY]:
            tell = True
    if p.disp[d, D_LEFT] == 0:
        tell = True
    if tell and p.disp[d, D_FLAG] == 0:
        p.disp[d, D_FLAG] = 1
        p.counter[5] += 1


def lose(p, first, now):
    """A row is lost, and with it every row that waits for it; the queues step over lost rows by themselves."""
    p.row[0, STACK] = first
    depth = 1
    while depth > 0:
        depth -= 1
        r = p.row[depth, STACK]
        if p.row[r, STATE] != WAITING:
            continue
        settle(p, r, now, LOST)
        for j in range(p.row[r, OUT_PTR], p.row[r, OUT_PTR] + p.row[r, OUT_LEN]):
            if p.row[p.edge[j], STATE] == WAITING:
                p.row[depth, STACK] = p.edge[j]
                depth += 1


def begin_flow(k, s, p, size, d, upward, now, bits):
    """Put ``bits`` on a link.  Returns False if they can never arrive."""
    side = 1 if upward else 0
    if s.capacity[side] < 0:
        end = transfer_end(k, d, upward, now, bits)
        if end < 0 or end >= FAR:
            return False
        event_add(p, end, OVER_UP if upward else OVER_DOWN, d, p.dev[d, EPOCH + (2 if upward else 0)])
        return True
    rate, following = rate_at(k, d, upward, now)
    if rate < 0:
        return False
    slot = side * size + d
    s.slot[slot, NEXT_STEP] = following
    share_add(s, side, side * size, slot, now, rate, bits)
    if following < FAR:
        event_add(p, following, STEP_UP if upward else STEP_DOWN, d, 0)
    return True


def start_down(k, s, p, size, d, now):
    """Start the next download of a device if it may; returns False on a transfer that can never end."""
    if p.dev[d, BUSY_DOWN] > 0:
        return True
    r = p.dev[d, Q_DOWN]
    while r >= 0 and (
        p.row[r, STATE] != WAITING
        or (p.row[r, BITS_IN] == 0 and p.row[r, TILES] > 0)
        or p.row[r, SENT_DOWN] == max(p.row[r, TILES], 1)
    ):
        r = p.row[r, FOLLOWS]
    p.dev[d, Q_DOWN] = r
    if r < 0 or p.row[r, READY] < 0:
        return True
    n = p.row[r, TILES]
    if n == 0:
        return start_together(k, s, p, size, d, r, now)
    if p.dev[d, HALF_DUPLEX]:
        if p.dev[d, BUSY_UP] > 0:
            return True
        skip_uploaded(p, d)
        u = p.dev[d, Q_UP]
        if (
            u >= 0
            and p.row[u, TILES] > 0
            and p.row[u, BITS_OUT] > 0
            and p.row[u, COMPUTED] > p.row[u, SENT_UP]
            and (p.row[u, ASKED_UP] < p.row[r, READY] or (p.row[u, ASKED_UP] == p.row[r, READY] and u < r))
        ):
            return True  # the upload asked first
    j = p.row[r, SENT_DOWN]
    if j == 0:
        p.row[r, DOWN_START] = now
    p.dev[d, BUSY_DOWN] = 1
    return begin_flow(k, s, p, size, d, False, now, p.row[r, BITS_IN] * (j + 1) // n - p.row[r, BITS_IN] * j // n)


def start_together(k, s, p, size, d, r, now):
    """Perfect overlap: the three stages of row ``r`` start at one instant, when it is at the front of all three."""
    skip_computed(p, d)
    skip_uploaded(p, d)
    if p.dev[d, BUSY_COMP] > 0 or p.dev[d, BUSY_UP] > 0 or p.dev[d, Q_COMP] != r or p.dev[d, Q_UP] != r:
        return True
    p.row[r, DOWN_START] = p.row[r, COMP_START] = p.row[r, UP_START] = now
    fine = True
    p.dev[d, BUSY_COMP] = 1
    event_add(p, now + p.row[r, DURATION], OVER_COMP, d, p.dev[d, EPOCH + 1])
    if p.row[r, BITS_IN] > 0:
        p.dev[d, BUSY_DOWN] = 1
        fine = begin_flow(k, s, p, size, d, False, now, p.row[r, BITS_IN])
    else:
        p.row[r, DOWN_END] = now
        p.row[r, SENT_DOWN] = p.row[r, GOT_DOWN] = 1
    if p.row[r, BITS_OUT] > 0:
        p.dev[d, BUSY_UP] = 1
        fine = begin_flow(k, s, p, size, d, True, now, p.row[r, BITS_OUT]) and fine
    else:
        p.row[r, UP_END] = now
        p.row[r, SENT_UP] = p.row[r, GOT_UP] = 1
    return fine


def skip_computed(p, d):
    """Move the front of the compute queue over rows that need it no more."""
    r = p.dev[d, Q_COMP]
    while r >= 0 and (p.row[r, STATE] != WAITING or p.row[r, COMPUTED] == max(p.row[r, TILES], 1)):
        r = p.row[r, FOLLOWS]
    p.dev[d, Q_COMP] = r


def skip_uploaded(p, d):
    """Move the front of the upload queue over rows that need it no more."""
    r = p.dev[d, Q_UP]
    while r >= 0 and (
        p.row[r, STATE] != WAITING
        or p.row[r, SENT_UP] == max(p.row[r, TILES], 1)
        or (p.row[r, BITS_OUT] == 0 and p.row[r, TILES] > 0 and p.row[r, COMPUTED] == p.row[r, TILES])
    ):
        r = p.row[r, FOLLOWS]
    p.dev[d, Q_UP] = r


def start_comp(p, size, d, now):
    """Start the next tile of computing of a device if it may."""
    if p.dev[d, BUSY_COMP] > 0:
        return
    skip_computed(p, d)
    r = p.dev[d, Q_COMP]
    if r < 0 or p.row[r, TILES] == 0 or p.row[r, GOT_DOWN] <= p.row[r, COMPUTED]:
        return
    n, j = p.row[r, TILES], p.row[r, COMPUTED]
    if j == 0:
        p.row[r, COMP_START] = now
    p.dev[d, BUSY_COMP] = 1
    end = now + p.row[r, DURATION] * (j + 1) // n - p.row[r, DURATION] * j // n
    event_add(p, end, OVER_COMP, d, p.dev[d, EPOCH + 1])


def start_up(k, s, p, size, d, now):
    """Start the next upload of a device if it may; returns False on a transfer that can never end."""
    if p.dev[d, BUSY_UP] > 0:
        return True
    skip_uploaded(p, d)
    r = p.dev[d, Q_UP]
    if (
        r < 0
        or p.row[r, STATE] != WAITING
        or p.row[r, TILES] == 0
        or p.row[r, BITS_OUT] == 0
        or p.row[r, COMPUTED] <= p.row[r, SENT_UP]
    ):
        return True
    if p.dev[d, HALF_DUPLEX] and p.dev[d, BUSY_DOWN] > 0:
        return True
    n, j = p.row[r, TILES], p.row[r, SENT_UP]
    if j == 0:
        p.row[r, UP_START] = now
    p.dev[d, BUSY_UP] = 1
    return begin_flow(k, s, p, size, d, True, now, p.row[r, BITS_OUT] * (j + 1) // n - p.row[r, BITS_OUT] * j // n)


def kick(k, s, p, size, d, now):
    """Start whatever a device can start now; who has a half-duplex channel next is seen when all else has happened."""
    if p.dev[d, HALF_DUPLEX]:
        start_comp(p, size, d, now)
        if p.dev[d, PICKING] == 0:
            p.dev[d, PICKING] = 1
            event_add(p, now, PICK, d, 0)
        return True
    fine = start_down(k, s, p, size, d, now)
    start_comp(p, size, d, now)
    fine = start_up(k, s, p, size, d, now) and fine
    # once more: the row that started together may download nothing
    return start_down(k, s, p, size, d, now) and fine


def open_row(k, s, p, size, r, now):
    """A row has been released and its dependencies are done."""
    p.row[r, READY] = now
    if p.row[r, BITS_IN] == 0 and p.row[r, TILES] > 0:  # an empty payload is instant
        p.row[r, DOWN_START] = p.row[r, DOWN_END] = now
        p.row[r, SENT_DOWN] = p.row[r, GOT_DOWN] = p.row[r, TILES]
    return kick(k, s, p, size, p.row[r, ON_DEVICE], now)


def finish(k, s, p, size, r, now):
    """A row is done: settle it and open what waited for it."""
    settle(p, r, now, DONE)
    fine = True
    for j in range(p.row[r, OUT_PTR], p.row[r, OUT_PTR] + p.row[r, OUT_LEN]):
        w = p.edge[j]
        p.row[w, WAITS] -= 1
        if p.row[w, WAITS] == 0 and p.row[w, STATE] == WAITING:
            fine = open_row(k, s, p, size, w, now) and fine
    return fine


def whole(p, r):
    """Whether every part of a row is over."""
    n = max(p.row[r, TILES], 1)
    return (
        p.row[r, GOT_DOWN] == n
        and p.row[r, COMPUTED] == n
        and (p.row[r, GOT_UP] == n or (p.row[r, BITS_OUT] == 0 and p.row[r, TILES] > 0))
    )


def sent(k, s, p, size, d, upward, now):
    """The last bit of a tile has left: free the link, and let it arrive after the latency."""
    if upward:
        r = p.dev[d, Q_UP]
        p.dev[d, BUSY_UP] = 0
        p.row[r, SENT_UP] += 1
    else:
        r = p.dev[d, Q_DOWN]
        p.dev[d, BUSY_DOWN] = 0
        p.row[r, SENT_DOWN] += 1
    if k.device[d, LATENCY] > 0:
        event_add(p, now + k.device[d, LATENCY], ARRIVE_UP if upward else ARRIVE_DOWN, r, 0)
        return kick(k, s, p, size, d, now)
    return arrived(k, s, p, size, r, upward, now)


def arrived(k, s, p, size, r, upward, now):
    """A tile is at the other end."""
    n = max(p.row[r, TILES], 1)
    if upward:
        p.row[r, GOT_UP] += 1
        if p.row[r, GOT_UP] == n:
            p.row[r, UP_END] = now
    else:
        p.row[r, GOT_DOWN] += 1
        if p.row[r, GOT_DOWN] == n:
            p.row[r, DOWN_END] = now
    fine = True
    if p.row[r, STATE] == WAITING and whole(p, r):
        fine = finish(k, s, p, size, r, now)
    return kick(k, s, p, size, p.row[r, ON_DEVICE], now) and fine


def submit(k, s, p, size, off, first, last, now):
    """Queue rows ``first:last`` of the pool on their devices; rows on absent devices are lost at once.

    Returns the first row that can never settle, or -1.
    """
    for r in range(first, last):
        d = p.row[r, ON_DEVICE]
        if p.row[r, STATE] != WAITING:
            continue
        if off[d] <= now:
            lose(p, r, now)
            continue
        tail = p.dev[d, Q_TAIL]
        if tail >= 0:
            p.row[tail, FOLLOWS] = r
        p.dev[d, Q_TAIL] = r
        if p.dev[d, Q_HEAD] < 0:
            p.dev[d, Q_HEAD] = r
        if p.dev[d, Q_DOWN] < 0:
            p.dev[d, Q_DOWN] = r
        if p.dev[d, Q_COMP] < 0:
            p.dev[d, Q_COMP] = r
        if p.dev[d, Q_UP] < 0:
            p.dev[d, Q_UP] = r
        if p.row[r, READY] > now:
            event_add(p, p.row[r, READY], RELEASE, r, 0)
        else:
            p.row[r, WAITS] -= 1
        p.row[r, READY] = -1
    for r in range(first, last):
        if (
            p.row[r, WAITS] == 0
            and p.row[r, STATE] == WAITING
            and p.row[r, READY] < 0
            and not open_row(k, s, p, size, r, now)
        ):
            return r
    return -1


def advance(k, s, p, size, until, answer):
    """Run events up to and including ``until``; ``answer`` receives (why it stopped, at what time, which row or
    device).

    It stops early at the first instant at which a dispatch has something to tell (with that instant complete), when the
    event heap needs room, or on a transfer that can never end.
    """
    told_at = FAR
    room = len(p.heap) - 16
    while True:
        if p.counter[0] > room - p.counter[6]:
            answer[0], answer[1], answer[2] = GROW, 0, 0
            return
        time = p.heap[0, HEAP_TIME] if p.counter[0] > 0 else FAR
        side = -1
        slot = -1
        if s.capacity[0] >= 0:
            at, f = share_next(s, 0, 0)
            if at <= time and f >= 0:
                time, side, slot = at, 0, f
        if s.capacity[1] >= 0:
            at, f = share_next(s, 1, size)
            if f >= 0 and (at < time or (at == time and side < 0)):
                time, side, slot = at, 1, f
        if time > until or time > told_at:
            if told_at < FAR:
                answer[0], answer[1], answer[2] = NOTICE, told_at, 0
            else:
                answer[0], answer[1], answer[2] = REACHED, until, time
            return
        fine = True
        d = -1
        if side >= 0:
            share_remove(s, side, side * size, slot, time)
            d = slot - side * size
            fine = sent(k, s, p, size, d, side == 1, time)
        else:
            what, ident, tag = event_pop(p)
            if (
                (what == OVER_COMP and tag != p.dev[ident, EPOCH + 1])
                or (what == OVER_DOWN and tag != p.dev[ident, EPOCH])
                or (what == OVER_UP and tag != p.dev[ident, EPOCH + 2])
            ):
                continue
            if what == OVER_COMP:
                d = ident
                r = p.dev[d, Q_COMP]
                p.dev[d, BUSY_COMP] = 0
                p.row[r, COMPUTED] += 1
                if p.row[r, TILES] > 0:
                    if p.row[r, BITS_OUT] > 0 and p.row[r, COMPUTED] == p.row[r, SENT_UP] + 1:
                        p.row[r, ASKED_UP] = time
                    if p.row[r, COMPUTED] == p.row[r, TILES]:
                        p.row[r, COMP_END] = time
                        if p.row[r, BITS_OUT] == 0:
                            p.row[r, UP_START] = p.row[r, UP_END] = time
                            fine = finish(k, s, p, size, r, time)
                else:
                    p.row[r, COMP_END] = time
                    if whole(p, r):
                        fine = finish(k, s, p, size, r, time)
                fine = kick(k, s, p, size, d, time) and fine
            elif what == OVER_DOWN:
                d = ident
                fine = sent(k, s, p, size, d, False, time)
            elif what == OVER_UP:
                d = ident
                fine = sent(k, s, p, size, d, True, time)
            elif what == ARRIVE_DOWN or what == ARRIVE_UP:
                d = p.row[ident, ON_DEVICE]
                if p.row[ident, STATE] == WAITING:
                    fine = arrived(k, s, p, size, ident, what == ARRIVE_UP, time)
            elif what == RELEASE:
                d = p.row[ident, ON_DEVICE]
                p.row[ident, WAITS] -= 1
                if p.row[ident, WAITS] == 0 and p.row[ident, STATE] == WAITING:
                    fine = open_row(k, s, p, size, ident, time)
            elif what == PICK:
                d = ident
                p.dev[d, PICKING] = 0
                fine = start_down(k, s, p, size, d, time)
                fine = start_up(k, s, p, size, d, time) and fine
            elif what == STEP_DOWN or what == STEP_UP:
                upward = what == STEP_UP
                d = ident
                slot = (size if upward else 0) + d
                if s.slot[slot, NEXT_STEP] == time:
                    rate, following = rate_at(k, d, upward, time)
                    if rate < 0:
                        fine = False
                    else:
                        s.slot[slot, NEXT_STEP] = following
                        if rate != s.real[slot, CAP]:
                            base = size if upward else 0
                            share_recap(s, 1 if upward else 0, base, slot, time, rate)
                        if following < FAR:
                            event_add(p, following, what, d, 0)
        if not fine:
            answer[0], answer[1], answer[2] = STUCK, time, d
            return
        if p.counter[5] > 0 and told_at == FAR:
            told_at = time


def stop_stage(s, p, size, d, stage, now):
    """End what one stage of a device (0 download, 1 compute, 2 upload) is busy with; its event becomes stale."""
    p.dev[d, EPOCH + stage] += 1
    if stage == 0:
        p.dev[d, BUSY_DOWN] = 0
    elif stage == 1:
        p.dev[d, BUSY_COMP] = 0
    else:
        p.dev[d, BUSY_UP] = 0
    side = stage >> 1
    if stage != 1 and d < size and s.capacity[side] >= 0 and s.slot[side * size + d, NEXT_STEP] >= 0:
        share_remove(s, side, side * size, side * size + d, now)


def drop_device(k, s, p, size, d, now):
    """A device leaves: every row it has not finished is lost at this instant, and its queues are empty.

    Returns whether every other device that this unblocked can go on.
    """
    for stage in range(3):
        stop_stage(s, p, size, d, stage, now)
    told = p.counter[3]
    r = p.dev[d, Q_HEAD]
    while r >= 0:
        following = p.row[r, FOLLOWS]
        if p.row[r, STATE] == WAITING:
            lose(p, r, now)
        r = following
    p.dev[d, Q_HEAD] = p.dev[d, Q_DOWN] = p.dev[d, Q_COMP] = p.dev[d, Q_UP] = p.dev[d, Q_TAIL] = -1
    fine = True
    for j in range(told, p.counter[3]):  # rows elsewhere that waited for the lost ones no longer block their queues
        e = p.row[p.row[j, LOG], ON_DEVICE]
        if e != d:
            fine = kick(k, s, p, size, e, now) and fine
    return fine


def withdraw(k, s, p, size, first, last, now):
    """Withdraw the rows ``first:last`` that are not done: they are lost, and stages at work on them are freed at
    once.
    """
    told = p.counter[3]
    for r in range(first, last):
        if p.row[r, STATE] == WAITING:
            lose(p, r, now)
    for j in range(told, p.counter[3]):
        r = p.row[j, LOG]
        d = p.row[r, ON_DEVICE]
        if p.dev[d, BUSY_DOWN] > 0 and p.dev[d, Q_DOWN] == r:
            stop_stage(s, p, size, d, 0, now)
        if p.dev[d, BUSY_COMP] > 0 and p.dev[d, Q_COMP] == r:
            stop_stage(s, p, size, d, 1, now)
        if p.dev[d, BUSY_UP] > 0 and p.dev[d, Q_UP] == r:
            stop_stage(s, p, size, d, 2, now)
    fine = True
    for j in range(told, p.counter[3]):
        fine = kick(k, s, p, size, p.row[p.row[j, LOG], ON_DEVICE], now) and fine
    return fine
