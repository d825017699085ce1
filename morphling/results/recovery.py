"""How long it took to have lost work done again, and what that time went into.  `docs/metrics.md` defines the parts."""

from __future__ import annotations

from operator import index
from typing import Any, TypeAlias

import numpy as np

from morphling.interfaces.recording import DispatchRecord, Recording
from morphling.results.accounting import Account
from morphling.types import SECOND_NS, IntArray

__all__ = ["PARTS", "WAITING", "recovery"]

PARTS = ("recovery_detection_s", "recovery_planning_s", "recovery_redispatch_s", "recovery_recompute_s")
"""What ``recovery_time_s`` is the sum of."""
WAITING = "recovery_waiting_s"
"""The share of planning in which no plan was being made."""

ABSORBED = -1
"""Instead of the time of a plan: nothing had to be done again."""

_Answers: TypeAlias = dict[int, tuple[int, int]]
"""Recovery dispatches by the instant at which they were made: when their inputs had arrived, when they were settled."""
_Entry: TypeAlias = tuple[int, int, int, int]
"""Lost, detected, planning begun, planned; ns."""


def recovery(recording: Recording, sums: Account, recoveries: object, why: dict[str, str]) -> dict[str, Any]:
    """``recovery_time_s`` and its parts, and how many losses nothing made up for.

    ``recoveries`` : what the strategy reported under that key (see `morphling.interfaces.strategy.Strategy.report`), or
    None.  Without it, or if it does not fit the recording, the parts are None, and the sum counts, for each instant of
    loss, until the dispatches labelled ``recovery…`` that were made next are settled.
    """
    losses = _losses(recording, sums)
    answers = _answers(recording)
    parts: dict[str, Any] = dict.fromkeys((*PARTS, WAITING))
    doubt, misfit = "the strategy reports no recoveries", False
    entries: list[_Entry] | None = None
    if recoveries is not None:
        try:
            entries = _entries(recoveries, set(losses.tolist()), answers)
        except ValueError as error:
            misfit = True
            doubt = f"what the strategy reports under recoveries does not fit the events: {error}"
    if entries is None:
        total, unrecovered, any_answered = _made_next(losses, answers)
    else:
        spent = np.array([_parts(entry, answers) for entry in entries], np.int64).reshape(-1, 5).sum(axis=0).tolist()
        total, any_answered = sum(spent[:4]), bool(entries)
        unrecovered = len(set(losses.tolist()) - {lost for lost, *_ in entries})
        if any_answered:
            parts = {name: ns / SECOND_NS for name, ns in zip(parts, spent, strict=True)}
    if not any_answered:
        nothing = "no row was lost" if len(losses) == 0 else "no dispatch labelled recovery followed"
        why["recovery_time_s"] = nothing
        doubt = doubt if misfit else nothing
    if parts[WAITING] is None:
        why.update(dict.fromkeys(parts, doubt))
    return {
        "recovery_time_s": total / SECOND_NS if any_answered else None,
        **parts,
        "loss_instants": len(losses),
        "unrecovered_losses": unrecovered,
    }


def _losses(recording: Recording, sums: Account) -> IntArray:
    """The distinct instants at which rows were lost, ns."""
    hit = (recording.dispatches[i] for i in np.flatnonzero(sums.dispatch["lost_rows"]))
    return np.unique(np.concatenate([np.zeros(0, np.int64), *(d.column("settled_ns")[d.lost] for d in hit)]))


def _answers(recording: Recording) -> _Answers:
    found: _Answers = {}
    for dispatch in recording.dispatches:
        if dispatch.label.startswith("recovery"):
            moved, settled = found.get(dispatch.time_ns, (dispatch.time_ns, dispatch.time_ns))
            found[dispatch.time_ns] = max(moved, _moved_ns(dispatch)), max(settled, dispatch.settled_ns)
    return found


def _moved_ns(dispatch: DispatchRecord) -> int:
    """When the last input of a row that was done had arrived.

    Where nothing was done, nothing was computed again: all the time went into moving.
    """
    if dispatch.lost.all():
        return dispatch.settled_ns
    carried = ~dispatch.lost & (dispatch.column("bytes_in") > 0)
    return int(dispatch.column("download_end_ns")[carried].max(initial=dispatch.time_ns))


def _made_next(losses: IntArray, answers: _Answers) -> tuple[int, int, bool]:
    """Without a report: the time from each loss to the end of what was sent next; losses that nothing follows."""
    made = np.array(sorted(answers), np.int64)
    nexts = np.searchsorted(made, losses)
    answered = nexts < len(made)
    ends = [answers[t][1] for t in made[nexts[answered]].tolist()]
    total = sum(end - lost for end, lost in zip(ends, losses[answered].tolist(), strict=True))
    return total, int(np.count_nonzero(~answered)), bool(answered.any())


def _parts(entry: _Entry, answers: _Answers) -> tuple[int, int, int, int, int]:
    """The four parts and the waiting, ns."""
    lost, detected, planning, planned = entry
    if planned == ABSORBED:
        return detected - lost, 0, 0, 0, 0
    moved, settled = answers[planned]
    return detected - lost, planned - detected, moved - planned, settled - moved, planning - detected


def _entries(recoveries: object, losses: set[int], answers: _Answers) -> list[_Entry]:
    """The reported recoveries that were dispatched; ``ValueError`` saying what does not fit."""
    if not isinstance(recoveries, list | tuple):
        raise ValueError("it is no list")  # noqa: TRY004 - said to the reader of the results, not to the caller
    found = []
    for number, said in enumerate(recoveries):
        try:
            if said.get("absorbed", False):
                lost, detected = index(said["lost_ns"]), index(said["detected_ns"])
                if lost > detected:
                    raise ValueError(f"the times of entry {number} do not rise")
                if lost in losses:  # of what was lost when the strategy withdrew it, it may have been done by then
                    found.append((lost, detected, detected, ABSORBED))
                continue
            if said["planned_ns"] is None:
                continue
            lost, detected, planned = (index(said[name]) for name in ("lost_ns", "detected_ns", "planned_ns"))
            planning = index(said.get("planning_ns", detected))
        except (AttributeError, KeyError, TypeError):
            raise ValueError(f"entry {number} lacks lost_ns, detected_ns or planned_ns in whole nanoseconds") from None
        if not lost <= detected <= planning <= planned:
            raise ValueError(f"the times of entry {number} do not rise")
        if lost not in losses:
            raise ValueError(f"no row was lost at the {lost} ns of entry {number}")
        if planned not in answers:
            raise ValueError(f"no dispatch labelled recovery was made at the {planned} ns of entry {number}")
        found.append((lost, detected, planning, planned))
    return found
