"""An availability on its own, without a scenario: a published fit by name, a behaviour file, a session file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from morphling.errors import InputError, TraceError
from morphling.fleet import Availability
from morphling.fleet.churn import FITS, Spans, laid_out, periodic, renewal
from morphling.scenario.availability_files import Cleaned, behaviour_records, client_records, shifted
from morphling.scenario.data import full_path, is_path, shipped_names, suggestion
from morphling.scenario.files import read_text
from morphling.scenario.sessions import availability_of, parse_sessions, stays_of
from morphling.types import FAR_NS, SECOND_NS

__all__ = ["AvailabilitySource", "availability_source"]

_DRAWN = 1000
_WEEK_NS = 7 * 86_400 * SECOND_NS
_MOST = 10_000_000
_LOOK = 1 << 16
"""Bytes of a file that are looked at to tell what it is."""


@dataclass(frozen=True)
class AvailabilitySource:
    """Where an availability comes from; `load` lays it out.

    kind : ``fit``, ``fedscale`` or ``sessions``
    name : name of the fit, or of the file without its folder
    path : of the file; None for a fit
    """

    kind: str
    name: str
    path: Path | None = None

    def load(
        self,
        devices: int | None = None,
        until_ns: int | None = None,
        seed: int = 0,
        *,
        start_ns: int = 0,
        repair: bool = False,
    ) -> tuple[Availability, list[str]]:
        """The sessions of so many devices, and notes.

        Parameters
        ----------
        devices
            Left out: 1,000 of a fit, all those of a file.  A file gives its first ones.
        until_ns
            How far they are laid out; left out: a week of a fit, the longest period of a behaviour file, all of a
            session file.
        seed
            Of the draws of a fit.
        start_ns
            Files by client: the time in them at which virtual time 0 lies.
        repair
            Files by client: leave out empty sessions and join touching ones, counted in the notes; or refuse them.

        Raises
        ------
        TraceError
            A line or client is wrong; or the file has fewer devices, or none, or numbers them beyond ten million; or
            ``start_ns`` or ``repair`` is given for a fit or a file by device.
        """
        if self.path is None:
            self._plain(start_ns, repair=repair)
            fit, horizon = FITS[self.name], until_ns or _WEEK_NS
            size = _DRAWN if devices is None else devices
            spans = renewal(fit, size, seed, horizon)
            return laid_out(spans, size, self.name, horizon, "error"), [f"source: {line}" for line in fit.sources]
        cleaned = Cleaned(str(self.path), repair)
        if self.kind == "fedscale":
            records = [shifted(r, start_ns) for r in behaviour_records(self.path, cleaned)]
            size = self._size(len(records), devices)
            horizon = until_ns or max(record[2] for record in records[:size])
            spans = periodic(records[:size], horizon)
            return laid_out(spans, size, self.kind, horizon, "error"), cleaned.notes()
        by, rows = parse_sessions(read_text(self.path), str(self.path))
        if by == "device":
            self._plain(start_ns, repair=repair)
            stays = stays_of(rows)
            size = max((stay[0] for stay in stays), default=-1) + 1 if devices is None else devices
            return availability_of(stays, self._size(size, None)), []
        records = [shifted(r, start_ns) for r in client_records(rows, cleaned)]
        size = self._size(len(records), devices)
        device = np.repeat(np.arange(size, dtype=np.int64), [len(record[0]) for record in records[:size]])
        start, end = (np.concatenate([record[column] for record in records[:size]]) for column in (0, 1))
        notes = cleaned.notes()
        if len(start) and (first := int(start.min())) > 0:
            notes.append(f"the first session starts at {first / SECOND_NS:.10g} s; start makes that virtual time 0")
        return laid_out(Spans(device, start, end), size, self.kind, FAR_NS), notes

    def _plain(self, start_ns: int, *, repair: bool) -> None:
        if start_ns or repair:
            raise TraceError(f"{self.name}: start and repair are for FedScale behaviour and sessions by client")

    def _size(self, there: int, wanted: int | None) -> int:
        size = there if wanted is None else wanted
        if not 0 < size <= min(there, _MOST):
            raise TraceError(f"{self.path}: has {there:,} devices; {size:,} cannot be shown")
        return size


def availability_source(reference: str) -> AvailabilitySource | None:
    """What the name of a fit or the path of a file means; None if it is that of a link trace, or of nothing.

    A file is known by how it begins: as a pickle, as JSON, or, after ``#`` comments, with a header of sessions.

    Raises
    ------
    InputError
        The file cannot be read, or the name is nearly that of a fit.
    """
    if reference in FITS:
        return AvailabilitySource("fit", reference)
    if reference in shipped_names("network_traces"):
        return None
    path = full_path(reference)
    if not path.is_file():
        if not is_path(reference) and (hint := suggestion(reference, list(FITS), all_known=False)):
            raise InputError(f"unknown trace or availability '{reference}', {hint}")
        return None
    try:
        with path.open("rb") as file:
            raw = file.read(_LOOK)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    text = raw.decode("utf-8-sig", "replace").lstrip()
    if raw[:1] == b"\x80" or text[:1] in {"{", "["}:
        return AvailabilitySource("fedscale", path.name, path)
    first = next((line for line in text.splitlines() if not line.startswith("#")), "")
    if first.split(",")[0].strip().lower().startswith(("device", "client")):
        return AvailabilitySource("sessions", path.name, path)
    return None
