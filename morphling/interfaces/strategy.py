"""The promise of a strategy: notices in, decisions out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.types import IntArray

__all__ = [
    "All",
    "Cancel",
    "Covers",
    "Decision",
    "Decisions",
    "Dispatch",
    "Done",
    "Each",
    "IterationDone",
    "Notify",
    "Placement",
    "Progress",
    "Quorum",
    "Sent",
    "StandingOrder",
    "Strategy",
    "WakeAt",
]


@dataclass(frozen=True)
class All:
    """Call ``on_done`` once, when every row of the dispatch is settled (done or lost)."""


@dataclass(frozen=True)
class Each:
    """Call ``on_done`` at every instant at which rows finish, with those rows."""


@dataclass(frozen=True)
class Quorum:
    """Call ``on_done`` once, when ``k`` rows are done."""

    k: int


Notify: TypeAlias = All | Each | Quorum


@dataclass(frozen=True, eq=False)
class Dispatch:
    """Send these rows now.  ``tag`` is the strategy's own label; ``layer``/``level`` and ``label`` are recorded."""

    tasks: TaskTable
    notify: Notify = field(default_factory=All)
    tag: Any = None
    label: str = ""


@dataclass(frozen=True, eq=False)
class StandingOrder:
    """Keep ``at_once`` of these rows under way from now on: what to start, decided once, and carried out by the engine.

    At every instant, while fewer are under way and somebody is idle, one device is drawn, uniformly among those of the
    table that are idle and online at that moment, and its row starts.  So a row that is done, or lost, is replaced at
    once, and a device that joins may be drawn from then on.  A device starts as often as it is drawn.  Draws are from
    the stream ``selection``.

    tasks : one row for each device that may be drawn, int n >= 1; no dependencies, no ``release_ns``, no peers
    at_once : rows under way at the same time; fewer where fewer devices are online
    every : call ``on_progress`` each time that so many more rows have been done, before the last of them is replaced

    It stands until `Done` or `Cancel` (with its serial), and alone: ``EngineError`` if rows are under way, or if
    another dispatch is made meanwhile.  Until then ``on_done``, ``on_lost``, ``on_left`` and ``on_joined`` are not
    called, and transfers of its rows do not enter the view's estimates of links.  It is recorded as one dispatch of the
    rows that were started, in the order in which they were; timers ring as ever.
    """

    tasks: TaskTable
    at_once: int
    every: int = 1
    tag: Any = None
    label: str = ""


@dataclass(frozen=True)
class Cancel:
    """Withdraw the rows of a dispatch (by its serial) that are not yet done."""

    dispatch: int


@dataclass(frozen=True)
class WakeAt:
    """Call ``on_timer(tag)`` at virtual time ``time_s`` (not before now)."""

    time_s: float
    tag: Any = None


@dataclass(frozen=True)
class Done:
    """The run is over; rows that still run are withdrawn."""

    reason: str = "finished"


@dataclass(frozen=True)
class IterationDone:
    """A training iteration ended now (recorded; the run goes on)."""


Covers: TypeAlias = Literal["gemms", "flops", "none"]
"""What a strategy's rows add up to, see `Strategy.covers`."""

Decision: TypeAlias = Dispatch | StandingOrder | Cancel | WakeAt | IterationDone | Done
Decisions: TypeAlias = Decision | Iterable[Decision]


@dataclass(frozen=True, eq=False)
class Sent:
    """What a notice says of a dispatch: its serial number, the strategy's tag, the table, and when it was made."""

    serial: int
    tag: Any
    tasks: TaskTable
    time_s: float
    label: str = ""


class Progress(NamedTuple):
    """What has become of a standing order since it was heard of last; row numbers are those of its table.

    done : int64[every], rows that were done, in order (by instant, then by when they started)
    began_after : int64[every], of each of them, how many rows of the order had been done when it started
    lost, lost_ns : int64[·], rows whose device left, and when, in whole nanoseconds of virtual time
    started : rows started since the order was given
    under_way : rows under way, without the one whose end is being told
    """

    done: IntArray
    began_after: IntArray
    lost: IntArray
    lost_ns: IntArray
    started: int
    under_way: int


class Placement(NamedTuple):
    """Where the rows of a dispatch lie in the outputs of the GEMM DAG; int64[n] each.

    node : node of the DAG (-1: none)
    row, column : first row and first column of the row's block, whose sides are the row's m and n
    inner : where the row's part of the inner dimension begins, for partial sums that are added up; None = at 0
    """

    node: IntArray
    row: IntArray
    column: IntArray
    inner: IntArray | None = None


class Strategy(ABC):
    """Decides; never waits, never touches time or state.

    ``Config`` is a pydantic-compatible dataclass or model, validated from ``scenario.strategy`` (unknown keys refused).
    Lines ``name : text`` of its docstring describe its fields for `morphling strategies`, as does the first line of the
    strategy's own docstring.
    """

    Config: ClassVar[type]
    name: ClassVar[str] = ""
    uses_peers: ClassVar[bool] = False
    """Whether rows may name a peer: transfers between devices (the engine then lets every link be shared)."""
    repeats_work: ClassVar[bool] = False
    """Whether dispatches are given up and done again whole, under a label that ends alike (else only lost rows)."""
    waiting_for: str = ""
    """Why nothing is under way: what it needs before it can go on.  If that never comes, the run is refused with it."""

    restarts: ClassVar[bool] = False
    """Whether `start` may be called again after `Done`, for the same workload at a later time: plans may then be kept
    for as long as the same devices are online.  Else another instance is made."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    def enforces_memory(self) -> bool:
        """Whether the engine refuses rows that do not fit a device's memory (a published model may ignore it)."""
        return True

    @property
    def covers(self) -> Covers:
        """What the rows that get done add up to in an iteration; `morphling.testing` holds a strategy to it.

        ``gemms`` : the devices' GEMMs of the workload are split into rows, and each element of every output is computed
            exactly once
        ``flops`` : GEMMs stay whole in rows of another grain (stages, replicas); the FLOPs of each layer are conserved
        ``none`` : neither (work that is done twice on purpose, or only in part)
        """
        return "gemms"

    @abstractmethod
    def start(self, view: View) -> Decisions:
        """Called once at time 0."""

    def on_done(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:
        """Rows of a dispatch finished, as its ``notify`` asked."""
        return ()

    def on_lost(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:
        """A device left; these rows did not finish."""
        return ()

    def on_progress(self, order: Sent, news: Progress, view: View) -> Decisions:
        """As many more rows of a `StandingOrder` are done as it asked for; the last of them is not yet replaced."""
        return ()

    def on_joined(self, devices: IntArray, view: View) -> Decisions:
        """These devices came (back); their caches are empty."""
        return ()

    def on_left(self, devices: IntArray, view: View) -> Decisions:
        """These devices left, whether or not they held rows."""
        return ()

    def on_timer(self, tag: Any, view: View) -> Decisions:
        """A ``WakeAt`` came due."""
        return ()

    def places(self, dispatch: Dispatch) -> Placement | None:
        """Where the rows of a dispatch lie, asked when it is decided; None if the strategy does not say.

        Needed where rows are really computed: a row of its own tells no more than its size.
        """
        return None

    def shares(self) -> tuple[IntArray, IntArray] | None:
        """Devices and how many samples of the batch each computes, int64[n], where each has a replica of the model.

        None if the batch is not shared out, or no plan is made.
        """
        return None

    def report(self) -> dict[str, Any]:
        """What the strategy wants printed and saved beside the metrics (plan, bounds, devices left out and why).

        Plain JSON values.  Keys that tools know: ``estimate_s`` (seconds of an iteration, on average over the run),
        ``estimate_of`` (words for what that is, if it is something else), ``lower_bounds`` (name → seconds),
        ``assumptions`` (list of sentences), ``summary`` (list of lines to print below the table), ``devices_left_out``
        (reason → count), ``load_imbalance``, ``recoveries``, ``not_replayed`` (why the run has no rows: metrics that
        come from rows then have no value).

        ``recoveries`` : list of mappings, one for the rows that were lost at one instant and noticed at one instant, in
        whole nanoseconds of virtual time (`View.now_ns` when it happened): ``lost_ns``, ``detected_ns`` (the strategy
        acted on the loss from then on), ``planning_ns`` (the new plan was begun; left out, ``detected_ns``),
        ``planned_ns`` (the new plan was made and dispatched); ``rows``, how many were lost.  The dispatches of
        ``planned_ns`` whose label begins with ``recovery`` make up for the loss.  A time that never came is None.  An
        entry with ``absorbed`` True has only ``lost_ns``, ``detected_ns`` and perhaps ``further_ns``: nothing is done
        again, work goes on without these rows (which may have been withdrawn, not lost).  With an entry for each loss,
        results split the time of recovery into detection, planning, re-dispatch and recompute.

        A strategy that stops, moves states and starts again also gives, per entry, ``moved_ns`` (the states have
        arrived), ``ready_ns`` (the new set-up works) and ``replayed_ns`` (as far as before), and may give
        ``further_ns`` (other instants at which rows were lost or withdrawn because of it), ``abandoned`` (serials of
        dispatches whose work is done again) and ``moved_bytes``.  ``rows`` of 0 says that nothing was running then.
        """
        return {}
