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
    "Quorum",
    "Sent",
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

Decision: TypeAlias = Dispatch | Cancel | WakeAt | IterationDone | Done
Decisions: TypeAlias = Decision | Iterable[Decision]


@dataclass(frozen=True, eq=False)
class Sent:
    """What a notice says of a dispatch: its serial number, the strategy's tag, the table, and when it was made."""

    serial: int
    tag: Any
    tasks: TaskTable
    time_s: float
    label: str = ""


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

        Plain JSON values.  Keys that tools know: ``estimate_s``, ``lower_bounds`` (name → seconds), ``assumptions``
        (list of sentences), ``summary`` (list of lines to print below the table), ``devices_left_out`` (reason →
        count), ``load_imbalance``, ``recoveries``, ``not_replayed`` (why the run has no rows: metrics that come from
        rows then have no value).

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
