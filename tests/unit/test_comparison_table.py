"""The table and the figure of a comparison, from records written by hand."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from morphling.figures import comparison_figure, draw_comparison
from morphling.results.comparison import Comparison
from morphling.results.comparison_table import comparison_lines, short_reason, significant
from morphling.results.run_values import VALUES

MIB = 1 << 20
GOOD = {
    "iteration_time_s": 60.0, "iterations": 1, "makespan_s": 60.0, "bytes_down": 200 * MIB, "bytes_up": 20 * MIB,
    "bytes_down_per_device": 100 * MIB, "bytes_up_per_device": 10 * MIB, "peak_memory_bytes": 512 * MIB,
    "peak_memory_share": 0.25, "fits": True, "device_utilization": 0.872, "energy_j": 1900.0, "devices": 2,
    "devices_used": 2, "lost_rows": 0, "unrecovered_losses": 0, "recovery_time_s": None, "events_sha256": "ab" * 32,
}  # fmt: skip
REASON = "5 stages need 2.31 GiB each: take fewer stages"


def ran(strategy, seed=1, not_available=None, remarks=None, **changes):
    why = {"recovery_time_s": "no row was lost", **(not_available or {})}
    return {
        "strategy": strategy, "seed": seed, "state": "done", "reason": None, "folder": f"{strategy}-{seed}",
        "values": {**GOOD, **changes}, "not_available": why, "remarks": remarks or {},
    }  # fmt: skip


def ended(strategy, state, reason, seed=1):
    return {
        "strategy": strategy, "seed": seed, "state": state, "reason": reason, "folder": None,
        "values": None, "not_available": {}, "remarks": {},
    }  # fmt: skip


def comparison(*runs, iterations=1, folder=Path("nowhere")):
    labels = list(dict.fromkeys(run["strategy"] for run in runs))
    record = {
        "comparison_version": 1, "name": "paper", "seeds": sorted({run["seed"] for run in runs}),
        "iterations": iterations, "strategies": [{"label": x, "strategy": {}} for x in labels], "runs": list(runs),
    }  # fmt: skip
    return Comparison(folder, record)


def cells(*runs, **options):
    lines, notes = comparison_lines(comparison(*runs, **options))
    return [line.cells for line in lines], notes


def test_the_record_holds_what_a_run_gives():
    assert tuple(GOOD) == VALUES


def test_a_line_as_people_read_it():
    ((only,), notes) = cells(ran("cleave"))
    assert only == ("60.00 s", "1.00", "100 MiB ↓\n10.0 MiB ↑", "512 MiB\nfits 25 %", "87 %", "1.90 kJ", "-")
    assert notes == []


def test_seeds_give_an_interval_and_pairs_a_ratio():
    times = {1: 10.0, 2: 20.0, 3: 30.0}
    runs = [ran("a", s, iteration_time_s=t) for s, t in times.items()]
    runs += [ran("b", s, iteration_time_s=2 * t) for s, t in times.items()]
    (first, second), _ = cells(*runs)
    # 4.303 * 10 / sqrt(3) = 24.84; the second is twice the first in each seed.
    assert first[:2] == ("20.00 s\n± 24.84 s", "1.00")
    assert second[:2] == ("40.00 s\n± 49.68 s", "2.00\n± 0")


def test_recovery_without_losses_is_not_the_same_as_recovery_unknown():
    lost = {"lost_rows": 41, "recovery_time_s": 12.5}
    unknown = {"lost_rows": 3, "recovery_time_s": None, "unrecovered_losses": 1}
    why = {"recovery_time_s": "no dispatch labelled recovery followed"}
    shown, notes = cells(ran("a"), ran("b", **lost), ran("c", not_available=why, **unknown))
    assert [line[-1] for line in shown] == ["-", "12.50 s\n41 lost", "n/a¹"]
    assert notes == ["no dispatch labelled recovery followed"]


def test_a_seed_without_losses_counts_as_no_recovery():
    runs = [ran("a", 1, lost_rows=4, recovery_time_s=8.0), ran("a", 2)]
    ((only,), _) = cells(*runs)
    assert only[-1] == "4.000 s\n2 lost"


def test_losses_that_nothing_made_up_for_are_told():
    (_, notes) = cells(ran("a", lost_rows=5, recovery_time_s=1.0, unrecovered_losses=2))
    assert notes == ["2 losses were never made up for"]


def test_a_value_that_some_seeds_lack_is_none():
    why = {"energy_j": "1 of 2 devices states no power"}
    runs = [ran("a", 1), ran("a", 2, not_available=why, energy_j=None)]
    ((only,), notes) = cells(*runs)
    assert (only[5], notes) == ("n/a¹", ["1 of 2 seeds: 1 of 2 devices states no power"])


def test_memory_is_that_of_the_worst_seed():
    worst = {"peak_memory_bytes": 700 * MIB, "peak_memory_share": 1.4, "fits": False}
    ((only,), _) = cells(ran("a", 1), ran("a", 2, **worst))
    assert only[3] == "700 MiB\nover 140 %"


def test_states_and_notes():
    radio = {"energy_j": "no radio is stated; energy_j leaves it out"}
    runs = [
        ended("dtfm", "infeasible", REASON), ran("cleave", remarks=radio), ran("ddp", remarks=radio),
        ended("mine", "failed", "TypeError: no"), ended("yours", "infeasible", REASON),
    ]  # fmt: skip
    shown, notes = cells(*runs)
    assert shown[0] == ("n/a¹", *["n/a"] * 6)
    assert (shown[1][1], shown[1][5], shown[2][5]) == ("n/a²", "1.90 kJ³", "1.90 kJ³")
    assert (shown[3][0], shown[4][0]) == ("failed⁴", "n/a¹")
    assert notes == [REASON, "the first has no time", "no radio is stated; energy_j leaves it out", "TypeError: no"]
    assert comparison(*runs).notes()[3] == "⁴ TypeError: no"


def test_a_failure_counts_more_than_no_plan():
    (row,) = comparison(ended("a", "infeasible", REASON, 1), ended("a", "failed", "boom", 2), ran("a", 3)).rows
    assert (row.state, row.reason) == ("failed", "1 of 3 seeds: boom")


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        (REASON, "5 stages need 2.31 GiB each"),
        ("2 of 5 seeds: too small. Take more", "too small"),
        ("TypeError: can only concatenate list", "TypeError: can only concatenate…"),
        ("tensor_parallel: 12 heads cannot be cut into 5", "tensor_parallel: 12 heads cannot…"),
        ("word " * 20, "word word word word word word…"),
        ("first\nsecond", "first"),
    ],
)
def test_reasons_are_shortened_at_their_first_stop(reason, short):
    assert short_reason(reason) == short


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1, "1.00"), (0.0687, "0.0687"), (12.345, "12.3"), (1234.5, "1,234"), (0.00123, "0.00123")],
)
def test_significant_digits(value, text):
    assert significant(value, 3) == text


def many(count):
    runs = []
    for i in range(count):
        label = ["cleave", "cleave:model=paper:cache=false", "megatron-tp", "mine.py:Mine", "fedavg"][i % 5] + str(i)
        if i % 4 == 2:
            runs += [ended(label, "infeasible", REASON, seed) for seed in (1, 2)]
        else:
            times = [100.0 + 5 * i, 120.0 + 7 * i]
            runs += [ran(label, seed + 1, iteration_time_s=t) for seed, t in enumerate(times)]
    return comparison(*runs)


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("count", [1, 3, 12])
def test_nothing_is_cut_at_any_width(width, count):
    shown = many(count)
    table = shown.table(width)
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    text = out.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    assert text.count("↓") == sum(row.state == "done" for row in shown.rows)
    assert text.count("n/a¹") == sum(row.state == "infeasible" for row in shown.rows)


def test_a_table_that_cannot_be_narrower_says_so():
    assert many(3).table(40).width > 40
    assert many(3).table().width >= many(3).table(80).width


def test_html_escapes_what_people_wrote():
    page = comparison(ended("<b>", "failed", "a < b"))._repr_html_()
    assert "<b>" not in page
    assert "¹ a &lt; b" in page


# -------------------------------------------------------------------------------------------------------------- figure


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_the_figure_has_bars_and_words_for_what_is_missing(tmp_path):
    runs = [ran("a"), ran("b", iteration_time_s=30.0), ended("c", "infeasible", REASON), ended("d", "failed", "boom")]
    figure = comparison_figure(comparison(*runs))
    times, size = figure.axes
    assert [bar.get_width() for bar in times.patches] == [60.0, 30.0]
    assert [bar.get_width() for bar in size.patches] == [100.0, 100.0, 10.0, 10.0]
    assert texts(times) == ["60.00 s", "30.00 s  (0.500×)", f"n/a: {REASON.partition(':')[0]}", "failed: boom"]
    assert [label.get_text() for label in times.get_yticklabels()] == ["a", "b", "c", "d"]
    drawn = draw_comparison(comparison(*runs, folder=tmp_path))
    assert drawn == tmp_path / "figures" / "comparison.png"
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_the_axis_is_logarithmic_where_one_would_hide_the_others():
    times, size = comparison_figure(comparison(ran("a"), ran("b", iteration_time_s=60.0 * 31))).axes
    assert (times.get_xscale(), size.get_xscale()) == ("log", "linear")
    assert times.get_xlabel().startswith("logarithmic axis")
    assert not times.patches
    assert (
        comparison_figure(comparison(ran("a"), ran("b", iteration_time_s=60.0 * 29))).axes[0].get_xscale() == "linear"
    )


def test_the_figure_of_nothing_is_words():
    for run in (ended("a", "infeasible", REASON), ran("a", iteration_time_s=0.0, bytes_down_per_device=0,
                                                      bytes_up_per_device=0)):  # fmt: skip
        figure = comparison_figure(comparison(run))
        assert not [bar for axes in figure.axes for bar in axes.patches if bar.get_width() > 0]
        assert all(texts(axes) for axes in figure.axes)
