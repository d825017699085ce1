"""The event heap, and rows that settle or are lost."""

from __future__ import annotations

from morphling.engine.kernels.records import (
    AFTER_ALL,
    D_DONE,
    D_FLAG,
    D_LEFT,
    D_NOTIFY,
    DONE,
    FOLLOWS,
    HEAP_ID,
    HEAP_SERIAL,
    HEAP_TAG,
    HEAP_TIME,
    HEAP_WHAT,
    LOG,
    LOST,
    NOTIFY_EACH,
    OF_DISPATCH,
    ON_DEVICE,
    OUT_LEN,
    OUT_PTR,
    PICK,
    Q_HEAD,
    SETTLED,
    STACK,
    STATE,
    WAITING,
)


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
