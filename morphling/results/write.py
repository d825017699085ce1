"""Writing a run folder: whole, or not at all."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from morphling.errors import InputError, RunError
from morphling.fleet import Fleet
from morphling.interfaces.recording import Recording
from morphling.results.facts import DeviceFacts
from morphling.results.metrics import measure
from morphling.results.store import (
    CHURN_FILE,
    DEVICES_FILE,
    DISPATCHES_FILE,
    EVENTS_FILE,
    HEAT_FILE,
    devices_table,
    write_churn,
    write_dispatches,
    write_events,
    write_heat,
)
from morphling.results.timeline import write_timeline

__all__ = ["check_room", "new_run_folder", "plain", "take_folder", "write_run"]


def new_run_folder(base: Path, name: str, now: datetime | None = None) -> Path:
    """Make ``base/<name>-<UTC yyyymmddThhmmssZ>``, with ``-2``, ``-3``, … behind it if taken; safe among processes.

    Characters of ``name`` that a file name should not hold become ``-``.
    """
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{base}: cannot be made: {error.strerror}") from error
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    stamp = (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    copy = 1
    while True:
        folder = base / (f"{stem}-{stamp}" if copy == 1 else f"{stem}-{stamp}-{copy}")
        try:
            folder.mkdir()
        except FileExistsError:
            copy += 1
        except OSError as error:
            raise RunError(f"{folder}: cannot be made: {error.strerror}") from error
        else:
            return folder


def check_room(folder: Path) -> None:
    """Refuse, before anything is run, a ``folder`` that `write_run` could not fill; leaves nothing behind.

    ``InputError`` if it holds anything, is no folder, or the nearest folder above that exists takes no new entries.
    """
    try:
        if folder.exists() or folder.is_symlink():
            take_folder(folder)
        above = folder.resolve().parent
        while not above.exists():
            above = above.parent
        with tempfile.TemporaryDirectory(prefix=".morphling-", dir=above):
            pass  # asking for permission says less than trying: read-only mounts, /proc, root
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{folder}: {above} is not a folder") from error
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror}") from error


def take_folder(folder: Path) -> Path:
    """Make ``folder`` for a run, or take it if it is there and empty; ``InputError`` if it holds anything."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = next(folder.iterdir(), None)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{folder}: is not a folder") from error
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror}") from error
    if held is not None:
        raise InputError(f"{folder}: is not empty (it holds {held.name}); results are never written over others")
    return folder


def write_run(
    folder: Path,
    recording: Recording,
    fleet: Fleet,
    manifest: Mapping[str, Any],
    scenario_yaml: str,
    *,
    extra: Mapping[str, Any] | None = None,
    draw: Callable[[Path], object] | None = None,
    texts: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write everything about a run into ``folder`` (new or empty) and return its metrics.

    ``manifest`` (``wall_time_s`` in it becomes the metric) and ``extra`` (the reports of the strategy and the
    executor) together make ``manifest.json``.  ``texts`` are further files, name → content.  ``draw`` is called with
    the folder once all else is in it, to add ``figures/``.  All is written into a hidden folder beside it that takes
    its name at the end, so what has the name is complete.  ``InputError`` if ``folder`` holds anything; ``RunError`` if
    the disk refuses, or if ``draw`` fails (all but the figures is then in place).
    """
    made = not folder.exists()
    take_folder(folder)
    if double := sorted(set(manifest) & set(extra or {})):
        raise ValueError(f"both manifest and extra hold {', '.join(double)}")
    try:
        target = folder.resolve()
        shelter = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        partial = shelter / target.name  # so that drawings can call the run by its name
        try:
            partial.mkdir()
            metrics = _fill(partial, recording, fleet, {**manifest, **(extra or {})}, scenario_yaml)
            for name, text in (texts or {}).items():
                (partial / name).write_text(text, encoding="utf-8")
            trouble = _draw(draw, partial)
            # Renaming onto an empty folder replaces it in one step, and fails if somebody filled it meanwhile.
            partial.rename(target)
        finally:
            shutil.rmtree(shelter, ignore_errors=True)
    except BaseException as error:
        if made:  # empty: all that was written is in the shelter
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            raise RunError(f"{folder}: the results cannot be written: {error}") from error
        raise
    if trouble is not None:
        raise RunError(f"{folder}: the results are written, but the figures could not be drawn: {trouble}") from trouble
    return metrics


def _draw(draw: Callable[[Path], object] | None, folder: Path) -> Exception | None:
    """Draw, and return what went wrong: a long run must not be lost because a picture of it failed."""
    try:
        if draw is not None:
            draw(folder)
    except Exception as error:  # noqa: BLE001 - raised again by the caller, once the results are safe
        return error
    return None


def _fill(
    folder: Path, recording: Recording, fleet: Fleet, manifest: Mapping[str, Any], scenario_yaml: str
) -> dict[str, Any]:
    facts = DeviceFacts.of(fleet, recording.end_ns, recording.battery)
    measured = measure(recording, facts, manifest.get("wall_time_s"), manifest.get("strategy"))
    (folder / "scenario.yaml").write_text(scenario_yaml, encoding="utf-8")
    write_events(folder / EVENTS_FILE, recording.dispatches)
    write_dispatches(folder / DISPATCHES_FILE, recording, measured)
    write_churn(folder / CHURN_FILE, recording)
    if recording.heat is not None:
        write_heat(folder / HEAT_FILE, recording.heat)
    pq.write_table(devices_table(facts, measured, recording), folder / DEVICES_FILE, compression="zstd")
    drawn = write_timeline(folder / "timeline.json", recording, facts.names, measured.account.device)
    _write_json(folder / "metrics.json", measured.metrics)
    _write_json(folder / "manifest.json", {**manifest, "timeline": drawn})
    return measured.metrics


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: numpy values as numbers and lists, infinities and NaN as words."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it, and null would read as "not known"
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
