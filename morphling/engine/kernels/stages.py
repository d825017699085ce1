"""Stages of a device: what it downloads, computes and uploads next."""

from __future__ import annotations

from morphling.engine.kernels.heap import event_add, settle
from morphling.engine.kernels.heat import heat_run
from morphling.engine.kernels.links import rate_at, transfer_end
from morphling.engine.kernels.network import net_add
from morphling.engine.kernels.records import (
    ARRIVE_DOWN,
    ARRIVE_UP,
    ASKED_UP,
    BITS_IN,
    BITS_OUT,
    BUSY_COMP,
    BUSY_DOWN,
    BUSY_UP,
    CLOCKED,
    COMP_START,
    COMPUTED,
    DONE,
    DOWN_END,
    DOWN_START,
    DURATION,
    EPOCH,
    FAR,
    FOLLOWS,
    GOT_DOWN,
    GOT_UP,
    HALF_DUPLEX,
    LATENCY,
    NEXT_STEP,
    ON_DEVICE,
    OUT_LEN,
    OUT_PTR,
    OVER_COMP,
    OVER_DOWN,
    OVER_UP,
    PEER,
    PICK,
    PICKING,
    Q_COMP,
    Q_DOWN,
    Q_UP,
    READY,
    SENT_DOWN,
    SENT_UP,
    STATE,
    STEP_DOWN,
    STEP_UP,
    TILES,
    UP_END,
    UP_START,
    WAITING,
    WAITS,
    WORKED,
)
from morphling.engine.kernels.water import share_add


def begin_flow(k, s, w, p, size, d, peer, upward, now, bits):
    """Put ``bits`` on a link.  Returns False if they can never arrive."""
    fine = False
    if w is not None:  # one of the two records is None, and what would use it is not compiled
        fine = net_add(k, w, p, size, d, peer, upward, now, bits)
    if s is not None:
        fine = share_begin(k, s, p, size, d, upward, now, bits)
    return fine


def share_begin(k, s, p, size, d, upward, now, bits):
    """Put ``bits`` on a private link, or on one direction of the coordinator's."""
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


def start_down(k, s, w, h, p, size, d, now):
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
        return start_together(k, s, w, h, p, size, d, r, now)
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
    return begin_flow(
        k, s, w, p, size, d, p.row[r, PEER], False, now, p.row[r, BITS_IN] * (j + 1) // n - p.row[r, BITS_IN] * j // n
    )


def start_together(k, s, w, h, p, size, d, r, now):
    """Perfect overlap: the three stages of row ``r`` start at one instant, when it is at the front of all three."""
    skip_computed(p, d)
    skip_uploaded(p, d)
    if p.dev[d, BUSY_COMP] > 0 or p.dev[d, BUSY_UP] > 0 or p.dev[d, Q_COMP] != r or p.dev[d, Q_UP] != r:
        return True
    p.row[r, DOWN_START] = p.row[r, COMP_START] = p.row[r, UP_START] = now
    fine = True
    p.dev[d, BUSY_COMP] = 1
    event_add(p, comp_end(h, p, d, r, p.row[r, DURATION], now), OVER_COMP, d, p.dev[d, EPOCH + 1])
    if p.row[r, BITS_IN] > 0:
        p.dev[d, BUSY_DOWN] = 1
        fine = begin_flow(k, s, w, p, size, d, p.row[r, PEER], False, now, p.row[r, BITS_IN])
    else:
        p.row[r, DOWN_END] = now
        p.row[r, SENT_DOWN] = p.row[r, GOT_DOWN] = 1
    if p.row[r, BITS_OUT] > 0:
        p.dev[d, BUSY_UP] = 1
        fine = begin_flow(k, s, w, p, size, d, p.row[r, PEER], True, now, p.row[r, BITS_OUT]) and fine
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


def comp_end(h, p, d, r, work, now):
    """When a device has done ``work`` of row ``r`` that it begins now."""
    end = now + work
    if h is not None:  # without heat this is not compiled
        if work > 0:
            end = heat_run(h, d, now, work, p.row[r, CLOCKED] / p.row[r, DURATION], FAR, True)
        p.row[r, WORKED] += end - now
    return end


def start_comp(h, p, size, d, now):
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
    work = p.row[r, DURATION] * (j + 1) // n - p.row[r, DURATION] * j // n
    event_add(p, comp_end(h, p, d, r, work, now), OVER_COMP, d, p.dev[d, EPOCH + 1])


def start_up(k, s, w, h, p, size, d, now):
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
    return begin_flow(
        k, s, w, p, size, d, p.row[r, PEER], True, now, p.row[r, BITS_OUT] * (j + 1) // n - p.row[r, BITS_OUT] * j // n
    )


def kick(k, s, w, h, p, size, d, now):
    """Start whatever a device can start now; who has a half-duplex channel next is seen when all else has happened."""
    if p.dev[d, HALF_DUPLEX]:
        start_comp(h, p, size, d, now)
        if p.dev[d, PICKING] == 0:
            p.dev[d, PICKING] = 1
            event_add(p, now, PICK, d, 0)
        return True
    fine = start_down(k, s, w, h, p, size, d, now)
    start_comp(h, p, size, d, now)
    fine = start_up(k, s, w, h, p, size, d, now) and fine
    # once more: the row that started together may download nothing
    return start_down(k, s, w, h, p, size, d, now) and fine


def open_row(k, s, w, h, p, size, r, now):
    """A row has been released and its dependencies are done."""
    p.row[r, READY] = now
    if p.row[r, BITS_IN] == 0 and p.row[r, TILES] > 0:  # an empty payload is instant
        p.row[r, DOWN_START] = p.row[r, DOWN_END] = now
        p.row[r, SENT_DOWN] = p.row[r, GOT_DOWN] = p.row[r, TILES]
    return kick(k, s, w, h, p, size, p.row[r, ON_DEVICE], now)


def finish(k, s, w, h, p, size, r, now):
    """A row is done: settle it and open what waited for it."""
    settle(p, r, now, DONE)
    fine = True
    for j in range(p.row[r, OUT_PTR], p.row[r, OUT_PTR] + p.row[r, OUT_LEN]):
        later = p.edge[j]
        p.row[later, WAITS] -= 1
        if p.row[later, WAITS] == 0 and p.row[later, STATE] == WAITING:
            fine = open_row(k, s, w, h, p, size, later, now) and fine
    return fine


def whole(p, r):
    """Whether every part of a row is over."""
    n = max(p.row[r, TILES], 1)
    return (
        p.row[r, GOT_DOWN] == n
        and p.row[r, COMPUTED] == n
        and (p.row[r, GOT_UP] == n or (p.row[r, BITS_OUT] == 0 and p.row[r, TILES] > 0))
    )


def sent(k, s, w, h, p, size, d, upward, now):
    """The last bit of a tile has left: free the link, and let it arrive after the latency."""
    if upward:
        r = p.dev[d, Q_UP]
        p.dev[d, BUSY_UP] = 0
        p.row[r, SENT_UP] += 1
    else:
        r = p.dev[d, Q_DOWN]
        p.dev[d, BUSY_DOWN] = 0
        p.row[r, SENT_DOWN] += 1
    latency = k.device[d, LATENCY]
    if p.row[r, PEER] >= 0:
        latency += k.device[p.row[r, PEER], LATENCY]
    if latency > 0:
        event_add(p, now + latency, ARRIVE_UP if upward else ARRIVE_DOWN, r, 0)
        return kick(k, s, w, h, p, size, d, now)
    return arrived(k, s, w, h, p, size, r, upward, now)


def arrived(k, s, w, h, p, size, r, upward, now):
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
        fine = finish(k, s, w, h, p, size, r, now)
    return kick(k, s, w, h, p, size, p.row[r, ON_DEVICE], now) and fine
