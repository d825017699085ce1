"""Progressive filling: max-min fair rates of the flows that a change can have touched, and which flow ends next."""

from __future__ import annotations

from math import ceil

from morphling.engine.kernels.records import (
    ACTIVE,
    AFTER,
    AT,
    BOUND,
    CAPACITY,
    DEMAND,
    DIRTY_FLOW,
    DIRTY_FLOWS,
    DIRTY_LINK,
    DIRTY_LINKS,
    ENDS,
    FAR,
    FIRST_ON,
    FLOWS,
    HELD_BACK,
    HUNGRY,
    LEVEL,
    MOMENT,
    PATH,
    RATE,
    REMAINS,
    REST,
    SEEN,
    SEEN_LINK,
    SHARE,
    STAMP,
    TIGHT,
)


def binds(w, r):
    """Whether resource ``r`` cannot give all its flows what they could have alone."""
    return w.link[r, CAPACITY] >= 0 and w.link[r, DEMAND] > w.link[r, CAPACITY]


def reach_flows(w, r, n, stamp):
    """List the flows of a resource that are not listed yet; returns how many are listed now."""
    f = w.link[r, FIRST_ON]
    while f >= 0:
        if w.flow[f >> 2, SEEN] != stamp:
            w.flow[f >> 2, SEEN] = stamp
            w.listed[n, 0] = f >> 2
            n += 1
        f = w.flow[f >> 2, AFTER + (f & 3)]
    return n


def reach(w, stamp):
    """List the flows whose rates may change (``listed[:, 0]``) and the resources that bind them (``[:, 1]``)."""
    n = links = 0
    for i in range(w.state[DIRTY_FLOWS]):
        f = w.dirty[i, 1]
        w.flow[f, DIRTY_FLOW] = 0
        if w.flow[f, ACTIVE] and w.flow[f, SEEN] != stamp:
            w.flow[f, SEEN] = stamp
            w.listed[n, 0] = f
            n += 1
    for i in range(w.state[DIRTY_LINKS]):
        r = w.dirty[i, 0]
        w.link[r, DIRTY_LINK] = 0
        tight = 1 if binds(w, r) else 0
        if tight or w.link[r, TIGHT]:
            n = reach_flows(w, r, n, stamp)
        w.link[r, TIGHT] = tight
    w.state[DIRTY_FLOWS] = w.state[DIRTY_LINKS] = 0
    i = 0
    while i < n:
        f = w.listed[i, 0]
        at = 0
        for j in range(4):
            r = w.flow[f, PATH + j]
            if r >= 0 and w.link[r, TIGHT]:
                w.binding[f, at] = r
                at += 1
                if w.link[r, SEEN_LINK] != stamp:
                    w.link[r, SEEN_LINK] = stamp
                    w.listed[links, 1] = r
                    links += 1
                    n = reach_flows(w, r, n, stamp)
        w.binding[f, at] = -1
        i += 1
    return n, links


def fix(w, f, rate):
    """A flow gets its rate; the resources on its path have less left, for fewer."""
    w.real[f, SHARE] = rate
    j = 0
    r = w.binding[f, 0]
    while r >= 0:
        w.spare[r, REMAINS] -= rate
        w.link[r, HUNGRY] -= 1
        w.link[r, HELD_BACK] = 1
        j += 1
        r = w.binding[f, j]


def net_fill(w):
    """Give every flow that a change can have touched its max-min fair rate, from the instant of the change on.

    Progressive filling, all local bottlenecks of a pass at once.  A resource's level, what remains of it for each flow
    without a rate, never falls from pass to pass: so a flow whose bound is no higher than all levels on its path runs
    at its bound, and a resource that has the lowest level on the path of each of its flows gives it to all of them.
    """
    w.state[STAMP] += 1
    n, links = reach(w, w.state[STAMP])
    for i in range(links):
        r = w.listed[i, 1]
        w.spare[r, REMAINS] = float(w.link[r, CAPACITY])
        w.link[r, HUNGRY] = w.link[r, FLOWS]
    for i in range(n):
        w.listed[i, 2] = w.listed[i, 0]
    hungry = n
    while hungry > 0:
        for i in range(links):
            r = w.listed[i, 1]
            w.link[r, HELD_BACK] = 0
            if w.link[r, HUNGRY] > 0:
                w.spare[r, LEVEL] = max(w.spare[r, REMAINS], 0.0) / w.link[r, HUNGRY]
        left = 0
        for i in range(hungry):
            f = w.listed[i, 2]
            level = 9e18
            j = 0
            r = w.binding[f, 0]
            while r >= 0:
                if w.spare[r, LEVEL] < level:
                    level = w.spare[r, LEVEL]
                j += 1
                r = w.binding[f, j]
            if w.flow[f, BOUND] <= level:
                fix(w, f, float(w.flow[f, BOUND]))
                continue
            j = 0
            r = w.binding[f, 0]
            while r >= 0:
                if w.spare[r, LEVEL] > level:
                    w.link[r, HELD_BACK] = 1
                j += 1
                r = w.binding[f, j]
            w.real[f, SHARE] = level
            w.listed[left, 2] = f
            left += 1
        hungry = 0
        for i in range(left):
            f = w.listed[i, 2]
            level = w.real[f, SHARE]
            free = False
            j = 0
            r = w.binding[f, 0]
            while r >= 0:
                if w.spare[r, LEVEL] == level and w.link[r, HELD_BACK] == 0:
                    free = True
                j += 1
                r = w.binding[f, j]
            if free:
                j = 0
                r = w.binding[f, 0]
                while r >= 0:
                    w.spare[r, REMAINS] -= level
                    w.link[r, HUNGRY] -= 1
                    j += 1
                    r = w.binding[f, j]
            else:
                w.listed[hungry, 2] = f
                hungry += 1
    net_apply(w, n)


def net_apply(w, n):
    """Let the listed flows go on at their new rates."""
    now = w.state[AT]
    near = 0
    for i in range(n):
        f = w.listed[i, 0]
        rate = w.real[f, SHARE]
        if rate == w.real[f, RATE]:
            continue
        rest = w.real[f, REST] - w.real[f, RATE] * (now - w.flow[f, MOMENT]) / 1e9
        if rest < 0.0:
            rest = 0.0
        w.real[f, REST] = rest
        w.real[f, RATE] = rate
        w.flow[f, MOMENT] = now
        w.real[f, ENDS] = float(now) + rest / rate * 1e9 if rate > 0.0 else float(now) if rest == 0.0 else 9e18
        if w.near[f >> 6, 1] == 0.0:
            w.near[f >> 6, 1] = 1.0
            w.listed[near, 2] = f >> 6
            near += 1
    for i in range(near):
        net_refind(w, w.listed[i, 2] << 6)


def net_refind(w, f):
    """The end of flow ``f`` has changed: find the first end of its block of 64 slots again, and of 64 such blocks."""
    block = f >> 6
    first = 9e18
    for i in range(block << 6, min((block + 1) << 6, len(w.real))):
        if w.real[i, ENDS] < first:
            first = w.real[i, ENDS]
    w.near[block, 0] = first
    w.near[block, 1] = 0.0
    first = 9e18
    for i in range((block >> 6) << 6, min(((block >> 6) + 1) << 6, len(w.near))):
        if w.near[i, 0] < first:
            first = w.near[i, 0]
    w.far[block >> 6] = first


def net_next(w):
    """When the next flow ends (ns) and which; (FAR, -1) if none does."""
    best, at = 9e18, -1
    for i in range(len(w.far)):
        if w.far[i] < best:
            best, at = w.far[i], i
    if at < 0 or best >= 4e18:
        return FAR, -1
    for i in range(at << 6, min((at + 1) << 6, len(w.near))):
        if w.near[i, 0] == best:
            at = i
            break
    for i in range(at << 6, min((at + 1) << 6, len(w.real))):
        if w.real[i, ENDS] == best:
            at = i
            break
    end = int(ceil(best - 1e-3))  # noqa: RUF046 - as in water-filling
    return (end if end > w.state[AT] else w.state[AT]), at
