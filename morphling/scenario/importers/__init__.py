"""Importers of trace formats that others use: one file a family, one set of rules for cleaning, one report."""

from __future__ import annotations

from morphling.scenario.importers.formats import FORMATS, Format, import_trace
from morphling.scenario.importers.record import Imported, Options, Report
from morphling.scenario.importers.writing import write_csv

__all__ = ["FORMATS", "Format", "Imported", "Options", "Report", "import_trace", "write_csv"]
