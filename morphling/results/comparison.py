"""`Comparison`: strategies side by side over the same seeds, from the folder that holds their runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from morphling.errors import InputError, RunError
from morphling.results.interval import half_width, ratio_half_width
from morphling.results.run_values import VALUES, run_values
from morphling.results.write import plain

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

__all__ = ["Comparison", "StrategySummary", "run_record", "write_comparison"]

COMPARISON_VERSION = 1
RECORD_FILE, FRAME_FILE = "comparison.json", "comparison.csv"

MEANS = (
    "iteration_time_s", "makespan_s", "bytes_down_per_device", "bytes_up_per_device", "device_utilization", "energy_j",
    "devices", "devices_used", "lost_rows", "unrecovered_losses", "recovery_time_s",
)  # fmt: skip
COLUMNS = (
    "strategy", "state", "reason", "seeds", "iteration_time_s", "iteration_time_ci95_s", "ratio", "ratio_ci95",
    "makespan_s", "bytes_down_per_device", "bytes_up_per_device", "peak_memory_bytes", "peak_memory_share", "fits",
    "device_utilization", "energy_j", "devices", "devices_used", "lost_rows", "unrecovered_losses", "recovery_time_s",
)  # fmt: skip
"""Columns of `Comparison.summary`; an interval is half its width."""


@dataclass(frozen=True)
class StrategySummary:
    """One strategy over all seeds.

    state : ``done``, ``infeasible`` or ``failed``, each with ``reason`` where it is not ``done``
    values : `COLUMNS` without the first three; None where there is no value
    why : the reason, by name
    remarks : what else a reader of a value should know, by name
    times : seconds an iteration of each seed, None if there is no time
    """

    label: str
    state: str
    reason: str | None
    values: Mapping[str, Any]
    why: Mapping[str, str]
    remarks: Mapping[str, str]
    times: Sequence[float] | None = None


@dataclass(frozen=True, eq=False)
class Comparison:
    """A folder of runs, one for each strategy and seed, and what they say side by side.

    folder : holds the run folders, ``comparison.json``, ``comparison.csv`` and ``figures/``
    record : the content of ``comparison.json``
    """

    folder: Path
    record: Mapping[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> Comparison:
        """Open the folder of a comparison; ``InputError`` if there is none or it was not finished."""
        folder = Path(path)
        file = folder / RECORD_FILE
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise InputError(f"{file}: no such file; is {folder} a comparison that was finished?") from error
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: cannot be read as JSON: {error}") from error
        if not isinstance(record, dict) or record.get("comparison_version") != COMPARISON_VERSION:
            raise InputError(f"{file}: is not a comparison of version {COMPARISON_VERSION}")
        return cls(folder, record)

    @property
    def seeds(self) -> list[int]:
        """The seeds, the same for all strategies."""
        return list(self.record["seeds"])

    @property
    def labels(self) -> list[str]:
        """The strategies' labels, in order."""
        return [entry["label"] for entry in self.record["strategies"]]

    @property
    def figure_path(self) -> Path:
        """Where the figure is, if it was drawn."""
        return self.folder / "figures" / "comparison.png"

    @cached_property
    def rows(self) -> list[StrategySummary]:
        """The strategies over all seeds, in order."""
        rows: list[StrategySummary] = []
        for label in self.labels:
            runs = [run for run in self.record["runs"] if run["strategy"] == label]
            rows.append(_summary(label, runs, rows[0] if rows else None, self.record["iterations"]))
        return rows

    def frame(self) -> pd.DataFrame:
        """One row per strategy and seed: ``strategy, seed, state, reason``, `VALUES`, and the run's ``folder``."""
        import pandas as pd  # noqa: PLC0415 - only for who asks

        rows = [
            {
                **{name: run[name] for name in ("strategy", "seed", "state", "reason")},
                **(run["values"] or dict.fromkeys(VALUES)),
                "folder": run["folder"],
            }
            for run in self.record["runs"]
        ]
        return pd.DataFrame(rows)

    def summary(self) -> pd.DataFrame:
        """One row per strategy, columns `COLUMNS`."""
        import pandas as pd  # noqa: PLC0415 - only for who asks

        return pd.DataFrame(self.summaries(), columns=list(COLUMNS))

    def summaries(self) -> list[dict[str, Any]]:
        """`summary` as plain values."""
        return [{"strategy": r.label, "state": r.state, "reason": r.reason, **r.values} for r in self.rows]

    def table(self, width: int | None = None) -> Table:
        """The strategies as a `rich` table, with the reasons of what is missing below it."""
        from morphling.results.comparison_table import comparison_table  # noqa: PLC0415 - needs rich

        return comparison_table(self, width)

    def notes(self) -> list[str]:
        """The reasons that the table's raised numbers stand for, in order, each with its number."""
        from morphling.results.comparison_table import table_notes  # noqa: PLC0415 - needs rich

        return table_notes(self)

    def _repr_html_(self) -> str:
        from morphling.results.comparison_table import comparison_html  # noqa: PLC0415 - needs rich

        return comparison_html(self)

    def __repr__(self) -> str:
        return f"Comparison({str(self.folder)!r}, {len(self.labels)} strategies, {len(self.seeds)} seeds)"


# ---------------------------------------------------------------------------------------------------- over the seeds


def _summary(label: str, runs: Sequence[Any], first: StrategySummary | None, iterations: int) -> StrategySummary:
    names = COLUMNS[3:]
    for state in ("failed", "infeasible"):
        bad = [run for run in runs if run["state"] == state]
        if bad:
            reason = _of_seeds(len(bad), len(runs), bad[0]["reason"])
            empty: dict[str, Any] = {**dict.fromkeys(names), "seeds": len(runs)}
            return StrategySummary(label, state, reason, empty, dict.fromkeys(names[1:], reason), {})
    why: dict[str, str] = {}
    values: dict[str, Any] = dict.fromkeys(names)
    values["seeds"] = len(runs)
    for name in MEANS:
        column = _column(runs, name, why)
        values[name] = None if column is None else _mean(column)
    times = _column(runs, "iteration_time_s", why)
    values["iteration_time_ci95_s"] = None if times is None else half_width(times)
    _memory(runs, values, why)
    _ratio(times, first, values, why)
    if values["lost_rows"] == 0:
        why.pop("recovery_time_s", None)  # nothing to recover from
    return StrategySummary(label, "done", None, values, why, _remarks(runs, iterations), times)


def _of_seeds(count: int, all_of: int, reason: str) -> str:
    return reason if count == all_of else f"{count} of {all_of} seeds: {reason}"


def _mean(column: Sequence[float]) -> float | int:
    """The mean; whole where it is a whole number of whole numbers, so that a single run keeps its value."""
    if all(isinstance(x, int) for x in column) and sum(column) % len(column) == 0:
        return sum(column) // len(column)
    return math.fsum(column) / len(column)


def _column(runs: Sequence[Any], name: str, why: dict[str, str]) -> list[Any] | None:
    """The value of each seed; None, and why, if any seed lacks it: a mean over some of them would compare unlikes."""
    column = [run["values"][name] for run in runs]
    lacking = [run for run in runs if run["values"][name] is None]
    if name == "recovery_time_s":  # a seed in which nothing was lost has nothing to recover from
        lacking = [run for run in lacking if run["values"]["lost_rows"]]
        column = [0.0 if x is None else x for x in column]
    if lacking:
        why[name] = _of_seeds(len(lacking), len(runs), lacking[0]["not_available"].get(name, "not known"))
        return None
    return column


def _memory(runs: Sequence[Any], values: dict[str, Any], why: dict[str, str]) -> None:
    """Of the seed in which the share is the largest."""
    names = ("peak_memory_bytes", "peak_memory_share", "fits")
    shares = [_column(runs, name, why) for name in names]
    if shares[1] is not None:
        tightest = max(runs, key=lambda run: run["values"]["peak_memory_share"])["values"]
        values.update({name: tightest[name] for name in names[:2]}, fits=all(run["values"]["fits"] for run in runs))


def _ratio(
    times: Sequence[float] | None, first: StrategySummary | None, values: dict[str, Any], why: dict[str, str]
) -> None:
    """Mean time over the first strategy's mean time."""
    base = times if first is None else first.times
    if times is None:
        why["ratio"] = why["iteration_time_s"]
    elif base is None:
        why["ratio"] = "the first has no time"
    elif sum(base) == 0:
        why["ratio"] = "the first takes no time"
    else:
        values["ratio"] = 1.0 if first is None else math.fsum(times) / math.fsum(base)
        values["ratio_ci95"] = None if first is None else ratio_half_width(times, base)


def _remarks(runs: Sequence[Any], iterations: int) -> dict[str, str]:
    """What a reader should know of values that are there."""
    remarks = {}
    ends = [run["values"]["iterations"] or 0 for run in runs]
    short = sorted({count for count in ends if count < iterations})
    if short:
        ended = f"{short[0]}" if short[0] == short[-1] else f"{short[0]} to {short[-1]}"
        remarks["iteration_time_s"] = f"{ended} of {iterations} iterations ended; bytes, energy and losses are of those"
    if unmade := sum(run["values"]["unrecovered_losses"] or 0 for run in runs):
        remarks["recovery_time_s"] = f"{unmade} {'loss was' if unmade == 1 else 'losses were'} never made up for"
    radio = sorted({text for run in runs for text in run["remarks"].values()})
    if radio:
        remarks["energy_j"] = radio[0]
    return remarks


# ------------------------------------------------------------------------------------------------------------ writing


def run_record(
    strategy: str, seed: int, folder: Path | None, state: str, reason: str | None, traceback: str | None = None
) -> dict[str, Any]:
    """What ``comparison.json`` keeps of a run; values are read from its folder, which lies in the comparison's."""
    values: dict[str, Any] | None = None
    why: dict[str, str] = {}
    remarks: dict[str, str] = {}
    if folder is not None:
        values, why, remarks = run_values(folder)
    return {
        "strategy": strategy,
        "seed": seed,
        "state": state,
        "reason": reason,
        **({"traceback": traceback} if traceback else {}),
        "folder": None if folder is None else folder.name,
        "values": values,
        "not_available": why,
        "remarks": remarks,
    }


def write_comparison(
    folder: Path,
    facts: Mapping[str, Any],
    strategies: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    draw: Callable[[Comparison], object] | None = None,
) -> Comparison:
    """Write what compares the runs of ``folder`` beside them, and return it.

    ``facts`` : ``name``, ``seeds``, ``iterations`` and whatever else is to be kept; ``strategies`` : ``label`` and
    configuration of each; ``runs`` : as `run_record` makes them, strategy by strategy, seed by seed.  ``RunError`` if
    the disk refuses, or if ``draw`` fails (all but the figure is then in place).
    """
    record = {"comparison_version": COMPARISON_VERSION, **facts, "strategies": list(strategies), "runs": list(runs)}
    text = json.dumps(plain(record), indent=2, ensure_ascii=False, allow_nan=False)
    comparison = Comparison(folder, json.loads(text))
    try:
        comparison.frame().to_csv(folder / FRAME_FILE, index=False)
        (folder / RECORD_FILE).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise RunError(f"{folder}: the comparison cannot be written: {error}; its run folders are there") from error
    try:
        if draw is not None:
            draw(comparison)
    except Exception as error:
        raise RunError(f"{folder}: the comparison is written, but the figure could not be drawn: {error}") from error
    return comparison
