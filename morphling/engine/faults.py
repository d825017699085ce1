"""The words of engine errors: which rows are pending, which can never finish, why nothing is left, and who is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from morphling.errors import Deserted, EngineError, Infeasible, RunError
from morphling.types import FAR_NS, SECOND_NS, DType, Kind

if TYPE_CHECKING:
    from morphling.engine.closed_lane import Trouble
    from morphling.engine.engine import Engine

__all__ = ["forsaken", "given_up", "never_finishes", "nothing_left", "pending", "too_late"]


def pending(engine: Engine, limit: int = 3) -> str:
    """Which rows are pending, naming one of each dispatch."""
    words = []
    waiting = [(running, engine.lane.unsettled(running, engine.now_ns)) for running in engine.running.values()]
    waiting = [(running, rows) for running, rows in waiting if len(rows)]
    for running, rows in waiting[:limit]:
        t, row = running.tasks, int(rows[0])
        words.append(
            f"dispatch {running.serial} ({running.sent.label or 'no label'}): {len(rows)} rows, such as row {row}"
            f" {Kind(int(t.kind[row])).name.lower()} on device {t.device[row]}"
        )
    if engine.order is not None and engine.order.words():
        words.append(engine.order.words())
    if not words:
        return "no rows are pending"
    more = f" and {len(waiting) - limit} more dispatches" if len(waiting) > limit else ""
    return "pending: " + "; ".join(words) + more


def never_finishes(engine: Engine, t: Trouble) -> EngineError:
    """Name a row that can never settle."""
    fleet, tasks, i = engine.fleet, t.running.tasks, t.row
    d = int(tasks.device[i])
    name = fleet.profile_names[fleet.profile[d]] if d < fleet.size else "coordinator"
    link = _link(engine, d) if d < fleet.size else "link none"
    return EngineError(
        f"dispatch {t.running.serial} ({t.running.sent.label or 'no label'}), row {i} on device {d} ({name})"
        f" can never finish: {t.why} ({link}; {tasks.bytes_in[i]} bytes down, {tasks.bytes_out[i]} bytes up,"
        f" {DType(int(tasks.dtype[i])).label})"
    )


def called(engine: Engine) -> str:
    """What to call the strategy: the one inside, where a script is emulated."""
    return type(getattr(engine.strategy, "inner", engine.strategy)).__name__


def _ended(engine: Engine) -> str:
    ended = len(engine.iteration_ends)
    counted = getattr(engine.strategy, "counted", "")  # a script has as many steps as it likes
    if counted:
        return f"{ended} {counted} have ended"
    return f"{ended} of {engine.iterations} iterations have ended"


def nothing_left(engine: Engine) -> RunError:
    """No event is left and the strategy has not said `Done`."""
    if engine.strategy.waiting_for:
        return Infeasible(
            f"{engine.strategy.waiting_for} (since devices left; no more come after {_seconds(engine.now_ns)};"
            f" {_ended(engine)})"
        )
    kind = Deserted if forsaken(engine) else EngineError
    return kind(
        f"nothing is left to happen at {_seconds(engine.now_ns)} and {called(engine)} has not said "
        f"Done: {_unfinished(engine)}{_halted(engine)}"
    )


def too_late(engine: Engine) -> EngineError:
    """What comes next lies beyond the limit of the run."""
    return EngineError(
        f"virtual time would pass the limit of {_seconds(engine.horizon_ns)} ({_limit(engine)}); {_unfinished(engine)}"
    )


def given_up(engine: Engine, timers: int) -> EngineError:
    """Only timers come due, and no device is left that could do anything."""
    return Deserted(
        f"{called(engine)} has waited for {timers:,} timers with no device online, up to "
        f"{_seconds(engine.now_ns)}: {_unfinished(engine)}"
    )


def forsaken(engine: Engine) -> bool:
    """Whether nobody is online, and nobody comes any more while the run may last."""
    return not engine.online.any() and _next_join(engine) > engine.horizon_ns


def _unfinished(engine: Engine) -> str:
    return f"{_who_is_here(engine)}; {pending(engine)}; {_ended(engine)}"


def _halted(engine: Engine) -> str:
    """The link and the cell of one row that waits on a device that is here; empty without cells."""
    if engine.fleet.links.cells is None:
        return ""
    for running in engine.running.values():
        rows = engine.lane.unsettled(running, engine.now_ns)
        device = running.tasks.device[rows]
        here = rows[(device < engine.fleet.size) & engine.online[np.minimum(device, engine.fleet.size - 1)]]
        if len(here):
            d = int(running.tasks.device[here[0]])
            return f"; row {here[0]} on device {d} waits ({_link(engine, d)})"
    return ""


def _link(engine: Engine, device: int) -> str:
    """What a device's link follows, and the cell that it is behind."""
    links = engine.fleet.links
    words = f"link {links.trace_names[links.trace[device]]}"
    if links.cells is None or links.cell is None or links.cell[device] < 0:
        return words
    cell = int(links.cell[device])
    return f"{words}, behind cell {cell} with link {links.cells.trace_names[links.cells.trace[cell]]}"


def _who_is_here(engine: Engine) -> str:
    online, size = int(engine.online.sum()), engine.fleet.size
    empty = "" if engine.battery is None else engine.battery.words()
    if online:
        return f"{online} of {size} devices are online{empty}"
    left = max((time for time, _, here in engine.churn if not here), default=None)
    since = "no device has come online" if left is None else f"the last device online left at {_seconds(left)}"
    coming = _next_join(engine)
    if coming <= engine.horizon_ns:
        back = f"the next comes at {_seconds(coming)}"
    elif engine.horizon_ns < FAR_NS - 1:
        back = f"none returns by {_seconds(engine.horizon_ns)} ({_limit(engine)})"
        back += f", the next only at {_seconds(coming)}" if coming < FAR_NS else ""
    else:
        back = "none ever returns"
    return f"{since} and {back}{empty}{_lost_at(engine, left)}"


def _lost_at(engine: Engine, left: int | None) -> str:
    """The rows that were lost as the last device left: they are what a strategy waits to do again."""
    rows = [int(np.count_nonzero(r.lost & (r.column("settled_ns") == left))) for r in engine.records]
    last = next((r for r, n in zip(reversed(engine.records), reversed(rows), strict=True) if n), None)
    if last is None:
        return ""
    count = f"{sum(rows)} row{'s' if sum(rows) > 1 else ''}"
    return f"; lost with it: {count}, the last of dispatch {last.serial} ({last.label or 'no label'})"


def _next_join(engine: Engine) -> int:
    """When the next device comes; ``FAR_NS`` if none does."""
    if engine.battery is not None:
        return engine.battery.next_join()
    time, _, until = engine.agenda
    later = time[(until >= 0) & (time > engine.now_ns)]
    return int(later[0]) if len(later) else FAR_NS


def _limit(engine: Engine) -> str:
    return "run.max_time" if engine.horizon_ns == engine.max_ns else "availability.horizon"


def _seconds(ns: int) -> str:
    """Exact decimal seconds."""
    whole, part = divmod(ns, SECOND_NS)
    return f"{whole:,}" + (f".{part:09d}".rstrip("0") if part else "") + " s"
