"""Drawings of traces: ordinary, constant, long, and ones in which nothing moves."""

from __future__ import annotations

import numpy as np
import pytest

from morphling.errors import InputError
from morphling.figures import draw_trace, trace_figure
from morphling.fleet import LinkTrace
from morphling.fleet.populations import device_traces

S = 1_000_000_000


def words(figure):
    texts = [figure.get_suptitle(), figure.get_supxlabel()]
    for axes in figure.axes:
        texts += [t.get_text() for t in axes.texts]
        legend = axes.get_legend()
        texts += [t.get_text() for t in legend.get_texts()] if legend else []
    return " | ".join(texts)


def step_trace(down, up, seconds=1):
    count = len(down)
    return LinkTrace("t", np.arange(count) * seconds * S, np.array(down), np.array(up), count * seconds * S)


def test_a_trace_with_a_pause_is_drawn_and_says_so(tmp_path):
    trace = step_trace([8_000_000, 0, 4_000_000, 4_000_000], [2_000_000, 0, 1_000_000, 1_000_000])
    said = words(trace_figure(trace))
    assert "4 steps, 4 s" in said
    assert "paused 25.0%, at most 1 s" in said
    assert "| paused" in said
    path = draw_trace(trace, tmp_path / "t.png")
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_a_curve_reaches_the_whole_time_and_starts_at_the_pauses():
    figure = trace_figure(step_trace([8_000_000, 0, 4_000_000, 4_000_000], [2_000_000, 0, 1_000_000, 1_000_000]))
    down = figure.axes[1].lines[0]
    assert down.get_ydata().tolist() == [25, 50, 75, 100]
    assert down.get_xdata().tolist() == [4, 4, 4, 8]
    ratio = figure.axes[2].lines[0]
    assert set(ratio.get_xdata()) == {4.0}


def test_a_constant_is_drawn():
    said = words(trace_figure(step_trace([8_000_000], [2_000_000])))
    assert "1 step, 1 s" in said
    assert "never paused" in said


def test_a_long_trace_is_drawn_as_ranges_and_says_so():
    figure = trace_figure(next(device_traces("driving-lte", 1, 1, 7200)))
    assert "range of about 3 neighbouring steps" in words(figure)
    for collection in figure.axes[0].collections[:2]:
        low, high = np.array([path.vertices[:, 1] for path in collection.get_paths()]).T
        assert low.min() > 0
        assert np.all(low <= high)


def test_what_never_moves_is_said_in_words():
    assert words(trace_figure(step_trace([0, 0], [0, 0]))).count("nothing ever moves") == 2
    assert "never both at once" in words(trace_figure(step_trace([8_000_000, 0], [0, 2_000_000])))


@pytest.mark.parametrize(("name", "said"), [("t.gif", "ends in .png"), ("none/t.png", "no such folder")])
def test_a_place_that_cannot_be_drawn_to_is_refused(tmp_path, name, said):
    with pytest.raises(InputError, match=said):
        draw_trace(step_trace([8_000_000], [2_000_000]), tmp_path / name)
