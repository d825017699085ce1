"""The event lane: an event loop over device queues."""

from __future__ import annotations

from morphling.engine.kernels.filling import net_fill, net_next
from morphling.engine.kernels.heap import event_add, event_pop, lose
from morphling.engine.kernels.heat import heat_cut
from morphling.engine.kernels.links import rate_at
from morphling.engine.kernels.network import at_instant, net_rebound, net_remove, net_step, net_widen
from morphling.engine.kernels.records import (
    ACTIVE,
    ARRIVE_DOWN,
    ARRIVE_UP,
    ASKED_UP,
    AT,
    BITS_IN,
    BITS_OUT,
    BUSY_COMP,
    BUSY_DOWN,
    BUSY_UP,
    CAP,
    COMP_END,
    COMPUTED,
    DIRTY_FLOWS,
    DIRTY_LINKS,
    DOUBLINGS,
    EPOCH,
    FAR,
    FIRST_ON,
    FLOWS,
    FOLLOWS,
    GOT_DOWN,
    GOT_UP,
    GROW,
    HEAP_TIME,
    LAST_END,
    LOG,
    NEXT_AT,
    NEXT_STEP,
    NOTICE,
    ON_DEVICE,
    OVER_COMP,
    OVER_DOWN,
    OVER_UP,
    PEER,
    PICK,
    PICKING,
    Q_COMP,
    Q_DOWN,
    Q_HEAD,
    Q_TAIL,
    Q_UP,
    REACHED,
    READY,
    RELEASE,
    SENT_UP,
    STATE,
    STEP_DOWN,
    STEP_LINK,
    STEP_UP,
    STUCK,
    TILES,
    UP_END,
    UP_START,
    WAITING,
    WAITS,
    WIDEN,
    WIDEN_AT,
    WORKED,
)
from morphling.engine.kernels.stages import arrived, finish, kick, open_row, sent, start_down, start_up, whole
from morphling.engine.kernels.water import share_next, share_recap, share_remove


def needs_peer(p, r):
    """Whether a row has still to get something from its peer, or to bring it something."""
    n = max(p.row[r, TILES], 1)
    return (p.row[r, BITS_IN] > 0 and p.row[r, GOT_DOWN] < n) or (p.row[r, BITS_OUT] > 0 and p.row[r, GOT_UP] < n)


def submit(k, s, w, h, p, size, off, first, last, now):
    """Queue rows ``first:last`` of the pool on their devices; rows on absent devices are lost at once.

    Returns the first row that can never settle, or -1.
    """
    for r in range(first, last):
        d = p.row[r, ON_DEVICE]
        if p.row[r, STATE] != WAITING:
            continue
        peer = p.row[r, PEER]
        if off[d] <= now or (peer >= 0 and off[peer] <= now and needs_peer(p, r)):
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
            and not open_row(k, s, w, h, p, size, r, now)
        ):
            return r
    return -1


def share_step(k, s, p, size, what, d, time):
    """A step of a flow's own trace; returns False if the trace has ended under it."""
    if what != STEP_DOWN and what != STEP_UP:
        return True
    upward = what == STEP_UP
    base = size if upward else 0
    slot = base + d
    if s.slot[slot, NEXT_STEP] != time:
        return True
    rate, following = rate_at(k, d, upward, time)
    if rate < 0:
        return False
    s.slot[slot, NEXT_STEP] = following
    if rate != s.real[slot, CAP]:
        share_recap(s, 1 if upward else 0, base, slot, time, rate)
    if following < FAR:
        event_add(p, following, what, d, 0)
    return True


def net_event(k, w, p, size, what, ident, time):
    """A step of a shared link or a growing window; returns the device whose trace has ended under a flow, or -1."""
    if what == STEP_LINK and w.link[ident, NEXT_AT] == time:
        if w.link[ident, FLOWS] == 0:
            w.link[ident, NEXT_AT] = -1
        elif not net_step(k, w, p, size, ident, time):
            f = w.link[ident, FIRST_ON] >> 2
            return f - size if f >= size else f
    elif what == WIDEN and w.flow[ident, ACTIVE] and w.flow[ident, WIDEN_AT] == time:
        at_instant(w, time)
        w.flow[ident, DOUBLINGS] += 1
        net_rebound(k, w, size, ident)
        net_widen(k, w, p, size, ident, time)
    return -1


def advance(k, s, w, h, p, size, until, answer):
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
        if w is not None:  # one of the two records is None, and what would use it is not compiled
            if time > w.state[AT] and w.state[DIRTY_LINKS] + w.state[DIRTY_FLOWS] > 0:
                net_fill(w)
            at, f = net_next(w)
            if at <= time and f >= 0:
                time, side, slot = at, 1 if f >= size else 0, f
        if s is not None:
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
            if w is not None:
                net_remove(w, slot, time)
            if s is not None:
                share_remove(s, side, side * size, slot, time)
            d = slot - side * size
            fine = sent(k, s, w, h, p, size, d, side == 1, time)
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
                            fine = finish(k, s, w, h, p, size, r, time)
                else:
                    p.row[r, COMP_END] = time
                    if whole(p, r):
                        fine = finish(k, s, w, h, p, size, r, time)
                fine = kick(k, s, w, h, p, size, d, time) and fine
            elif what == OVER_DOWN:
                d = ident
                fine = sent(k, s, w, h, p, size, d, False, time)
            elif what == OVER_UP:
                d = ident
                fine = sent(k, s, w, h, p, size, d, True, time)
            elif what == ARRIVE_DOWN or what == ARRIVE_UP:
                d = p.row[ident, ON_DEVICE]
                if p.row[ident, STATE] == WAITING:
                    fine = arrived(k, s, w, h, p, size, ident, what == ARRIVE_UP, time)
            elif what == RELEASE:
                d = p.row[ident, ON_DEVICE]
                p.row[ident, WAITS] -= 1
                if p.row[ident, WAITS] == 0 and p.row[ident, STATE] == WAITING:
                    fine = open_row(k, s, w, h, p, size, ident, time)
            elif what == PICK:
                d = ident
                p.dev[d, PICKING] = 0
                fine = start_down(k, s, w, h, p, size, d, time)
                fine = start_up(k, s, w, h, p, size, d, time) and fine
            else:
                if w is not None:
                    d = net_event(k, w, p, size, what, ident, time)
                    fine = d < 0
                if s is not None:
                    d = ident
                    fine = share_step(k, s, p, size, what, d, time)
        if not fine:
            answer[0], answer[1], answer[2] = STUCK, time, d
            return
        if p.counter[5] > 0 and told_at == FAR:
            told_at = time


def stop_stage(s, w, h, p, size, d, stage, now):
    """End what one stage of a device (0 download, 1 compute, 2 upload) is busy with; its event becomes stale."""
    p.dev[d, EPOCH + stage] += 1
    if stage == 0:
        p.dev[d, BUSY_DOWN] = 0
    elif stage == 1:
        if h is not None:
            if p.dev[d, BUSY_COMP] > 0:
                p.row[p.dev[d, Q_COMP], WORKED] -= heat_cut(h, d, now)
        p.dev[d, BUSY_COMP] = 0
    else:
        p.dev[d, BUSY_UP] = 0
    side = stage >> 1
    if stage == 1 or d == size:
        return
    slot = side * size + d
    if w is not None:
        if w.flow[slot, ACTIVE]:
            net_remove(w, slot, now)
    if s is not None:
        if s.capacity[side] >= 0 and s.slot[slot, NEXT_STEP] >= 0:
            share_remove(s, side, side * size, slot, now)


def drop_device(k, s, w, h, p, size, d, now):
    """A device leaves: every row it has not finished is lost at this instant, and its queues are empty.

    Returns whether every other device that this unblocked can go on.
    """
    for stage in range(3):
        stop_stage(s, w, h, p, size, d, stage, now)
    if w is not None:
        w.flow[d, LAST_END] = w.flow[size + d, LAST_END] = -1  # its connections are gone
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
            fine = kick(k, s, w, h, p, size, e, now) and fine
    return fine


def withdraw(k, s, w, h, p, size, first, last, peer, now):
    """Withdraw the rows ``first:last`` that are not done: they are lost, and stages at work on them are freed at once.

    With ``peer`` >= 0 only those that still need that peer.
    """
    told = p.counter[3]
    for r in range(first, last):
        if p.row[r, STATE] == WAITING and (peer < 0 or (p.row[r, PEER] == peer and needs_peer(p, r))):
            lose(p, r, now)
    for j in range(told, p.counter[3]):
        r = p.row[j, LOG]
        d = p.row[r, ON_DEVICE]
        if p.dev[d, BUSY_DOWN] > 0 and p.dev[d, Q_DOWN] == r:
            stop_stage(s, w, h, p, size, d, 0, now)
        if p.dev[d, BUSY_COMP] > 0 and p.dev[d, Q_COMP] == r:
            stop_stage(s, w, h, p, size, d, 1, now)
        if p.dev[d, BUSY_UP] > 0 and p.dev[d, Q_UP] == r:
            stop_stage(s, w, h, p, size, d, 2, now)
    fine = True
    for j in range(told, p.counter[3]):
        fine = kick(k, s, w, h, p, size, p.row[p.row[j, LOG], ON_DEVICE], now) and fine
    return fine
