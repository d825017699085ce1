"""FedBuff: asynchronous federated learning with a buffer at the server, timing only (Nguyen et al. 2022).

A number of clients (the concurrency) train at all times.  A report goes into the buffer, and its client is replaced at
once by one that is here and idle, which starts from the server's model of that moment.  When the buffer holds K
reports, the server updates its model: that is an iteration.  The staleness of a report is how many updates the server
made while its client trained.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from morphling.interfaces.strategy import (
    Covers,
    Decision,
    Decisions,
    Dispatch,
    Done,
    Each,
    IterationDone,
    Progress,
    Sent,
    StandingOrder,
    Strategy,
)
from morphling.interfaces.view import View
from morphling.planning.idle import IdlePool
from morphling.planning.local_training import (
    LocalTraining,
    LocalTrainingConfig,
    chained,
    local_training,
    reports_s,
    shared_assumptions,
)
from morphling.types import IntArray

__all__ = ["FedBuff", "FedBuffConfig"]

EACH = Each()


@dataclass(frozen=True)
class FedBuffConfig(LocalTrainingConfig):
    """Configuration of FedBuff.

    concurrency : clients that train at the same time; fewer where fewer are here
    buffer_size : K, reports with which the server updates its model
    max_staleness : reports that are staler than that are thrown away; left out, none is
    draw_ahead : clients that are drawn for a place at once, each to start when the one before has reported; 1 draws the
        next one only then, among all that are idle and here at that moment.  With more, a client that is drawn ahead is
        reserved until its turn, and one that joins waits until the next draw: faster to simulate where clients share
        the coordinator's link, and slower elsewhere.
    """

    concurrency: int = 100
    buffer_size: int = 10
    max_staleness: int | None = None
    draw_ahead: int = 1

    def __post_init__(self) -> None:
        """Refuse counts that mean nothing."""
        super().__post_init__()
        for name in ("concurrency", "buffer_size", "draw_ahead"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: at least 1, not {getattr(self, name)}")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ValueError(f"max_staleness: from 0 on, not {self.max_staleness}")


@dataclass(eq=False, slots=True)
class _Place:
    """One of the places for clients that train at the same time: who has it, and who is drawn to follow.

    devices : in order;  at : which of them trains;  end : how many of them will;  version : the server's updates when
    the one that trains started
    """

    devices: list[int]
    version: int
    at: int = 0
    end: int = 0


class FedBuff(Strategy):
    """Clients that train all the time, and a buffer of reports at the server; timing only."""

    Config: ClassVar[type] = FedBuffConfig
    name: ClassVar[str] = "fedbuff"
    config: FedBuffConfig

    def __init__(self, config: FedBuffConfig | None = None) -> None:
        super().__init__(config or FedBuffConfig())
        self.local: LocalTraining | None = None
        self.idle = IdlePool(0)
        self.occupied: dict[_Place, None] = {}  # in the order in which they were filled
        self.version = self.buffered = self.goal = 0
        self.version_after = [0]  # the server's updates after each number of reports
        self.staleness: Counter[int] = Counter()
        self.counts: Counter[str] = Counter()
        self.recoveries: list[dict[str, Any]] = []
        self.estimate_s: float | None = None

    @property
    def covers(self) -> Covers:
        """Each client does a whole piece of work of its own."""
        return "none"

    # ---------------------------------------------------------------------------------------------------------- hooks

    def start(self, view: View) -> Decisions:
        """Work out what each client does, and fill all places."""
        self.local = local_training(self.config, view)
        self.goal = view.iterations
        self._estimate(view)
        if self.config.draw_ahead == 1:
            limited = self.config.max_staleness is not None  # then not every report fills the buffer
            every = 1 if limited else self.config.buffer_size
            tasks = self.local.tasks.take(np.flatnonzero(self.local.eligible))
            return StandingOrder(tasks, self.config.concurrency, every, label="client")
        self.idle = IdlePool(view.fleet.size)
        self.idle.add(np.flatnonzero(view.online & self.local.eligible).tolist())
        return self._fill(view)

    def on_progress(self, order: Sent, news: Progress, view: View) -> Decisions:  # noqa: ARG002 - there is one order
        """Clients reported, each replaced by the engine from the model of that moment."""
        out: list[Decision] = []
        self.counts["drawn"] = news.started
        self.counts["dropped"] += len(news.lost)
        for at in news.lost_ns.tolist():
            self.recoveries.append({"lost_ns": at, "detected_ns": at, "rows": 1, "absorbed": True})
        if self.config.max_staleness is None:  # all count: K reports are an update
            for after in news.began_after.tolist():
                self.staleness[self.version - after // self.config.buffer_size] += 1
            self.version += 1
            out.append(IterationDone())
        else:
            for after in news.began_after.tolist():
                self._report(self.version_after[after], out)
                self.version_after.append(self.version)
        if self.version < self.goal:
            return out
        return self._stop(news.under_way, news.under_way, out, view)

    def on_done(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:
        """A client reported; the next one has its place from now on."""
        place: _Place = dispatch.tag
        out: list[Decision] = []
        for _ in range(len(rows)):
            self._report(place.version, out)
            if self.version == self.goal:
                return self._end(place, out, view)
            self.idle.put(place.devices[place.at])
            place.at += 1
            place.version = self.version
        if place.at == place.end:
            del self.occupied[place]
            out += self._fill(view)
        return out

    def on_lost(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:
        """A client left while it trained, or while it was drawn to follow; its place ends here, or after who trains."""
        place: _Place = dispatch.tag
        self.recoveries.append(
            {"lost_ns": view.now_ns, "detected_ns": view.now_ns, "rows": len(rows), "absorbed": True}
        )
        gone = rows.tolist()
        place.end = min(gone)
        # who has left is not idle: it comes back when it joins
        self.idle.add([d for d in (place.devices[row] for row in gone) if view.online[d]])
        if place.at in gone:
            self.counts["dropped"] += 1
            del self.occupied[place]
        return self._fill(view)

    def on_joined(self, devices: IntArray, view: View) -> Decisions:
        """They are idle."""
        assert self.local is not None  # noqa: S101 - start sets it
        self.idle.add(devices[self.local.eligible[devices]].tolist())
        return self._fill(view)

    def on_left(self, devices: IntArray, view: View) -> Decisions:  # noqa: ARG002 - whoever trained is told as lost
        """They are not idle any more."""
        self.idle.remove(devices.tolist())
        return ()

    def report(self) -> dict[str, Any]:
        """Counts of clients, staleness, the estimate, who was left out, and what was assumed."""
        counted = sum(self.staleness.values())
        limit = self.config.max_staleness
        accepted = {tau: n for tau, n in self.staleness.items() if limit is None or tau <= limit}
        used = sum(accepted.values())
        summary = f"server updates: {self.version}; clients: {counted} reported, {self.counts['dropped']} dropped out"
        out: dict[str, Any] = {
            "strategy": "fedbuff",
            "server_updates": self.version,
            "reported": counted,
            "too_stale": counted - used,
            "drawn": self.counts["drawn"],
            "dropped": self.counts["dropped"],
            "unfinished": self.counts["unfinished"],
            "staleness": {str(tau): self.staleness[tau] for tau in sorted(self.staleness)},
            "mean_staleness": sum(t * n for t, n in self.staleness.items()) / counted if counted else None,
            "mean_weight": sum(n / sqrt(1 + t) for t, n in accepted.items()) / used if used else None,
            "summary": [summary],
            "recoveries": self.recoveries,
            "assumptions": [*shared_assumptions(self.config), *self._assumptions()],
        }
        if self.local is not None:
            out["eligible"] = int(self.local.eligible.sum())
            out["devices_left_out"] = dict(self.local.left_out)
            out["client_memory_bytes"] = self.local.memory.total
        if self.estimate_s is not None:
            out["estimate_s"] = self.estimate_s
        return out

    # --------------------------------------------------------------------------------------------------------- pieces

    def _report(self, version: int, out: list[Decision]) -> None:
        """Put a report into the buffer, unless it is too stale; with K of them the server updates its model."""
        staleness = self.version - version
        self.staleness[staleness] += 1
        limit = self.config.max_staleness
        if limit is not None and staleness > limit:
            return
        self.buffered += 1
        if self.buffered == self.config.buffer_size:
            self.buffered = 0
            self.version += 1
            out.append(IterationDone())

    def _end(self, place: _Place, out: list[Decision], view: View) -> list[Decision]:
        """The last update: whoever still trains is withdrawn."""
        place.at += 1
        rest = sum(x.end - x.at for x in self.occupied)
        return self._stop(sum(x.at < x.end for x in self.occupied if x is not place), rest, out, view)

    def _stop(self, unfinished: int, rest: int, out: list[Decision], view: View) -> list[Decision]:
        """The run is over, with clients that train, and rows not done."""
        self.counts["unfinished"] = unfinished
        if rest:
            now = view.now_ns
            self.recoveries.append({"lost_ns": now, "detected_ns": now, "rows": rest, "absorbed": True})
        return [*out, Done(f"{self.version} server updates")]

    def _fill(self, view: View) -> list[Decision]:
        """Draw clients for every place that is free."""
        out: list[Decision] = []
        local, config = self.local, self.config
        assert local is not None  # noqa: S101 - start sets it
        while len(self.occupied) < config.concurrency and self.idle:
            ahead = min(config.draw_ahead, max(len(self.idle) // config.concurrency, 1))
            drawn = self.idle.draw(ahead, view)
            if drawn:
                self.counts["drawn"] += len(drawn)
                place = _Place(drawn, self.version, end=len(drawn))
                self.occupied[place] = None
                out.append(Dispatch(chained(local.tasks, drawn), EACH, place, "client"))
        return out

    def _estimate(self, view: View) -> None:
        """Seconds of an update on average over the run, by draws of their own; none if nobody can train now."""
        assert self.local is not None  # noqa: S101 - start sets it
        here = np.flatnonzero(view.online & self.local.eligible)
        places = min(self.config.concurrency, len(here))
        if places:
            seconds = self.local.seconds(here, view, at_once=places)
            reports = self.config.buffer_size * self.goal
            self.estimate_s = reports_s(seconds, places, reports, view.random("estimate")) / self.goal

    def _assumptions(self) -> list[str]:
        notes = [
            "the server knows at once that a client has left",
            "weights of staleness, 1/sqrt(1 + staleness), are only reported",
            "estimate_s has draws of its own: nominal rates of links, nobody comes or leaves, no report is too stale",
        ]
        if self.config.draw_ahead > 1:
            notes.append(
                f"up to {self.config.draw_ahead} clients are drawn for a place at once: not among all that are idle"
                " when each starts, but among those that were idle and not reserved at the draw"
            )
        return notes
