"""A comparison: the same runs as alone, hand-worked rows, what cannot be served, what fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import morphling
from morphling.errors import InputError, ScenarioError
from morphling.results.comparison import COLUMNS, Comparison
from morphling.run.compare import _jobs, line_up
from morphling.run.side_by_side import Progress
from morphling.strategies.cleave import Cleave
from tests.side_strategies import NO_PLAN

CODE = Path(__file__).resolve().parents[1] / "side_strategies.py"
TINY = {
    "name": "tiny",
    "seed": 7,
    "workload": {"model": "opt-125m", "batch_size": 1, "sequence_length": 16},
    "fleet": [
        {"profile": {"compute": "1 TFLOP/s", "memory": "2 MB", "power": {"idle": "1 W", "max": "2 W"}}, "count": 2,
         "link": {"downlink": "8 Mbit/s", "uplink": "8 Mbit/s"}},
    ],
    "strategy": {"name": "cleave", "tiles": 3},
}  # fmt: skip
BIG = {**TINY, "fleet": [{**TINY["fleet"][0], "profile": {"compute": "1 TFLOP/s", "memory": "2 GB"}}]}
DRAWN = [("fleet.0.link.downlink", {"uniform": ["5 Mbit/s", "20 Mbit/s"]})]


def plugin(name):
    return f"{CODE}:{name}"


def compared(tmp_path, strategies, scenario=TINY, **options):
    options = {"out": tmp_path / "all", "figures": False, "jobs": 1, "allow_plugins": True, **options}
    return morphling.compare(scenario, strategies, **options)


def test_a_row_by_hand(tmp_path):
    # 1 MB at 8 Mbit/s is 1 s, a tenth of it back 0.1 s; half a megabyte takes half of that.
    done = compared(tmp_path, f"{plugin('Waves')},{plugin('Waves')}:kilo=500:held=3000000")
    first, second = done.summaries()
    assert (first["strategy"], first["state"], first["seeds"]) == ("side_strategies.py:Waves", "done", 1)
    assert first["iteration_time_s"] == pytest.approx(1.1)
    assert second["iteration_time_s"] == pytest.approx(0.55)
    assert (first["ratio"], second["ratio"]) == (1.0, pytest.approx(0.5))
    assert (first["bytes_down_per_device"], first["bytes_up_per_device"]) == (1_000_000, 100_000)
    assert (first["peak_memory_bytes"], first["peak_memory_share"], first["fits"]) == (1_000_000, 0.5, True)
    assert (second["peak_memory_bytes"], second["peak_memory_share"], second["fits"]) == (3_000_000, 1.5, False)
    assert first["energy_j"] == pytest.approx(2 * 1.1)  # two devices idle at 1 W
    assert (first["device_utilization"], first["lost_rows"], first["devices_used"]) == (0, 0, 2)
    assert first["iteration_time_ci95_s"] is None


def test_each_run_is_what_it_is_alone_to_the_bit(tmp_path):
    strategies = ["cleave", "cleave:model=paper", ("fine", {"name": "cleave", "tiles": 8})]
    done = compared(tmp_path, strategies, BIG, seeds=2, jobs=2)
    frame = done.frame().set_index(["strategy", "seed"])
    keys = {"cleave": {}, "cleave:model=paper": {"strategy.model": "paper"}, "fine": {"strategy.tiles": 8}}
    assert list(frame.index) == [(label, seed) for label in keys for seed in (7, 8)]
    for (label, seed), row in frame.iterrows():
        alone = morphling.run(BIG, {**keys[label], "seed": seed}, out=tmp_path / f"{label}{seed}", figures=False)
        assert row["events_sha256"] == alone.metrics["events_sha256"]
        assert row["iteration_time_s"] == alone.metrics["iteration_time_s"]
        there = morphling.Results.open(done.folder / row["folder"])
        assert there.scenario_yaml == alone.scenario_yaml
    again = compared(tmp_path, strategies, BIG, seeds=2, jobs=1, out=tmp_path / "again")
    assert (again.folder / "comparison.csv").read_bytes() == (done.folder / "comparison.csv").read_bytes()


def test_keys_are_laid_over_those_of_the_scenario(tmp_path):
    done = compared(tmp_path, ["cleave", "cleave:overlap=none", ("other", {"name": "cleave", "tiles": 5})], BIG)
    sections = [entry["strategy"] for entry in done.record["strategies"]]
    assert [section["tiles"] for section in sections] == [3, 3, 5]
    assert [section["overlap"] for section in sections] == ["pipelined", "none", "pipelined"]
    other = line_up({**BIG, "strategy": {"plugin": Cleave, "tiles": 9}}, "cleave")
    assert "tiles" not in other.loaded[0].scenario.strategy.config  # another strategy's keys are not taken over


def test_what_cannot_be_served_is_not_a_number_and_what_fails_lets_others_go_on(tmp_path, capsys):
    names = ["Never", "Waves", "Wrong", "Empty"]
    done = compared(tmp_path, [plugin(name) for name in names])
    assert [row.state for row in done.rows] == ["infeasible", "done", "failed", "done"]
    never, waves, wrong, empty = done.rows
    assert never.reason == NO_PLAN
    assert all(value is None for name, value in never.values.items() if name != "seeds")
    assert (waves.values["ratio"], waves.why["ratio"]) == (None, "the first has no time")
    line = 1 + CODE.read_text().splitlines().index("        return len(view.now_ns)")
    assert wrong.reason == f"TypeError: object of type 'int' has no len() ({CODE}:{line})"
    assert empty.why["iteration_time_s"] == "no iteration ended"
    assert "side_strategies.py" in next(run for run in done.record["runs"] if "traceback" in run)["traceback"]
    said = capsys.readouterr()
    assert (said.out, "on the way to a fault" in said.err) == ("", True)
    assert done.notes()[0] == f"¹ {NO_PLAN}"


def test_no_mean_over_some_of_the_seeds(tmp_path):
    done = compared(tmp_path, [plugin("Waves"), plugin("Fast")], overrides=DRAWN, seeds=5)
    states = [run["state"] for run in done.record["runs"] if run["strategy"].endswith("Fast")]
    assert 0 < states.count("infeasible") < 5, "the drawn links should be enough for some seeds only"
    fast = done.rows[1]
    assert fast.state == "infeasible"
    assert fast.reason == f"{states.count('infeasible')} of 5 seeds: a link is below 10 Mbit/s: leave it out"
    assert fast.values["iteration_time_s"] is None
    waves = done.frame().query("strategy.str.endswith('Waves')")["iteration_time_s"]
    assert done.rows[0].values["iteration_time_s"] == pytest.approx(waves.mean())
    assert done.rows[0].values["iteration_time_ci95_s"] == pytest.approx(2.7764451 * waves.std() / 5**0.5)


def test_iterations_that_did_not_end_are_told(tmp_path):
    done = compared(tmp_path, [plugin("Waves"), f"{plugin('Waves')}:ends=2"], overrides=["run.iterations=3"])
    assert "iteration_time_s" not in done.rows[0].remarks
    assert done.rows[1].remarks["iteration_time_s"].startswith("2 of 3 iterations ended")
    assert done.rows[1].values["ratio"] == pytest.approx(1)


def test_a_strategy_without_rows_has_a_time_alone(tmp_path):
    (row,) = compared(tmp_path, plugin("Formula")).rows
    assert row.values["iteration_time_s"] == pytest.approx(1.1)
    missing = {name for name, reason in row.why.items() if reason == "the published formula has no rows"}
    assert missing >= {"bytes_down_per_device", "peak_memory_share", "fits", "device_utilization", "energy_j"}
    assert all(row.values[name] is None for name in missing)


@pytest.mark.parametrize(
    ("strategies", "match"),
    [
        ("clave", "--strategies clave: strategy.name: unknown name 'clave'.*did you mean 'cleave'"),
        ("cleave:modle=paper", "--strategies cleave:modle=paper: modle: unknown key, did you mean 'model'"),
        ("cleave:model=papr", "cleave:model=papr: model: "),
        ([{"name": "cleave", "tiles": "x"}], "cleave:tiles=x: tiles: a whole number is needed"),
        (["cleave", "cleave:tiles=3"], "cleave:tiles=3 is the same as cleave, all defaults counted"),
        ([plugin("Waves"), f"{plugin('Waves')}:kilo=1000"], "is the same as side_strategies.py:Waves"),
        (plugin("Wavs"), "has no 'Wavs', did you mean 'Waves'"),
    ],
)
def test_a_wrong_entry_is_refused_before_anything_is_run(tmp_path, strategies, match):
    with pytest.raises(InputError, match=match):
        compared(tmp_path, strategies)
    assert list(tmp_path.iterdir()) == []


def test_all_wrong_entries_are_told_at_once(tmp_path):
    with pytest.raises(ScenarioError) as caught:
        compared(tmp_path, "cleave,clave,cleave:modle=paper")
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"seeds": 0}, "seeds: a number of seeds"),
        ({"seeds": 2.0}, "seeds: a number of seeds"),
        ({"jobs": 0}, "jobs: at least 1"),
        ({"seeds": 2, "overrides": [f"seed={2**63 - 1}"]}, "seed"),
    ],
)
def test_wrong_numbers_are_refused(tmp_path, options, match):
    with pytest.raises(InputError, match=match):
        compared(tmp_path, "cleave", **options)
    assert list(tmp_path.iterdir()) == []


def test_code_is_not_run_without_permission(tmp_path):
    with pytest.raises(InputError, match="allow it with --allow-plugins"):
        compared(tmp_path, plugin("Waves"), allow_plugins=False)
    assert line_up(TINY, plugin("Waves")).plugin_files.keys() == {CODE}


def test_a_loaded_scenario_is_refused():
    with pytest.raises(InputError, match="give its file, name, text or mapping"):
        morphling.compare(morphling.load_scenario(TINY), "cleave")


def test_classes(tmp_path, monkeypatch):
    class Local(Cleave):
        pass

    done = compared(tmp_path, [Cleave, Local], BIG, jobs=None)  # one that no other process has: all in this one
    assert done.labels == ["Cleave", "Local"]
    assert done.frame()["events_sha256"].nunique() == 1
    with pytest.raises(InputError, match=r"Local.*(another process|file of its own)"):
        compared(tmp_path, [Cleave, Local], BIG, jobs=2, out=tmp_path / "more")
    assert not (tmp_path / "more").exists()


def test_runs_that_measure_this_host_are_made_one_after_another():
    live = line_up(BIG, "cleave,uniform-tp", overrides=["execution.mode=live"])
    assert [_jobs(live, jobs) for jobs in (None, 2)] == [1, 2]
    assert _jobs(line_up(BIG, "cleave,uniform-tp"), None) is None


def test_the_folder_opens_again(tmp_path):
    done = compared(tmp_path, "cleave,cleave:model=paper", BIG)
    again = Comparison.open(done.folder)
    assert again.summaries() == done.summaries()
    assert list(again.summary().columns) == list(COLUMNS)
    assert sorted(path.name for path in done.folder.iterdir()) == [
        "cleave-model=paper-seed7", "cleave-seed7", "comparison.csv", "comparison.json",
    ]  # fmt: skip
    assert again._repr_html_().startswith("<table><caption>tiny: seed 7")
    with pytest.raises(InputError, match="a comparison that was finished"):
        Comparison.open(done.folder / "cleave-seed7")
    (done.folder / "comparison.json").write_text(json.dumps({"comparison_version": 0}))
    with pytest.raises(InputError, match="is not a comparison of version"):
        Comparison.open(done.folder)


def test_progress_in_this_process(tmp_path):
    seen = []
    compared(tmp_path, [plugin("Waves"), f"{plugin('Waves')}:kilo=2"], progress=seen.append)
    assert seen[0] == Progress(0, 2, {"side_strategies.py:Waves": 0.0})
    assert seen[-1] == Progress(2, 2, {})


def test_labels_that_are_one_file_name(tmp_path):
    done = compared(tmp_path, [("a/b", plugin("Waves")), ("a b", f"{plugin('Waves')}:kilo=2")])
    assert [run["folder"] for run in done.record["runs"]] == ["a-b-seed7", "a-b-2-seed7"]
