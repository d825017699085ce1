"""One function a published figure."""

from __future__ import annotations

from morphling.figures.paper.device_scaling import draw_device_scaling

__all__ = ["DRAWINGS", "draw_device_scaling"]

DRAWINGS = {"cleave-device-scaling": draw_device_scaling}
"""Name of a figure → what draws it: (points, title, folder, name) → the files."""
