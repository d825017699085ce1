"""Drawings of a run folder and of traces; matplotlib lives only here, and is imported when something is drawn.

One function a plot; each reads a run folder alone, or one trace.
"""

from __future__ import annotations

from morphling.figures.comparison import comparison_figure, draw_comparison
from morphling.figures.gemm import draw_gemm_fit, gemm_fit_figure
from morphling.figures.losses import draw_losses, losses_figure
from morphling.figures.overview import draw_overview, overview
from morphling.figures.traces import draw_trace, trace_figure

__all__ = [
    "comparison_figure",
    "draw_comparison",
    "draw_gemm_fit",
    "draw_losses",
    "draw_overview",
    "draw_trace",
    "gemm_fit_figure",
    "losses_figure",
    "overview",
    "trace_figure",
]
