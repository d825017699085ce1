"""A standing order in the closed lane: rows that replace each other, and devices that come and go meanwhile."""

from __future__ import annotations

from morphling.engine.kernels.closed import run_closed
from morphling.engine.kernels.records import (
    ACTS_AT,
    AGENDA_AT,
    AT_ONCE,
    DONE_EVER,
    DONE_NEW,
    DRAW,
    DRAWS,
    FAR,
    FILLING,
    GROW,
    HEARD,
    IDLE,
    IS_AWAY,
    IS_BUSY,
    LOST_NEW,
    MOMENT_NOW,
    NOTICE,
    REACHED,
    REPLACED,
    SINCE,
    STARTED,
    STATES,
    STUCK,
    TROUBLE,
    UNDER_WAY,
    ClosedRows,
    Times,
)


def due_add(o, time, start):
    """Row ``start`` (a count of starts) settles at ``time``."""
    i = o.state[UNDER_WAY]
    o.state[UNDER_WAY] = i + 1
    while i > 0:
        parent = (i - 1) >> 1
        if o.due[parent, 0] < time or (o.due[parent, 0] == time and o.due[parent, 1] < start):
            break
        o.due[i, 0] = o.due[parent, 0]
        o.due[i, 1] = o.due[parent, 1]
        i = parent
    o.due[i, 0] = time
    o.due[i, 1] = start


def due_pop(o):
    """Take the row that settles first, of one instant the one that started first; returns its number."""
    first = o.due[0, 1]
    n = o.state[UNDER_WAY] - 1
    o.state[UNDER_WAY] = n
    time, start = o.due[n, 0], o.due[n, 1]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and (
            o.due[child + 1, 0] < o.due[child, 0]
            or (o.due[child + 1, 0] == o.due[child, 0] and o.due[child + 1, 1] < o.due[child, 1])
        ):
            child += 1
        if time < o.due[child, 0] or (time == o.due[child, 0] and start < o.due[child, 1]):
            break
        o.due[i, 0] = o.due[child, 0]
        o.due[i, 1] = o.due[child, 1]
        i = child
    o.due[i, 0] = time
    o.due[i, 1] = start
    return first


def idle_put(o, r):
    """The device of row ``r`` is idle."""
    if o.place[r] == IS_AWAY:
        n = o.state[IDLE]
        o.place[r] = n
        o.idle[n] = r
        o.state[IDLE] = n + 1


def idle_take(o, at):
    """Take whoever is at ``at`` of the idle; the last one moves there."""
    r = o.idle[at]
    n = o.state[IDLE] - 1
    o.state[IDLE] = n
    last = o.idle[n]
    if last != r:
        o.idle[at] = last
        o.place[last] = at
    o.place[r] = IS_AWAY
    return r


def order_fill(k, dev, rows, out, o, coordinator, part_of, h):
    """Start rows until enough are under way or nobody is idle; returns `REACHED`, or why it stopped before that."""
    s = o.state
    while s[UNDER_WAY] < s[AT_ONCE] and s[IDLE] > 0:
        if s[DRAWS] == 0:
            return DRAW
        i = s[STARTED]
        if i == len(o.row):
            return GROW
        s[DRAWS] -= 1
        r = idle_take(o, int(o.number[s[DRAWS]] * s[IDLE]))
        d = rows.device[r]
        if o.online[d] == 0:  # it has left at this very instant
            continue
        if h is not None:  # a row that is withdrawn takes its warmth back
            for j in range(STATES):
                o.warm[r, j] = h.state[d, j]
            o.warm_at[r, 0] = h.clock[d, SINCE]
            o.warm_at[r, 1] = h.clock[d, ACTS_AT]
        o.row[i] = r
        o.after[i] = s[DONE_EVER]
        code = run_closed(
            k,
            dev,
            ClosedRows(
                rows.device[r : r + 1],
                rows.bytes_in[r : r + 1],
                rows.bytes_out[r : r + 1],
                rows.overlap[r : r + 1],
                rows.release[r : r + 1],
                rows.dep_ptr[r : r + 2],
                rows.dep_idx,
                rows.duration[r : r + 1],
                rows.clocked[r : r + 1],
            ),
            Times(
                out.down_start[i : i + 1],
                out.down_end[i : i + 1],
                out.comp_start[i : i + 1],
                out.comp_end[i : i + 1],
                out.up_start[i : i + 1],
                out.up_end[i : i + 1],
                out.settled[i : i + 1],
                out.lost[i : i + 1],
                out.worked[i : i + 1],
            ),
            s[MOMENT_NOW],
            FAR,
            coordinator,
            part_of,
            -1,
            h,
        )
        s[STARTED] = i + 1
        if code > 0:
            s[TROUBLE] = code
            return STUCK
        o.place[r] = IS_BUSY
        due_add(o, out.settled[i], i)
    return REACHED


def order_run(k, dev, rows, out, o, coordinator, part_of, until, h):
    """Carry out a standing order up to and including ``until``.

    At one instant: devices leave and join, rows that settle are replaced in the order in which they started, then those
    who joined are idle.  It stops with `NOTICE` when ``len(o.done)`` rows have been done, before the last of them is
    replaced; with `DRAW` when it needs random numbers, with `GROW` when the lists of starts or of lost rows are full,
    with `STUCK` when the row just started can never settle, and with `REACHED` when nothing is left until then.
    """
    s = o.state
    while True:
        if s[REPLACED] >= 0:
            idle_put(o, s[REPLACED])
            s[REPLACED] = -1
            s[FILLING] = 1
        if s[FILLING] == 1:
            if s[UNDER_WAY] < s[AT_ONCE] and s[IDLE] > 0:  # the call alone costs as much as a join
                why = order_fill(k, dev, rows, out, o, coordinator, part_of, h)
                if why != REACHED:
                    return why
            s[FILLING] = 0
        if s[LOST_NEW] == len(o.lost):
            return GROW
        time = s[MOMENT_NOW]
        what = 2
        if s[HEARD] == s[AGENDA_AT]:
            time = FAR
            what = -1
        if s[UNDER_WAY] > 0 and o.due[0, 0] <= time:
            time = o.due[0, 0]
            what = 1
        if s[AGENDA_AT] < len(o.agenda_time) and o.agenda_time[s[AGENDA_AT]] <= time:
            time = o.agenda_time[s[AGENDA_AT]]
            what = 0
        if what < 0 or time > until:
            return REACHED
        s[MOMENT_NOW] = time
        if what == 0:
            i = s[AGENDA_AT]
            while i < len(o.agenda_time) and o.agenda_time[i] == time:
                d = o.agenda_who[i]
                if o.agenda_until[i] < 0:
                    o.online[d] = 0
                    dev.off[d] = time
                else:
                    o.online[d] = 1
                    dev.free_down[d] = dev.free_compute[d] = dev.free_up[d] = time
                    dev.off[d] = o.agenda_until[i]
                i += 1
            s[AGENDA_AT] = i
            continue
        if what == 2:
            for i in range(s[HEARD], s[AGENDA_AT]):
                r = o.row_of[o.agenda_who[i]]
                if r < 0:
                    continue
                if o.agenda_until[i] >= 0:
                    idle_put(o, r)
                elif o.place[r] >= 0:
                    idle_take(o, o.place[r])
            s[HEARD] = s[AGENDA_AT]
            s[FILLING] = 1
            continue
        i = due_pop(o)
        r = o.row[i]
        o.place[r] = IS_AWAY
        if out.lost[i] > 0:
            o.lost[s[LOST_NEW]] = i
            s[LOST_NEW] += 1
            if o.online[rows.device[r]] > 0:
                idle_put(o, r)
            s[FILLING] = 1
            continue
        o.done[s[DONE_NEW]] = i
        s[DONE_NEW] += 1
        s[DONE_EVER] += 1
        s[REPLACED] = r
        if s[DONE_NEW] == len(o.done):
            return NOTICE
