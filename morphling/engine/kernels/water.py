"""Water-filling: flows that share one capacity max-min fairly, O(log n) a change."""

from __future__ import annotations

from math import ceil

from morphling.engine.kernels.records import (
    AT_LEVEL,
    CAP,
    FAR,
    FINISH,
    K_CAP,
    K_CAP_AT,
    K_FIN,
    K_FIN_AT,
    LEFT,
    NEXT_STEP,
    U_CAP,
    U_CAP_AT,
    U_FIN,
    U_FIN_AT,
)


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
