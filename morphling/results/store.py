"""The tables of a run folder: what each column is, and how it gets in and out of Parquet.

Only the translation between a `Recording` and its files belongs here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from morphling.errors import InputError
from morphling.interfaces.events import TASK_COLUMNS, TIME_COLUMNS
from morphling.interfaces.recording import TASK_DTYPES, DispatchRecord, HeatRecord, Recording, static_sha256
from morphling.results.accounting import blocks, gather
from morphling.results.battery import BATTERY_COLUMNS, battery_columns, battery_record
from morphling.results.facts import DeviceFacts
from morphling.results.heat import CURVE_COLUMNS, heat_columns
from morphling.results.metrics import Measured
from morphling.types import FloatArray, Int32Array, IntArray

__all__ = [
    "DISPATCHES_FILE",
    "EVENTS_FILE",
    "HEAT_FILE",
    "StaticColumns",
    "devices_table",
    "read_facts",
    "read_recording",
    "read_table",
    "stream_dispatches",
    "write_churn",
    "write_dispatches",
    "write_events",
    "write_heat",
]

EVENTS_FILE, DISPATCHES_FILE, DEVICES_FILE, CHURN_FILE, HEAT_FILE = (
    "events.parquet",
    "dispatches.parquet",
    "devices.parquet",
    "churn.parquet",
    "heat.parquet",
)
GROUP_ROWS = 1 << 20

_LABEL = pa.dictionary(pa.int32(), pa.string())
EVENTS_SCHEMA = pa.schema(
    [
        ("dispatch", pa.int64()),
        ("row", pa.int32()),
        ("label", _LABEL),
        *((name, pa.from_numpy_dtype(np.dtype(TASK_DTYPES[name]))) for name in TASK_COLUMNS),
        *((name, pa.int64()) for name in TIME_COLUMNS),
        ("lost", pa.uint8()),
    ]
)


@dataclass(frozen=True, eq=False)
class StaticColumns:
    """The recorded columns of a task table, as they come back from a run folder."""

    kind: NDArray[np.int8]
    device: Int32Array
    peer: Int32Array
    m: IntArray
    n: IntArray
    k: IntArray
    dtype: NDArray[np.int8]
    flops: FloatArray
    bytes_in: IntArray
    bytes_out: IntArray
    resident_bytes: IntArray

    def __len__(self) -> int:
        return len(self.device)


def arrow(values: NDArray[Any] | Sequence[str]) -> Any:
    """An Arrow array over a numpy column or strings, from buffers: `pyarrow.array` would import pandas (0.2 s)."""
    if not isinstance(values, np.ndarray):
        texts = [text.encode() for text in values]
        offsets = np.zeros(len(texts) + 1, np.int32)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
        return pa.Array.from_buffers(pa.string(), len(texts), buffers)
    if values.dtype == np.bool_:
        packed = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(packed)])
    plain = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(plain.dtype), len(plain), [None, pa.py_buffer(plain)])


def labelled(labels: Sequence[str]) -> Any:
    """Few labels many times over, as a dictionary array (``dictionary_encode`` would import `pyarrow.compute`)."""
    known: dict[str, int] = {}
    codes = np.array([known.setdefault(label, len(known)) for label in labels], np.int32)
    return pa.DictionaryArray.from_arrays(arrow(codes), arrow(list(known)))


def table_of(columns: Mapping[str, Any]) -> Any:
    """An Arrow table of numpy, text and Arrow columns."""
    made = [c if isinstance(c, pa.Array) else arrow(c) for c in columns.values()]
    return pa.Table.from_arrays(made, names=list(columns))


def write_events(path: Path, dispatches: Sequence[DispatchRecord]) -> None:
    """Write the events table, a row group per 65,536 to 1,048,576 rows, never holding more than one of them twice."""
    writer = pq.ParquetWriter(
        path,
        EVENTS_SCHEMA,
        compression="zstd",
        compression_level=1,
        # Times hardly repeat but rise slowly; everything else is a few values many times over.
        use_dictionary=["dispatch", "label", *TASK_COLUMNS],
        column_encoding=dict.fromkeys(["row", *TIME_COLUMNS], "DELTA_BINARY_PACKED"),
    )
    with writer:
        for block in blocks(dispatches):
            writer.write_table(_events_block(block), row_group_size=GROUP_ROWS)


def _events_block(block: Sequence[DispatchRecord]) -> Any:
    lengths = [len(d) for d in block]
    labels: dict[str, int] = {}
    codes = np.array([labels.setdefault(d.label, len(labels)) for d in block], np.int32)
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns: list[Any] = [
        arrow(np.repeat(np.array([d.serial for d in block], np.int64), lengths)),
        arrow((np.arange(len(first)) - first).astype(np.int32)),
        pa.DictionaryArray.from_arrays(arrow(np.repeat(codes, lengths)), arrow(list(labels))),
        *(arrow(gather(block, name)) for name in (*TASK_COLUMNS, *TIME_COLUMNS)),
        arrow(gather(block, "lost").astype(np.uint8)),
    ]
    return pa.Table.from_arrays(columns, schema=EVENTS_SCHEMA)


def write_dispatches(path: Path, recording: Recording, measured: Measured) -> None:
    """Write one row per dispatch; the times at which the run and its iterations ended go into the file's metadata."""
    made = recording.dispatches
    columns: dict[str, Any] = {
        "dispatch": np.array([d.serial for d in made], np.int64),
        "time_ns": np.array([d.time_ns for d in made], np.int64),
        "settled_ns": np.array([d.settled_ns for d in made], np.int64),
        "label": labelled([d.label for d in made]),
        **measured.account.dispatch,
    }
    run = {
        "end_ns": recording.end_ns,
        "iteration_ends_ns": [int(x) for x in recording.iteration_ends_ns],
        "events_sha256": recording.events_sha256,
        "heat_watched": None if recording.heat is None else [int(x) for x in recording.heat.watched],
    }
    table = table_of(columns).replace_schema_metadata({"morphling": json.dumps(run)})
    pq.write_table(table, path, compression="zstd")


def write_churn(path: Path, recording: Recording) -> None:
    """Write the joins and leaves."""
    pq.write_table(table_of(dict(zip(("time_ns", "device", "online"), recording.churn, strict=True))), path)


def write_heat(path: Path, heat: HeatRecord) -> None:
    """Write the curves of the devices that heat was followed on."""
    columns: dict[str, Any] = dict(zip(CURVE_COLUMNS, heat.curve.T, strict=True))
    pq.write_table(table_of({**columns, "device": columns["device"].astype(np.int32)}), path, compression="zstd")


def devices_table(facts: DeviceFacts, measured: Measured, recording: Recording) -> Any:
    """One row per device, as an Arrow table; `docs/metrics.md` lists the columns."""
    size, end_ns = facts.size, recording.end_ns
    sums = {name: column[:size] for name, column in measured.account.device.items()}
    profiles = arrow(list(facts.profile_names))
    return table_of(
        {
            "name": arrow(list(facts.names)),
            "profile": pa.DictionaryArray.from_arrays(arrow(facts.profile.astype(np.int32)), profiles),
            "group": facts.group,
            "memory_bytes": facts.memory_bytes,
            "idle_w": facts.idle_w,
            "max_w": facts.max_w,
            "online_s": facts.online_ns / 1e9,
            "online_share": facts.online_ns / end_ns if end_ns else np.full(size, np.nan),
            "rows": sums["rows"],
            "lost_rows": sums["lost_rows"],
            "bytes_down": sums["bytes_down"],
            "bytes_up": sums["bytes_up"],
            "download_s": sums["download_ns"] / 1e9,
            "compute_s": sums["compute_ns"] / 1e9,
            "upload_s": sums["upload_ns"] / 1e9,
            "peak_memory_bytes": measured.peak_bytes[:size],
            "energy_j": measured.energy.total,
            **measured.energy.parts,
            "radio_up_j_per_bit": facts.radio_up_j,
            "radio_down_j_per_bit": facts.radio_down_j,
            "trip_c": facts.trip_c,
            **heat_columns(recording.heat, size),
            "online_ns": facts.online_ns,
            **battery_columns(facts.battery),
        }
    )


# -------------------------------------------------------------------------------------------------------- reading back


def read_table(folder: Path, name: str, columns: list[str] | None = None) -> Any:
    """An Arrow table of a run folder; ``InputError`` naming the file if it is missing or damaged."""
    with _open(folder, name) as file:
        try:
            return file.read(columns=columns)
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{folder / name}: cannot be read as Parquet: {error}") from error


def _open(folder: Path, name: str) -> Any:
    path = folder / name
    if not path.is_file():
        raise InputError(f"{path}: no such file; is {folder} a run folder?")
    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error


def read_facts(folder: Path) -> DeviceFacts:
    """The fleet's facts from ``devices.parquet``."""
    table = read_table(folder, DEVICES_FILE)
    profile = table["profile"].combine_chunks()
    kept = (*BATTERY_COLUMNS, "online_ns")
    return DeviceFacts(
        names=table["name"].to_pylist(),
        profile_names=tuple(profile.dictionary.to_pylist()) if len(table) else (),
        profile=_numpy(profile.indices if len(table) else profile.cast(pa.int32())).astype(np.int32),
        group=_numpy(table["group"]).astype(np.int32),
        memory_bytes=_numpy(table["memory_bytes"]),
        idle_w=_numpy(table["idle_w"]),
        max_w=_numpy(table["max_w"]),
        radio_up_j=_stated(table, "radio_up_j_per_bit"),
        radio_down_j=_stated(table, "radio_down_j_per_bit"),
        trip_c=_stated(table, "trip_c"),
        online_ns=_numpy(table["online_ns"]),
        battery=battery_record({name: _numpy(table[name]) for name in table.column_names if name in kept}),
    )


def _numpy(column: Any) -> NDArray[Any]:
    array: NDArray[Any] = column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy()
    return array


def _stated(table: Any, name: str) -> FloatArray:
    """A column of numbers that profiles may state; NaN where the folder is older than the column."""
    return _numpy(table[name]) if name in table.column_names else np.full(len(table), np.nan)


def stream_dispatches(folder: Path) -> Iterator[DispatchRecord]:
    """The dispatches of a run folder in serial order, one row group in memory at a time.

    Tables with the same content come back as one object.  ``InputError`` if the two tables contradict each other.
    """
    made = read_table(folder, DISPATCHES_FILE, ["dispatch", "time_ns", "settled_ns", "label", "rows"]).to_pydict()
    rows = _Rows(folder)
    shared: dict[bytes, StaticColumns] = {}
    for serial, time, settled, label, count in zip(*made.values(), strict=True):
        columns = rows.next(count)
        if count and not (columns["dispatch"] == serial).all():
            raise InputError(f"{rows.path}: rows of dispatch {serial} are missing or out of order")
        tasks = StaticColumns(**{name: columns[name] for name in TASK_COLUMNS})
        yield DispatchRecord(
            serial=serial,
            time_ns=time,
            label=label,
            settled_ns=settled,
            tasks=shared.setdefault(static_sha256(tasks), tasks),
            times=tuple(columns[name] for name in TIME_COLUMNS),
            lost=columns["lost"].astype(np.bool_),
        )
    if rows.rest():
        raise InputError(f"{rows.path}: {rows.rest()} rows belong to no dispatch of {folder / DISPATCHES_FILE}")


class _Rows:
    """Hands out the next rows of the events table as numpy columns."""

    COLUMNS = ("dispatch", *TASK_COLUMNS, *TIME_COLUMNS, "lost")

    def __init__(self, folder: Path) -> None:
        self.path = folder / EVENTS_FILE
        self._file = _open(folder, EVENTS_FILE)
        self._group = 0
        self._left = self._file.metadata.num_rows
        self._columns = {name: np.zeros(0, EVENTS_SCHEMA.field(name).type.to_pandas_dtype()) for name in self.COLUMNS}

    def next(self, count: int) -> dict[str, NDArray[Any]]:
        if count > self._left:
            raise InputError(f"{self.path}: holds {count - self._left} rows less than {DISPATCHES_FILE} says")
        self._left -= count
        while len(self._columns["lost"]) < count:
            self._load()
        taken = {name: column[:count] for name, column in self._columns.items()}
        self._columns = {name: column[count:] for name, column in self._columns.items()}
        return taken

    def rest(self) -> int:
        return int(self._left)

    def _load(self) -> None:
        try:
            group = self._file.read_row_group(self._group, columns=list(self.COLUMNS))
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{self.path}: row group {self._group} is damaged: {error}") from error
        self._group += 1
        fresh = {name: _numpy(group[name]) for name in self.COLUMNS}
        if len(self._columns["lost"]):
            fresh = {name: np.concatenate([self._columns[name], column]) for name, column in fresh.items()}
        self._columns = fresh


def read_recording(folder: Path) -> Recording:
    """The whole recording back from its folder (57 bytes a row, plus the static columns once per distinct table)."""
    schema = _open(folder, DISPATCHES_FILE).schema_arrow
    try:
        run = json.loads((schema.metadata or {})[b"morphling"])
        end_ns, ends, sha = run["end_ns"], run["iteration_ends_ns"], run["events_sha256"]
        watched = run.get("heat_watched")
    except (KeyError, ValueError) as error:
        raise InputError(f"{folder / DISPATCHES_FILE}: lacks the metadata of a run ({error})") from error
    churn = read_table(folder, CHURN_FILE)
    return Recording(
        dispatches=list(stream_dispatches(folder)),
        end_ns=end_ns,
        iteration_ends_ns=ends,
        events_sha256=sha,
        churn=(_numpy(churn["time_ns"]), _numpy(churn["device"]), _numpy(churn["online"])),
        heat=None if watched is None else _read_heat(folder, watched),
    )


def _read_heat(folder: Path, watched: Sequence[int]) -> HeatRecord:
    """What heat did, from ``heat.parquet`` and the columns of ``devices.parquet``."""
    curve = read_table(folder, HEAT_FILE, list(CURVE_COLUMNS))
    kept = read_table(folder, DEVICES_FILE, ["energy_compute_j", "hottest_c", "lowest_clock", "throttled_ns"])
    hottest = _numpy(kept["hottest_c"])
    return HeatRecord(
        compute_j=np.where(np.isnan(hottest), 0.0, _numpy(kept["energy_compute_j"])),
        hottest_c=hottest,
        lowest_clock=_numpy(kept["lowest_clock"]),
        throttled_ns=_numpy(kept["throttled_ns"]),
        curve=np.column_stack([_numpy(curve[name]).astype(np.float64) for name in CURVE_COLUMNS]),
        watched=tuple(watched),
    )
