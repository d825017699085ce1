"""A standing order carried out by a strategy: a dispatch for each row, each notice answered by hand."""

from __future__ import annotations

import numpy as np

from morphling.interfaces.strategy import Cancel, Dispatch, Done, Each, StandingOrder, Strategy, WakeAt
from morphling.planning.idle import IdlePool
from morphling.types import FAR_NS

__all__ = ["ByHand", "Ordered"]


class Ordered(Strategy):
    """Gives a standing order, writes down what it hears, and ends after ``updates`` notices, or at ``until_ns``."""

    def __init__(self, tasks, at_once, every, updates, until_ns=FAR_NS, cancel=False):
        super().__init__(None)
        self.tasks, self.at_once, self.every, self.updates = tasks, at_once, every, updates
        self.until_ns, self.cancel = until_ns, cancel
        self.heard = []

    def start(self, view):
        timer = [] if self.until_ns == FAR_NS else [WakeAt(self.until_ns / 1e9)]
        return [*timer, *self.begin(view)]

    def begin(self, view):
        return [StandingOrder(self.tasks, self.at_once, self.every, label="row")]

    def on_progress(self, order, news, view):
        columns = (news.done, news.began_after, news.lost, news.lost_ns)
        self.heard.append((view.now_ns, *(x.tolist() for x in columns), news.started, news.under_way))
        self.heard[-1] += (view.online.tolist(),)
        return Done() if len(self.heard) == self.updates else ()

    def on_timer(self, tag, view):
        return [Cancel(0), Dispatch(self.tasks, label="after")] if self.cancel else Done()

    def on_done(self, dispatch, rows, view):
        return Done()


class ByHand(Ordered):
    """The same without the engine's help."""

    def begin(self, view):
        self.row_of = {int(d): i for i, d in enumerate(self.tasks.device)}
        self.pool, self.busy, self.began = IdlePool(view.fleet.size), {}, []
        self.pool.add(d for d in self.row_of if view.online[d])
        self.done, self.lost, self.done_ever = [], [], 0
        return self.fill(view)

    def fill(self, view):
        out = []
        while len(self.busy) < self.at_once and (drawn := self.pool.draw(1, view)):
            row = self.row_of[drawn[0]]
            self.busy[drawn[0]] = len(self.began)
            self.began.append(self.done_ever)
            out.append(Dispatch(self.tasks.take([row]), Each(), (len(self.began) - 1, row, drawn[0]), "row"))
        return out

    def on_done(self, dispatch, rows, view):
        start, row, device = dispatch.tag
        del self.busy[device]
        self.done.append((row, self.began[start]))
        self.done_ever += 1
        if len(self.done) == self.every:
            done, after = zip(*self.done, strict=True)
            gone, when = zip(*self.lost, strict=True) if self.lost else ((), ())
            self.heard.append((view.now_ns, *map(list, (done, after, gone, when)), len(self.began), len(self.busy)))
            self.heard[-1] += (view.online.tolist(),)
            self.done, self.lost = [], []
            if len(self.heard) == self.updates:
                return Done()
        self.pool.put(device)
        return self.fill(view)

    def on_lost(self, dispatch, rows, view):
        _, row, device = dispatch.tag
        del self.busy[device]
        self.lost.append((row, view.now_ns))
        return self.fill(view)

    def on_left(self, devices, view):
        self.pool.remove(devices.tolist())
        return ()

    def on_joined(self, devices, view):
        self.pool.add(d for d in devices.tolist() if d in self.row_of)
        return self.fill(view)


def started(recording, label="row"):
    """(device, its seven times and the computing, lost) of every row of a recording, in the order of their starts."""
    out = []
    for d in recording.dispatches:
        if d.label == label:
            times = np.stack(d.times, axis=1).tolist()
            out += list(zip(d.tasks.device.tolist(), times, d.lost.tolist(), strict=True))
    return out
