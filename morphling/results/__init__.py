"""WHAT IT MEANS, from the run folder alone: accounting, metrics, timeline, the folder itself, `Results`.

Whatever turns a recording into files, numbers and tables belongs here; drawing belongs to `morphling.figures`.
"""

from __future__ import annotations

from morphling.results.comparison import Comparison
from morphling.results.facts import DeviceFacts
from morphling.results.metrics import metrics
from morphling.results.results import Results
from morphling.results.timeline import write_timeline
from morphling.results.write import check_room, new_run_folder, take_folder, write_run

__all__ = [
    "Comparison",
    "DeviceFacts",
    "Results",
    "check_room",
    "metrics",
    "new_run_folder",
    "take_folder",
    "write_run",
    "write_timeline",
]
