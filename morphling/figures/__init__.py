"""Drawings of a run folder; matplotlib lives only here, and is imported when something is drawn.

One function a plot; each reads the run folder alone.
"""

from __future__ import annotations

from morphling.figures.overview import draw_overview, overview

__all__ = ["draw_overview", "overview"]
