"""The words of engine errors: which rows are pending, which can never finish, and why nothing is left to happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from morphling.errors import EngineError
from morphling.types import DType, Kind

if TYPE_CHECKING:
    from morphling.engine.closed_lane import Trouble
    from morphling.engine.engine import Engine

__all__ = ["never_finishes", "nothing_left", "pending"]


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
    if not words:
        return "no rows are pending"
    more = f" and {len(waiting) - limit} more dispatches" if len(waiting) > limit else ""
    return "pending: " + "; ".join(words) + more


def never_finishes(engine: Engine, t: Trouble) -> EngineError:
    """Name a row that can never settle."""
    fleet, tasks, i = engine.fleet, t.running.tasks, t.row
    d = int(tasks.device[i])
    name = fleet.profile_names[fleet.profile[d]] if d < fleet.size else "coordinator"
    trace = fleet.links.trace_names[fleet.links.trace[d]] if d < fleet.size else "none"
    return EngineError(
        f"dispatch {t.running.serial} ({t.running.sent.label or 'no label'}), row {i} on device {d} ({name})"
        f" can never finish: {t.why} (link {trace}; {tasks.bytes_in[i]} bytes down, {tasks.bytes_out[i]} bytes up,"
        f" {DType(int(tasks.dtype[i])).label})"
    )


def nothing_left(engine: Engine) -> EngineError:
    """No event is left and the strategy has not said `Done`."""
    return EngineError(
        f"nothing is left to happen at {engine.now_ns / 1e9:.9g} s and {type(engine.strategy).__name__} has not said "
        f"Done; {pending(engine)}; {int(engine.online.sum())} of {engine.fleet.size} devices are online"
    )
