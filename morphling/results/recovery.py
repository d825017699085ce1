"""How long it took to have lost work done again, and what that time went into.  `docs/metrics.md` defines the parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import index
from typing import Any, TypeAlias

import numpy as np

from morphling.interfaces.recording import DispatchRecord, Recording
from morphling.results.accounting import Account
from morphling.types import SECOND_NS, IntArray

__all__ = ["BESIDE", "PARTS", "WAITING", "recovery"]

PARTS = (
    "recovery_detection_s",
    "recovery_planning_s",
    "recovery_redispatch_s",
    "recovery_setup_s",
    "recovery_recompute_s",
)
"""What ``recovery_time_s`` is the sum of."""
BESIDE = (
    "recovery_moved_bytes",
    "discarded_compute_s",
    "iteration_time_before_loss_s",
    "iteration_time_after_recovery_s",
)
"""What else there is to say of it."""
WAITING = "recovery_waiting_s"
"""The share of planning in which no plan was being made."""

ABSORBED = -1
"""Instead of the time of a plan: nothing had to be done again."""

_Answers: TypeAlias = dict[int, tuple[int, int]]
"""Recovery dispatches by the instant at which they were made: when their inputs had arrived, when they were settled."""


@dataclass(frozen=True)
class _Entry:
    """A reported recovery that was dispatched; ns.  ``moved`` and what follows only where the strategy says it."""

    lost: int
    detected: int
    planning: int
    planned: int
    moved: int | None
    ready: int | None
    replayed: int | None
    further: tuple[int, ...]
    abandoned: tuple[int, ...]
    moved_bytes: int

    def parts(self, answers: _Answers) -> tuple[int, int, int, int, int, int]:
        """The five parts and the waiting, ns."""
        if self.planned == ABSORBED:
            return self.detected - self.lost, 0, 0, 0, 0, 0
        moved, settled = answers[self.planned]
        ready = moved
        if self.moved is not None and self.ready is not None and self.replayed is not None:
            moved, ready, settled = self.moved, self.ready, self.replayed
        return (
            self.detected - self.lost,
            self.planned - self.detected,
            moved - self.planned,
            ready - moved,
            settled - ready,
            self.planning - self.detected,
        )

    def end(self, answers: _Answers) -> int:
        """When what was lost was done again, or (if it was absorbed) was known to be lost, ns."""
        if self.planned == ABSORBED:
            return self.detected
        return answers[self.planned][1] if self.replayed is None else self.replayed


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
        spent = np.array([e.parts(answers) for e in entries], np.int64).reshape(-1, 6).sum(axis=0).tolist()
        total, any_answered = sum(spent[:5]), bool(entries)
        unrecovered = len(set(losses.tolist()) - {t for e in entries for t in (e.lost, *e.further)})
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
        **_beside(recording, sums, losses, entries or [], answers, why),
    }


def _beside(
    recording: Recording,
    sums: Account,
    losses: IntArray,
    entries: list[_Entry],
    answers: _Answers,
    why: dict[str, str],
) -> dict[str, Any]:
    """What was thrown away, what moved, and how fast iterations were before and after."""
    abandoned = {serial for e in entries for serial in e.abandoned}
    thrown = 0
    for number, dispatch in enumerate(recording.dispatches):
        if dispatch.serial in abandoned:
            thrown += int(sums.dispatch["compute_ns"][number])
        elif dispatch.lost.any():
            begun = dispatch.lost & (dispatch.column("compute_start_ns") >= 0)
            start, settled = dispatch.column("compute_start_ns")[begun], dispatch.column("settled_ns")[begun]
            thrown += int(np.minimum(dispatch.column("compute_ns")[begun], settled - start).sum())
    ends = recording.iteration_ends_ns
    spans = list(zip([0, *ends], ends, strict=False))
    first = min((e.lost for e in entries), default=None)
    last = max((e.end(answers) for e in entries), default=None)
    before = [b - a for a, b in spans if first is not None and b <= first]
    after = [b - a for a, b in spans if last is not None and a >= last]
    out = {
        "recovery_moved_bytes": sum(e.moved_bytes for e in entries) if entries else None,
        "discarded_compute_s": thrown / SECOND_NS,
        "iteration_time_before_loss_s": sum(before) / len(before) / SECOND_NS if before else None,
        "iteration_time_after_recovery_s": sum(after) / len(after) / SECOND_NS if after else None,
    }
    if not entries:
        nothing = "no row was lost" if len(losses) == 0 else "the strategy reports no recovery that was dispatched"
        why |= dict.fromkeys((name for name, value in out.items() if value is None), nothing)
    else:
        for name, when in (("iteration_time_before_loss_s", "before"), ("iteration_time_after_recovery_s", "after")):
            if out[name] is None:
                why[name] = f"no iteration lies wholly {when} it"
    return out


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


def _entries(recoveries: object, losses: set[int], answers: _Answers) -> list[_Entry]:
    """The reported recoveries that were dispatched; ``ValueError`` saying what does not fit."""
    if not isinstance(recoveries, list | tuple):
        raise ValueError("it is no list")  # noqa: TRY004 - said to the reader of the results, not to the caller
    found = []
    for number, said in enumerate(recoveries):
        try:
            if said.get("absorbed", False):
                entry = _absorbed(said)
                if entry.detected < entry.lost:
                    raise ValueError(f"the times of entry {number} do not rise")
                if losses & {entry.lost, *entry.further}:  # what a strategy withdrew may have been done at that instant
                    found.append(entry)
                continue
            if said["planned_ns"] is None or said.get("replayed_ns", 0) is None:
                continue  # the run ended first
            entry = _entry(said)
        except (AttributeError, KeyError, TypeError):
            raise ValueError(f"entry {number} lacks lost_ns, detected_ns or planned_ns in whole nanoseconds") from None
        times = (entry.lost, entry.detected, entry.planning, entry.planned, entry.moved, entry.ready, entry.replayed)
        listed = [t for t in times if t is not None]
        if any(b < a for a, b in pairwise(listed)):
            raise ValueError(f"the times of entry {number} do not rise")
        if said.get("rows", 1) and not losses & {entry.lost, *entry.further}:
            raise ValueError(f"no row was lost at the {entry.lost} ns of entry {number}")
        if entry.planned not in answers:
            raise ValueError(f"no dispatch labelled recovery was made at the {entry.planned} ns of entry {number}")
        found.append(entry)
    return found


def _entry(said: Mapping[str, Any]) -> _Entry:
    lost, detected, planned = (index(said[name]) for name in ("lost_ns", "detected_ns", "planned_ns"))
    rest = (said.get(name) for name in ("moved_ns", "ready_ns", "replayed_ns"))
    moved, ready, replayed = (None if x is None else index(x) for x in rest)
    return _Entry(
        lost=lost,
        detected=detected,
        planning=index(said.get("planning_ns", detected)),
        planned=planned,
        moved=moved,
        ready=ready,
        replayed=replayed,
        further=tuple(index(x) for x in said.get("further_ns", ())),
        abandoned=tuple(index(x) for x in said.get("abandoned", ())),
        moved_bytes=index(said.get("moved_bytes", 0)),
    )


def _absorbed(said: Mapping[str, Any]) -> _Entry:
    """A loss without which work went on."""
    lost, detected = (index(said[name]) for name in ("lost_ns", "detected_ns"))
    further = tuple(index(x) for x in said.get("further_ns", ()))
    return _Entry(lost, detected, detected, ABSORBED, None, None, None, further, (), 0)
