"""Several shared links: every flow has a path of up to four of them, all shared max-min fairly.

A resource is a device's downlink or uplink, a cell's, or one direction of the coordinator's link.  A flow's *bound* is
what it could have alone: the narrowest device link on its path, and its TCP window.  A resource can bind only while the
bounds of its flows add up to more than its capacity; flows that share a binding resource are one component, and a
change is settled by progressive filling in the components that it touches, once for all that happens at an instant.

Rates are reals, so this works in float64; each completion is rounded up to the nanosecond.
"""

from __future__ import annotations

from math import sqrt

from morphling.engine.kernels.filling import net_fill, net_refind
from morphling.engine.kernels.heap import event_add
from morphling.engine.kernels.links import rate_at
from morphling.engine.kernels.records import (
    ACTIVE,
    AFTER,
    AT,
    BEFORE,
    BOUND,
    CAPACITY,
    CELLS,
    DEMAND,
    DIRTY_FLOW,
    DIRTY_FLOWS,
    DIRTY_LINK,
    DIRTY_LINKS,
    DOUBLINGS,
    ENDS,
    FAR,
    FIRST_ON,
    FLOWS,
    GIGA,
    INITIAL,
    LAST_END,
    LATENCY,
    MATHIS,
    MOMENT,
    MOST_RATE,
    NEXT_AT,
    PATH,
    PEAK,
    RATE,
    REST,
    RTT,
    SEGMENT,
    STEP_LINK,
    WIDEN,
    WIDEN_AT,
)

# ------------------------------------------------------------------------------------------------------ what is dirty


def mark_link(w, r):
    """The capacity, the flows or their bounds at resource ``r`` have changed."""
    if w.link[r, DIRTY_LINK] == 0:
        w.link[r, DIRTY_LINK] = 1
        w.dirty[w.state[DIRTY_LINKS], 0] = r
        w.state[DIRTY_LINKS] += 1


def mark_flow(w, f):
    """The bound of flow ``f`` has changed, or it is new."""
    if w.flow[f, DIRTY_FLOW] == 0:
        w.flow[f, DIRTY_FLOW] = 1
        w.dirty[w.state[DIRTY_FLOWS], 1] = f
        w.state[DIRTY_FLOWS] += 1


def at_instant(w, now):
    """What changes from here on changes at ``now``; what is still dirty of an earlier instant is settled first."""
    if w.state[AT] < now:
        if w.state[DIRTY_LINKS] + w.state[DIRTY_FLOWS] > 0:
            net_fill(w)
        w.state[AT] = now


# ------------------------------------------------------------------------------------------------------------- links


def net_capacity(k, w, size, r, now):
    """Capacity of resource ``r`` at ``now`` (-1: unlimited) and when it changes next; (-2, ·): its trace has ended."""
    cells = w.state[CELLS]
    if r < 2 * size:
        rate, following = rate_at(k, r - size if r >= size else r, r >= size, now)
    elif r < 2 * size + 2 * cells:
        c = r - 2 * size
        rate, following = rate_at(w.cells, c - cells if c >= cells else c, c >= cells, now)
    else:
        return w.link[r, CAPACITY], FAR
    if rate < 0:
        return -2, FAR
    return rate, following


def window_rate(w, k, size, f):
    """What TCP lets flow ``f`` send, millibit/s."""
    rtt = w.flow[f, RTT]
    bits = w.tcp[f - size if f >= size else f, SEGMENT] * w.tcp[f - size if f >= size else f, INITIAL]
    bits = bits << w.flow[f, DOUBLINGS]  # below 2^56: it grew only while its rate was below MOST_RATE
    whole = bits // rtt
    if whole > 1_000_000:
        return MOST_RATE
    rate = whole * GIGA + (bits - whole * rtt) * GIGA // rtt
    return max(rate, 1)


def net_bound(k, w, size, f):
    """What flow ``f`` could have alone, millibit/s."""
    bound = MOST_RATE
    for j in range(4):
        r = w.flow[f, PATH + j]
        if 0 <= r < 2 * size and w.link[r, CAPACITY] < bound:
            bound = w.link[r, CAPACITY]
    if w.flow[f, RTT] > 0:
        window = window_rate(w, k, size, f)
        if window < bound:
            bound = window
        if w.flow[f, MATHIS] > 0 and w.flow[f, MATHIS] < bound:
            bound = w.flow[f, MATHIS]
    return bound


def net_rebound(k, w, size, f):
    """Find the bound of an active flow again."""
    bound = net_bound(k, w, size, f)
    change = bound - w.flow[f, BOUND]
    if change == 0:
        return
    w.flow[f, BOUND] = bound
    mark_flow(w, f)
    for j in range(4):
        r = w.flow[f, PATH + j]
        if r >= 0:
            w.link[r, DEMAND] += change
            mark_link(w, r)


def net_step(k, w, p, size, r, now):
    """A step of the trace of resource ``r``; returns False if the trace has ended under a flow."""
    at_instant(w, now)
    rate, following = net_capacity(k, w, size, r, now)
    if rate == -2:
        return False
    w.link[r, NEXT_AT] = following
    if following < FAR:
        event_add(p, following, STEP_LINK, r, 0)
    if rate != w.link[r, CAPACITY]:
        w.link[r, CAPACITY] = rate
        mark_link(w, r)
        if r < 2 * size:
            f = w.link[r, FIRST_ON]
            while f >= 0:
                net_rebound(k, w, size, f >> 2)
                f = w.flow[f >> 2, AFTER + (f & 3)]
    return True


# ------------------------------------------------------------------------------------------------------------- flows


def net_path(w, size, f, d, peer, upward):
    """Write down the resources of a flow in order: sender's link, its cell, the receiver's cell, its link."""
    cells = w.state[CELLS]
    source, target = (d, peer) if upward else (peer, d)
    centre = 2 * size + 2 * cells
    w.flow[f, PATH] = size + source if source >= 0 else -1
    w.flow[f, PATH + 1] = 2 * size + cells + w.cell[source] if source >= 0 and w.cell[source] >= 0 else -1
    w.flow[f, PATH + 2] = 2 * size + w.cell[target] if target >= 0 and w.cell[target] >= 0 else -1
    w.flow[f, PATH + 3] = target
    if source < 0 and w.link[centre, CAPACITY] >= 0:
        w.flow[f, PATH] = centre
    if target < 0 and w.link[centre + 1, CAPACITY] >= 0:
        w.flow[f, PATH + 3] = centre + 1


def net_connect(k, w, size, f, d, peer, now):
    """TCP state of a flow that starts now."""
    latency = k.device[d, LATENCY]
    loss = w.loss[d]
    if peer >= 0:
        latency += k.device[peer, LATENCY]
        loss = 1.0 - (1.0 - loss) * (1.0 - w.loss[peer])
    segment = w.tcp[d, SEGMENT]
    w.flow[f, RTT] = 2 * latency if segment > 0 else 0
    if w.flow[f, LAST_END] < 0 or now - w.flow[f, LAST_END] > GIGA:
        w.flow[f, DOUBLINGS] = 0
    if w.flow[f, RTT] == 0:
        return
    w.flow[f, MATHIS] = 0
    if loss > 0.0:
        rate = segment * 1e9 / w.flow[f, RTT] * sqrt(1.5 / loss)
        w.flow[f, MATHIS] = max(int(rate), 1) if rate < MOST_RATE else MOST_RATE


def net_widen(k, w, p, size, f, now):
    """Schedule the next doubling of a flow's window, if it can still grow to any use."""
    limit = MOST_RATE if w.flow[f, MATHIS] == 0 else w.flow[f, MATHIS]
    for j in range(4):
        r = w.flow[f, PATH + j]
        if 0 <= r < 2 * size and w.link[r, PEAK] < limit:
            limit = w.link[r, PEAK]
    w.flow[f, WIDEN_AT] = -1
    if window_rate(w, k, size, f) < limit:
        w.flow[f, WIDEN_AT] = now + w.flow[f, RTT]
        event_add(p, w.flow[f, WIDEN_AT], WIDEN, f, 0)


def net_add(k, w, p, size, d, peer, upward, now, bits):
    """A new flow of device ``d``; returns False if a trace on its path has ended."""
    at_instant(w, now)
    f = size + d if upward else d
    net_path(w, size, f, d, peer, upward)
    for j in range(4):
        r = w.flow[f, PATH + j]
        if r < 0:
            continue
        if w.link[r, FLOWS] == 0:
            rate, following = net_capacity(k, w, size, r, now)
            if rate == -2:
                for i in range(j, 4):  # what was not entered must not be left
                    w.flow[f, PATH + i] = -1
                return False
            if rate != w.link[r, CAPACITY]:
                w.link[r, CAPACITY] = rate
            if following < FAR and w.link[r, NEXT_AT] != following:
                event_add(p, following, STEP_LINK, r, 0)
            w.link[r, NEXT_AT] = following
        first = w.link[r, FIRST_ON]
        w.flow[f, AFTER + j] = first
        w.flow[f, BEFORE + j] = -1
        if first >= 0:
            w.flow[first >> 2, BEFORE + (first & 3)] = 4 * f + j
        w.link[r, FIRST_ON] = 4 * f + j
        w.link[r, FLOWS] += 1
        mark_link(w, r)
    net_connect(k, w, size, f, d, peer, now)
    w.flow[f, ACTIVE] = 1
    w.flow[f, WIDEN_AT] = -1
    w.flow[f, BOUND] = 0
    w.flow[f, MOMENT] = now
    w.real[f, RATE] = 0.0
    w.real[f, REST] = float(bits)
    w.real[f, ENDS] = float(now) if bits == 0 else 9e18
    mark_flow(w, f)
    net_rebound(k, w, size, f)
    if bits == 0:
        net_refind(w, f)
    if w.flow[f, RTT] > 0:
        net_widen(k, w, p, size, f, now)
    return True


def net_remove(w, f, now):
    """A flow is over, or is cut."""
    at_instant(w, now)
    for j in range(4):
        r = w.flow[f, PATH + j]
        if r < 0:
            continue
        after, before_ = w.flow[f, AFTER + j], w.flow[f, BEFORE + j]
        if after >= 0:
            w.flow[after >> 2, BEFORE + (after & 3)] = before_
        if before_ >= 0:
            w.flow[before_ >> 2, AFTER + (before_ & 3)] = after
        else:
            w.link[r, FIRST_ON] = after
        w.link[r, FLOWS] -= 1
        w.link[r, DEMAND] -= w.flow[f, BOUND]
        mark_link(w, r)
    w.flow[f, ACTIVE] = 0
    w.flow[f, LAST_END] = now
    w.real[f, ENDS] = 9e18
    net_refind(w, f)
