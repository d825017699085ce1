"""Published figures, made again: data, words and refusals; on a small figure of the same kind."""

from __future__ import annotations

import csv

import pytest

from morphling.errors import InputError
from morphling.results.paper import Claim, PaperPoint, ratios
from morphling.run import paper
from morphling.scenario import load_scenario

CLAIM = Claim("twice as fast", "Somebody 2020, abstract", 1.5, 2.0, points_public=False)


def point(panel, series, x, seconds, reason=None, *, failed=False):
    return PaperPoint(panel, series, x, seconds, reason, failed, ())


def test_ratios_say_where_they_are_smallest_and_largest():
    points = [
        point("paper", "A", 2, 30.0),
        point("paper", "A", 4, 50.0),
        point("paper", "B", 2, 10.0),
        point("paper", "B", 4, 10.0),
        point("physical", "A", 2, None, "too big"),
        point("physical", "B", 2, 1.0),
    ]
    assert ratios(points, "B") == (
        "paper: A takes 3.0 (at 2) to 5.0 (at 4) times as long as B; physical: A has no value to compare"
    )


def test_a_ratio_below_one_has_two_digits():
    points = [point("physical", "A", 2, 449.3), point("physical", "B", 2, 6752.0)]
    assert ratios(points, "B") == "physical: A takes 0.067 (at 2) times as long as B"


@pytest.fixture
def small(monkeypatch, tmp_path):
    scenario = tmp_path / "small.yaml"
    scenario.write_text(
        """\
name: small
workload: {model: opt-125m, batch_size: 4, sequence_length: 16, dtype: float16}
fleet:
  - profile: {compute: 1 TFLOP/s, memory: 3 GB}
    count: 2
    link: {downlink: 80 Mbit/s, uplink: 40 Mbit/s}
coordinator: {profile: cloud-server}
strategy: {name: cleave}
""",
        encoding="utf-8",
    )
    runs = tuple(
        paper.Run("physical", label, n, (f"fleet.0.count={n}", ("strategy", {"name": name}), *more))
        for n in (2, 3)
        for label, name, more in (
            ("Cleave", "cleave", ()),
            ("DDP", "ddp", ("fleet.0.profile.memory=1 GB",) if n == 3 else ()),
        )
    )
    figure = paper.PaperFigure(
        "small", "A small one", str(scenario), "devices", runs, CLAIM, "Cleave", "All have 3 GB."
    )
    monkeypatch.setitem(paper.PAPER_FIGURES, "small", figure)
    monkeypatch.setitem(paper.DRAWINGS, "small", paper.DRAWINGS["cleave-device-scaling"])


@pytest.mark.usefixtures("small")
def test_a_figure_is_pictures_data_and_a_section(tmp_path):
    (drawn,) = paper.draw_paper_figures(["small"], out=tmp_path / "out", jobs=1)
    assert [f.name for f in drawn.files] == ["small.png", "small.pdf", "small.csv", "REPORT.md"]
    assert all(f.stat().st_size > 100 for f in drawn.files)
    with (tmp_path / "out" / "small.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [(x["strategy"], x["devices"], bool(x["iteration_time_s"]), bool(x["reason"])) for x in lines] == [
        ("Cleave", "2", True, False),
        ("DDP", "2", True, False),
        ("Cleave", "3", True, False),
        ("DDP", "3", False, True),
    ]
    assert "needs" in lines[3]["reason"]
    text = (tmp_path / "out" / "REPORT.md").read_text(encoding="utf-8")
    assert "Somebody 2020" in text
    assert "they are not the paper's measurements. All have 3 GB." in text
    assert "not public" in text
    assert "n/a (1)" in text
    # The time in the data is the run's own.
    metrics = (tmp_path / "out" / "runs" / "small" / "ddp-physical-2" / "metrics.json").read_text(encoding="utf-8")
    assert f'"iteration_time_s": {lines[1]["iteration_time_s"]}' in metrics


def test_names_and_folders_are_checked_first(tmp_path):
    with pytest.raises(InputError, match="cleave-device-scaling"):
        paper.draw_paper_figures(["no-such"], out=tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(InputError):
        paper.draw_paper_figures(["cleave-device-scaling"], out=tmp_path / "full")


def test_the_shipped_figure_names_a_shipped_scenario():
    figure = paper.PAPER_FIGURES["cleave-device-scaling"]
    assert {(r.panel, r.series) for r in figure.runs} == {
        (panel, series) for panel in ("paper", "physical") for series in ("Alpa", "DT-FM", "Cleave")
    }
    assert sorted({r.x for r in figure.runs}) == [32, 64, 128, 256, 512, 1024]
    assert "arXiv 2512.22142" in figure.claim.source


def test_the_published_formulas_know_no_limit_of_the_coordinators_network():
    """100 Gbit/s would bind from 512 devices on."""
    (run,) = (r for r in paper.PAPER_FIGURES["cleave-device-scaling"].runs if (r.panel, r.series, r.x) == (
        "paper", "Cleave", 512))  # fmt: skip
    found = load_scenario("paper/cleave-device-scaling", run.overrides).scenario.coordinator
    assert (found.downlink, found.uplink) == (None, None)
    (run,) = (r for r in paper.PAPER_FIGURES["cleave-device-scaling"].runs if (r.panel, r.series, r.x) == (
        "physical", "Cleave", 512))  # fmt: skip
    assert load_scenario("paper/cleave-device-scaling", run.overrides).scenario.coordinator.downlink == 1e11
