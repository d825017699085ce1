"""`Results`: what a run folder says, for scripts, notebooks and the command line."""

from __future__ import annotations

import hashlib
import html
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from morphling.errors import InputError
from morphling.interfaces.events import EVENT_COLUMNS
from morphling.interfaces.recording import Recording, dispatch_bytes, static_sha256
from morphling.results.heat import CURVE_COLUMNS, HEAT_METRICS
from morphling.results.human import METRIC_UNITS, human, seconds_text
from morphling.results.metrics import metrics as measure_metrics
from morphling.results.recovery import BESIDE, PARTS, WAITING
from morphling.results.store import (
    DEVICES_FILE,
    DISPATCHES_FILE,
    EVENTS_FILE,
    HEAT_FILE,
    read_facts,
    read_recording,
    read_table,
    stream_dispatches,
)

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

__all__ = ["Results"]

_BOUNDS = {"coordinator": "coordinator's link"}


@dataclass(frozen=True, eq=False)
class Results:
    """A run folder.  Frames are read when asked for, so that opening is cheap however long the run was.

    folder : the run folder
    metrics : as `docs/metrics.md` defines them
    manifest : versions, seed, input hashes, executor, strategy report
    """

    folder: Path
    metrics: dict[str, Any]
    manifest: dict[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> Results:
        """Open a run folder; ``InputError`` naming the file that is missing or damaged."""
        folder = Path(path)
        if not folder.is_dir():
            raise InputError(f"{folder}: no such run folder")
        return cls(folder, _read_json(folder / "metrics.json"), _read_json(folder / "manifest.json"))

    @cached_property
    def scenario_yaml(self) -> str:
        """The resolved scenario, as text."""
        path = self.folder / "scenario.yaml"
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read: {error}") from error

    def events(self, columns: list[str] | None = None) -> pd.DataFrame:
        """The events table, one row per settled row of a dispatch, sorted by (dispatch, row).

        ``columns`` picks some of `morphling.interfaces.events.EVENT_COLUMNS`; times are int64 ns, sizes int64 bytes.
        """
        if unknown := sorted(set(columns or ()) - set(EVENT_COLUMNS)):
            raise InputError(f"no such event columns: {', '.join(unknown)}; there are {', '.join(EVENT_COLUMNS)}")
        return self._frame(EVENTS_FILE, columns)

    def dispatches(self) -> pd.DataFrame:
        """One row per dispatch: number, when it was made and settled, label, and its sums (ns, bytes, rows)."""
        return self._frame(DISPATCHES_FILE)

    def devices(self) -> pd.DataFrame:
        """One row per device of the fleet, in fleet order: who it is, and what it did."""
        return self._frame(DEVICES_FILE)

    def heat(self) -> pd.DataFrame:
        """Clock (share of the full one), case and junction (degC) of a few devices over time (s), by device and time.

        Columns ``device, time_s, clock, case_c, junction_c``; no rows if no device warms.
        """
        if self.metrics.get("hottest_case_c") is None:
            import pandas as pd  # noqa: PLC0415 - as `_frame`, only for who asks

            return pd.DataFrame({name: np.zeros(0, np.int32 if name == "device" else float) for name in CURVE_COLUMNS})
        return self._frame(HEAT_FILE)

    def _frame(self, name: str, columns: list[str] | None = None) -> pd.DataFrame:
        frame: pd.DataFrame = read_table(self.folder, name, columns).to_pandas()
        return frame

    def recording(self) -> Recording:
        """The whole run back in memory, as the engine handed it over."""
        return read_recording(self.folder)

    def recompute(self) -> dict[str, Any]:
        """All metrics again, from the tables of the folder; equal to ``metrics`` in every value."""
        wall, report = self.metrics.get("wall_time_s"), self.manifest.get("strategy")
        return measure_metrics(self.recording(), read_facts(self.folder), wall, report)

    def verify(self) -> bool:
        """Whether the events table still has the fingerprint in ``metrics`` (reads all of it, a part at a time)."""
        sha = hashlib.sha256()
        for dispatch in stream_dispatches(self.folder):
            for piece in dispatch_bytes(dispatch, static_sha256(dispatch.tasks)):
                sha.update(piece)
        return sha.hexdigest() == self.metrics.get("events_sha256")

    def summary(self) -> list[tuple[str, Any, str]]:
        """(metric, value, unit) of every metric that is one value, in the order of the table."""
        return [(name, self.metrics[name], unit) for name, unit in METRIC_UNITS.items() if name in self.metrics]

    def table(self) -> Table:
        """The summary as a `rich` table with units that people read.

        Left out is what repeats another line or says that nothing happened: the extremes of a single iteration, losses
        and recovery where no row was lost, heat where no device warms, pauses where there was none, batteries where no
        device has one, the coordinator's memory where its rows do not tell.
        """
        from rich.table import Table  # noqa: PLC0415 - scripts that print nothing need no rich

        quiet = {"iteration_time_min_s", "iteration_time_max_s"} if self.metrics.get("iterations") == 1 else set()
        if self.metrics.get("lost_rows") == 0:
            quiet |= {"loss_instants", "unrecovered_losses", "recovery_time_s", *PARTS, WAITING, *BESIDE}
        else:
            quiet |= {
                name for name in (WAITING, "recovery_setup_s", "recovery_moved_bytes") if not self.metrics.get(name)
            }
        if self.metrics.get("hottest_case_c") is None:
            quiet.update(HEAT_METRICS)
        elif not self.metrics.get("throttled_devices"):
            quiet.add("throttled_s")
        if not self.metrics.get("pauses"):
            quiet |= {"paused_s", "pauses", "first_pause_s"}
        if self.metrics.get("battery_departures") is None:
            quiet |= {"battery_departures", "lowest_battery_share"}
        if not self.metrics.get("coordinator_peak_memory_bytes"):
            quiet.add("coordinator_peak_memory_bytes")
        table = Table(title=self.folder.name, title_justify="left", caption_justify="left")
        table.add_column("metric")
        table.add_column("value", justify="right", no_wrap=True)
        for name, value, _ in self.summary():
            if name in quiet:
                continue
            shown = human(name, value)
            table.add_row(name, shown[:16] + "…" if name == "events_sha256" else shown)
        unknown: dict[str, list[str]] = {}
        for name, why in self.metrics.get("not_available", {}).items():
            if name not in quiet:
                unknown.setdefault(why, []).append(name)
        if unknown:
            table.caption = " ".join(f"{', '.join(names)}: {why}." for why, names in unknown.items())
        return table

    def notes(self) -> list[str]:
        """Lines to read beside the table: the plan and its bounds, who was left out and why, what was assumed."""
        said = self.manifest.get("strategy", {})
        lines = []
        if "estimate_s" in said:
            lower = {_BOUNDS.get(k, k): v for k, v in said.get("lower_bounds", {}).items()}
            bounds = ", ".join(f"{k} {seconds_text(v)}" for k, v in lower.items() if v > 0)
            whole = "estimate_of" not in said
            words = [f"plan: estimated {seconds_text(said['estimate_s'])} {said.get('estimate_of', 'an iteration')}"]
            if whole and (ratio := self._beyond_estimate(said["estimate_s"])):
                words.append(f"iterations took {ratio:.2f} times that")
            if bounds:
                words.append(f"at the rates it reckoned with no plan beats {bounds}")
            if "load_imbalance" in said:
                words.append(f"the slowest device takes {said['load_imbalance']:.1%} more than the mean")
            lines.append("; ".join(words))
        lines += said.get("summary", [])
        left = ", ".join(f"{n} {why}" for why, n in said.get("devices_left_out", {}).items() if n)
        if left:
            lines.append(f"left out: {left}")
        lines += [f"assumed: {text}" for text in said.get("assumptions", [])]
        if count := self.metrics.get("pauses"):
            paused, first = (seconds_text(self.metrics[name]) for name in ("paused_s", "first_pause_s"))
            spans = "1 interval (at" if count == 1 else f"{count:,} intervals (first at"
            lines.append(f"paused: nobody was online for {paused} in {spans} {first})")
        return lines + [f"note: {text}" for text in self.manifest.get("notes", [])]

    def _beyond_estimate(self, estimate_s: float) -> float | None:
        """Mean iteration over the estimate, where they differ by a tenth or more."""
        took = self.metrics.get("iteration_time_s")
        if not took or not estimate_s or abs(took / estimate_s - 1) < 0.1:
            return None
        return float(took / estimate_s)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td style='text-align:right'>{html.escape(human(name, value))}</td></tr>"
            for name, value, _ in self.summary()
        )
        return f"<table><caption>{html.escape(self.folder.name)}</caption>{rows}</table>"

    def __repr__(self) -> str:
        return f"Results({str(self.folder)!r}, makespan {human('makespan_s', self.metrics.get('makespan_s'))})"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; is {path.parent} a run folder?") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds no JSON object")
    return value
