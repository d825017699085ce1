"""The columns of the events table, one row per settled sub-task."""

from __future__ import annotations

__all__ = ["DISPATCH_COLUMNS", "EVENT_COLUMNS", "TASK_COLUMNS", "TIME_COLUMNS"]

TIME_COLUMNS = (
    "download_start_ns",
    "download_end_ns",
    "compute_start_ns",
    "compute_end_ns",
    "upload_start_ns",
    "upload_end_ns",
    "settled_ns",
    "compute_ns",
)
"""int64, absolute virtual time; -1 where a stage never began or (``*_end_ns``) was cut short.  ``*_end_ns`` of a
transfer is the arrival of its last bit (latency included).  ``settled_ns`` is when the row was done or lost.
``compute_ns`` is how long the row's computing takes by the executor: less than the span from start to end where tiles
of a pipelined row wait for data.  Where devices warm it is the time really worked, longer at a lower clock, and of a
lost row what it had worked when it was lost."""

TASK_COLUMNS = ("kind", "device", "peer", "m", "n", "k", "dtype", "flops", "bytes_in", "bytes_out", "resident_bytes")
"""As in `morphling.interfaces.tasks.TaskTable`."""

DISPATCH_COLUMNS = ("dispatch", "row", "label")
"""The dispatch's serial number, the row's index in its table, and the dispatch's label."""

EVENT_COLUMNS = (*DISPATCH_COLUMNS, *TASK_COLUMNS, *TIME_COLUMNS, "lost")
"""All columns, in file order, sorted by (dispatch, row).  ``lost`` is 1 where the device left or the row was
withdrawn."""
