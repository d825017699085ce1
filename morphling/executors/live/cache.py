"""Measurements kept on disk: each distinct product is measured once on a host, and later runs repeat its time.

One JSON file for each fingerprint of a host.  A file is replaced as a whole, under a lock, and what another run has
written meanwhile is kept.  A file that cannot be read is put aside, never half believed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from morphling.executors.live.partition import Timing

__all__ = ["TimingCache", "cache_folder"]

FORMAT: Final = 1
"""Another way of measuring, or of writing it down, has another number."""


def cache_folder() -> Path:
    """``MORPHLING_CACHE_DIR``, else ``morphling`` in the user's folder of caches."""
    named = os.environ.get("MORPHLING_CACHE_DIR")
    if named:
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path("~/Library/Caches/morphling").expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path("~/.cache").expanduser()) / "morphling"


class TimingCache:
    """Seconds by key, for one fingerprint.  ``folder`` None: kept for this run alone.

    notes : what was wrong with the file, for the run's notes
    """

    def __init__(self, fingerprint: Mapping[str, str], folder: Path | None) -> None:
        self.fingerprint = dict(fingerprint)
        self.notes: list[str] = []
        text = json.dumps([FORMAT, sorted(self.fingerprint.items())])
        name = f"live-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        self.path = None if folder is None else folder / name
        self.timings: dict[str, Timing] = self._read()
        self.kept = len(self.timings)
        self.new: dict[str, Timing] = {}

    def get(self, key: str) -> Timing | None:
        """The measurement, None if there is none yet."""
        return self.timings.get(key)

    def put(self, key: str, timing: Timing) -> None:
        """Remember; `save` writes it."""
        self.timings[key] = self.new[key] = timing

    def save(self) -> None:
        """Write what is new.  What another run wrote under the same key first stays; ours is used in this run."""
        if self.path is None or not self.new:
            return
        with self._locked() as may:
            if may:
                self._write({**self.new, **self._read()})
        self.new = {}

    def drop(self, why: str) -> None:
        """All measurements are stale: the file is put aside as ``….stale.json``, and products are measured anew."""
        self.notes.append(why)
        self.timings, self.new, self.kept = {}, {}, 0
        if self.path is None:
            return
        with self._locked() as may:
            if may and self.path.is_file():
                self.path.replace(self.path.with_suffix(".stale.json"))

    # ----------------------------------------------------------------------------------------------------------- files

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """One program at a time; False (and a note) where the folder cannot be written."""
        assert self.path is not None  # noqa: S101 - callers ask
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = self.path.with_suffix(".lock").open("w")
        except OSError as error:
            self._say(f"measurements are not kept for later runs: {error.strerror}: {error.filename}")
            yield False
            return
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield True

    def _write(self, timings: Mapping[str, Timing]) -> None:
        assert self.path is not None  # noqa: S101 - callers ask
        measured = {key: [t.seconds, t.calls, t.spread, int(t.calm)] for key, t in sorted(timings.items())}
        body = {"format": FORMAT, "fingerprint": self.fingerprint, "sha256": _digest(measured), "measured": measured}
        temporary = None
        try:
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, prefix=self.path.stem, suffix=".part", delete=False, encoding="utf-8"
            ) as out:
                temporary = Path(out.name)
                json.dump(body, out, indent=0)
            temporary.replace(self.path)
        except OSError as error:
            if temporary is not None:
                temporary.unlink(missing_ok=True)
            self._say(f"measurements are not kept for later runs: {error.strerror}: {error.filename}")

    def _read(self) -> dict[str, Timing]:
        if self.path is None:
            return {}
        try:
            return _parsed(self.path.read_text(encoding="utf-8"), self.fingerprint)
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._say(f"earlier measurements cannot be read ({error.strerror}: {error.filename}): measured anew")
        except ValueError as error:
            self._say(f"earlier measurements in {self.path.name} are broken ({error}): put aside, measured anew")
            try:
                self.path.replace(self.path.with_suffix(".broken.json"))
            except OSError as failed:
                self._say(f"{self.path.name} cannot be put aside: {failed.strerror}")
        return {}

    def _say(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _parsed(text: str, fingerprint: Mapping[str, str]) -> dict[str, Timing]:
    """``ValueError`` for anything but what `TimingCache` wrote whole."""
    body: Any = json.loads(text)
    if not isinstance(body, dict) or body.get("format") != FORMAT or not isinstance(body.get("measured"), dict):
        raise ValueError(f"not of format {FORMAT}")
    if body.get("fingerprint") != dict(fingerprint):
        raise ValueError("of another host")
    measured = body["measured"]
    if body.get("sha256") != _digest(measured):
        raise ValueError("its digest does not fit")
    out = {}
    for key, values in measured.items():
        try:
            seconds, calls, spread = float(values[0]), int(values[1]), float(values[2])
        except (TypeError, LookupError, ValueError):
            raise ValueError(f"{key}: no seconds, calls and spread") from None
        if not (math.isfinite(seconds) and seconds > 0 and calls > 0 and math.isfinite(spread)):
            raise ValueError(f"{key}: {seconds!r} s in {calls} calls")
        out[key] = Timing(seconds, calls, spread, calm=len(values) > 3 and values[3] == 1)
    return out


def _digest(measured: Any) -> str:
    return hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()
