"""Virtual time of a script: each matrix product is a workload of its own that the engine replays from now on.

One engine runs through the whole script, so churn, heat, batteries and links go on from product to product.  Where
nothing can differ (constant links, no heat, nobody comes or goes meanwhile) a product that was replayed before is not
replayed again: it takes the same time from any start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from morphling.emulate.emulated_run import EmulatedRun
from morphling.emulate.tiles import ProductShape, Tiles
from morphling.engine import Engine
from morphling.engine.engine import TIMERS
from morphling.errors import PlanError
from morphling.fleet import Links
from morphling.fleet.links import PastEnd
from morphling.interfaces.events import TIME_COLUMNS
from morphling.interfaces.recording import DispatchRecord, Recording
from morphling.interfaces.strategy import (
    Decision,
    Decisions,
    Dispatch,
    Done,
    IterationDone,
    Placement,
    Sent,
    StandingOrder,
    Strategy,
    WakeAt,
)
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.interfaces.wrapping import WrappedStrategy
from morphling.types import FAR_NS, DType, FloatArray, IntArray, Kind, Phase
from morphling.workload import Workload, products_workload

__all__ = ["FleetClock", "Work"]

ASSUMPTIONS = (
    "each product of the script is planned and replayed on its own, one after another",
    "its operands travel from the coordinator and its result back; nothing stays on a device for the next",
    "when a product begins, the strategy knows who is online",
    "what is no matrix product (activation functions, norms, the optimizer) takes no virtual time",
)
MOST_KEPT = 4096
"""Products whose replay is kept; a script has some tens of shapes."""


@dataclass(eq=False)
class Work:
    """A product that was replayed: the tiles that got done, and what it took.

    ``cut`` : what `products` keeps beside it
    """

    tiles: Tiles
    duration_ns: int
    begun_ns: int
    records: list[DispatchRecord] = field(repr=False)
    cut: Any = None


class _Repeated(DispatchRecord):
    """A dispatch that was replayed before, at another time; its times are worked out when somebody reads them."""

    def __init__(self, first: DispatchRecord, serial: int, shift_ns: int) -> None:
        moved = {
            "serial": serial,
            "time_ns": first.time_ns + shift_ns,
            "label": first.label,
            "settled_ns": first.settled_ns + shift_ns,
            "tasks": first.tasks,
            "lost": first.lost,
            "first": first,
        }
        for name, value in moved.items():
            object.__setattr__(self, name, value)

    @property
    def times(self) -> tuple[IntArray, ...]:
        return tuple(self._time(place) for place in range(len(TIME_COLUMNS)))

    def column(self, name: str) -> NDArray[Any]:
        """As of the base; one column alone, where that is asked for."""
        return self._time(TIME_COLUMNS.index(name)) if name in TIME_COLUMNS else super().column(name)

    def _time(self, place: int) -> IntArray:
        first: DispatchRecord = self.first  # type: ignore[attr-defined] # set above
        column = first.times[place]
        if TIME_COLUMNS[place] == "compute_ns":
            return column
        return np.where(column >= 0, column + (self.time_ns - first.time_ns), column)


class _View:
    """What the strategy of one product sees: the engine's view, with that product as its workload."""

    def __init__(self, view: View, workload: Workload, rates: tuple[FloatArray, FloatArray] | None) -> None:
        self._view, self._rates = view, rates
        self.workload, self.iterations = workload, 1
        self.fleet, self.gemm_seconds, self.random = view.fleet, view.gemm_seconds, view.random

    @property
    def now_s(self) -> float:
        return self._view.now_s

    @property
    def now_ns(self) -> int:
        return self._view.now_ns

    @property
    def online(self) -> Any:
        return self._view.online

    @property
    def downlink_bps(self) -> FloatArray:
        return self._view.downlink_bps if self._rates is None else self._rates[0]

    @property
    def uplink_bps(self) -> FloatArray:
        return self._view.uplink_bps if self._rates is None else self._rates[1]


class _Turns(WrappedStrategy):
    """What the engine runs: the strategy of whichever product is being computed, with what is left over from the
    products before it (alarms, notices of who left) kept away.
    """

    counted: ClassVar[str] = "steps of the script"
    """What an engine's messages count, instead of iterations out of those asked for."""

    def __init__(self, engine: Callable[[], Engine], first: Strategy) -> None:
        super().__init__(first)
        self.engine = engine
        self.turn = 0
        self.view: Any = None
        self.places_of: dict[int, Placement | None] = {}
        self.known = np.zeros(0, bool)

    def begin(self, inner: Strategy, view: Any) -> list[Decision]:
        """The turn of another product."""
        self.turn += 1
        self.inner, self.view = inner, view
        self.places_of = {}
        self.known = view.online.copy()
        return self.passed(inner.start(view))

    def start(self, view: View) -> Decisions:  # noqa: ARG002 - the engine is driven by `FleetClock`
        return ()

    def on_done(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:  # noqa: ARG002 - the product's own
        return super().on_done(dispatch, rows, self.view)

    def on_lost(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:  # noqa: ARG002 - see above
        return super().on_lost(dispatch, rows, self.view)

    def on_joined(self, devices: IntArray, view: View) -> Decisions:  # noqa: ARG002 - see above
        new = devices[~self.known[devices]] if len(self.known) else devices[:0]
        if not len(new):
            return ()
        self.known[new] = True
        return super().on_joined(new, self.view)

    def on_left(self, devices: IntArray, view: View) -> Decisions:  # noqa: ARG002 - see above
        gone = devices[self.known[devices]] if len(self.known) else devices[:0]
        if not len(gone):
            return ()
        self.known[gone] = False
        return super().on_left(gone, self.view)

    def on_timer(self, tag: Any, view: View) -> Decisions:  # noqa: ARG002 - see above
        turn, own = tag
        return super().on_timer(own, self.view) if turn == self.turn else ()

    def passed(self, decisions: Decisions | None) -> list[Decision]:
        """Decisions on their way to the engine: where rows lie is noted, timers know whose they are."""
        out: list[Decision] = []
        serial = self.engine().serial
        listed = () if decisions is None else decisions if isinstance(decisions, Iterable) else (decisions,)
        for decision in listed:
            match decision:
                case Dispatch():
                    self.places_of[serial] = self.inner.places(decision)
                    serial += 1
                    out.append(decision)
                case WakeAt(time_s=time_s, tag=tag):
                    out.append(WakeAt(time_s, (self.turn, tag)))
                case StandingOrder():
                    raise PlanError(f"{type(self.inner).__name__} gives standing orders, which split no product")
                case IterationDone():
                    pass  # a script's steps are the iterations
                case _:
                    out.append(decision)
        return out


class _Central(Strategy):
    """One row of the coordinator."""

    Config: ClassVar[type] = object

    def __init__(self, tasks: TaskTable, label: str) -> None:
        super().__init__(None)
        self.dispatch = Dispatch(tasks, label=label)

    def start(self, view: View) -> Decisions:  # noqa: ARG002 - see above
        return self.dispatch

    def on_done(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:  # noqa: ARG002 - see above
        return Done()


class FleetClock:
    """The fleet, computing one product after another in virtual time.

    repeats : whether products that cannot differ are replayed once (False: always replay, to check the same)

    Attributes
    ----------
    now_ns : virtual time
    varying : why equal products may take unequal times, so that each is replayed; empty where they do not
    replayed, repeated : products that the engine replayed, and those that took what an earlier one took
    """

    def __init__(self, run: EmulatedRun, *, repeats: bool = True) -> None:
        fleet, executor = run.fleet, run.executor
        self.fleet, self.made, self.now_ns = fleet, run.made, 0
        first = run.made()
        self.name = first.name or type(first).__name__
        self.turns = _Turns(lambda: self.engine, first)
        self.engine = run.engine(self.turns)
        # A large fleet alone is no reason to load the compiler: most products are replayed once.
        self.engine.lane.force = None
        varies = {
            "devices warm (execution: {heat: false} turns that off)": self.engine.heat is not None,
            "devices have batteries": fleet.battery is not None,
            "links vary in time": not _steady_links(fleet.links),
            "durations depend on when rows start": not executor.stationary,
        }
        self.varying = " and ".join(text for text, true in varies.items() if true)
        self.steady = not self.varying
        self.repeats = repeats and self.steady
        self.rates = fleet.links.nominal_bps() if self.steady else None
        self.kept: dict[Any, Work] = {}
        self.planners: dict[Any, Strategy] = {}
        self.workloads: dict[Any, Workload] = {}
        self.recoveries: list[Any] = []
        self.assumptions: list[str] = []
        self.replayed = self.repeated = self.lost_rows = 0
        self.engine.start_churn()
        self._look()

    def product(self, name: str, shape: ProductShape, dtype: DType, phase: Phase) -> Work:
        """Compute ``shape`` from now on; virtual time goes to its end.

        ``PlanError`` if the strategy does not say where its rows lie, or they do not cover the product exactly once.
        """
        key = (name, shape, dtype, phase)
        if (known := self._again(key)) is not None:
            return known
        inner = self.planners.get(key)
        if inner is None:
            inner = self.made()
            if inner.restarts:
                self.planners[key] = inner
        work = self._replay(key, inner, lambda: products_workload(name, *shape, dtype, phase))
        work.tiles = self._tiles(shape, work.records)
        work.tiles.check(f"the plan of {inner.name or type(inner).__name__}")
        self._note(inner, work)
        return work

    def central(self, name: str, flops: float, dtype: DType) -> None:
        """Let the coordinator compute; virtual time goes to the end of it."""
        key = ("central", name, flops, dtype)
        if self._again(key) is not None:
            return
        tasks = TaskTable.build(
            device=self.fleet.size, kind=Kind.ELEMENTWISE, flops=flops, dtype=dtype, resident_bytes=0
        )
        self._replay(
            key,
            _Central(tasks, f"coordinator/{name}"),
            lambda: products_workload(name, 1, 1, 1, 1, dtype, Phase.FORWARD),
        )

    def step(self) -> None:
        """A training step ended."""
        self.engine.iteration_ends.append(self.now_ns)

    def report(self) -> dict[str, Any]:
        """What the strategy said of the products, put together."""
        assumptions = [*ASSUMPTIONS, *self.assumptions]
        return {"strategy": self.name, "assumptions": assumptions, "recoveries": self.recoveries}

    def finish(self) -> Recording:
        """The run is over: everything that happened."""
        self._sync()
        self.engine.lane.stop()
        return self.engine.recording()

    # ------------------------------------------------------------------------------------------------------ the engine

    def _again(self, key: Any) -> Work | None:
        """A product that takes what it took before, if it does: its records are written once more, with new times."""
        if self.next_change_ns <= self.now_ns:
            self._sync()
        work = self.kept.get((key, self.online))
        if work is None:
            return None
        end = self.now_ns + work.duration_ns
        if self.next_change_ns < end or end > self.engine.horizon_ns:
            return None
        shift = self.now_ns - work.begun_ns
        for record in work.records:
            self.engine.records.append(_Repeated(record, self.engine.serial, shift))
            self.engine.serial += 1
        self.now_ns = end
        self.repeated += 1
        return work

    def _replay(self, key: Any, inner: Strategy, made: Callable[[], Workload]) -> Work:
        """Run the engine from now to the strategy's `Done`."""
        engine = self.engine
        self._sync()
        if key not in self.workloads:
            self.workloads[key] = made()
        engine.workload = self.workloads[key]
        online, begun, first, quiet_ns = self.online, self.now_ns, len(engine.records), self.next_change_ns
        view = _View(engine.view, engine.workload, self.rates)
        engine.proceed(self.turns.begin(inner, view))
        engine.withdraw(list(engine.running.values()))
        self.now_ns = engine.now_ns
        records = sorted(engine.records[first:], key=lambda r: r.serial)
        work = Work(None, self.now_ns - begun, begun, records)  # type: ignore[arg-type] # `product` adds them
        self.replayed += 1
        if self.repeats and quiet_ns >= self.now_ns and len(self.kept) < MOST_KEPT:
            self.kept[key, online] = work
        self._look()
        return work

    def _sync(self) -> None:
        """Bring the engine to now: it has slept through what was repeated."""
        engine = self.engine
        woken: list[bool] = []
        engine.at(self.now_ns, TIMERS, woken.append, True)
        while not woken:
            engine.env.step()
        self._look()

    def _look(self) -> None:
        """Who is here, and when somebody comes or goes next."""
        times = self.engine.agenda[0]
        place = int(np.searchsorted(times, self.engine.now_ns, "right"))
        self.next_change_ns = int(times[place]) if place < len(times) else FAR_NS
        self.online = self.engine.online.tobytes()

    # --------------------------------------------------------------------------------------------------------- results

    def _tiles(self, shape: ProductShape, records: list[DispatchRecord]) -> Tiles:
        """The rows that got done, as tiles."""
        columns: list[list[Any]] = [[] for _ in range(8)]
        for record in records:
            places = self.turns.places_of.get(record.serial)
            done = ~record.lost & (record.tasks.kind == Kind.GEMM)
            if places is None:
                if done.any() or record.lost.any():
                    raise PlanError(
                        f"{self.turns.inner.name or type(self.turns.inner).__name__} does not say where its rows lie"
                        " (Strategy.places), so they cannot be computed; cleave with model: physical and uniform-tp do"
                    )
                continue
            rows = np.flatnonzero(done & (places.node >= 0))
            node, row, column = (x[rows] for x in places[:3])
            inner = np.zeros(len(rows), np.int64) if places.inner is None else places.inner[rows]
            t = record.tasks
            ends = (row, row + t.m[rows], column, column + t.n[rows], inner, inner + t.k[rows])
            for held, values in zip(columns, (t.device[rows].astype(np.int64), node, *ends), strict=True):
                held.append(values)
        joined = [np.concatenate(c) if c else np.zeros(0, np.int64) for c in columns]
        return Tiles(shape, *joined)

    def _note(self, inner: Strategy, work: Work) -> None:
        """Keep what the strategy says of this product."""
        report = inner.report()
        self.assumptions += [a for a in report.get("assumptions", []) if a not in self.assumptions]
        lost = sum(int(record.lost.sum()) for record in work.records)
        self.lost_rows += lost
        if lost:
            self.recoveries += report.get("recoveries", [])


def _steady_links(links: Links | None) -> bool:
    """Whether rates never change and flows have no memory of those before them."""
    if links is None:
        return True
    if links.tcp is not None:
        return False
    used = np.unique(links.trace)
    one = (np.diff(links.trace_ptr)[used] == 1) & (links.past_end[used] != PastEnd.ERROR)
    return bool(one.all()) and _steady_links(links.cells)
