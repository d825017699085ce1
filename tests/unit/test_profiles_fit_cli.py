"""`morphling profiles fit-thermal`: from a log to a profile that a scenario can name."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import yaml

from morphling.scenario import load_profile
from tests.thermal_logs import bursts, known_log, write_log

LOAD_ONLY = ("time_s", "case_c", "junction_c", "load")


def called(*arguments):
    env = {**os.environ, "COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "morphling", "profiles", "fit-thermal", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    cycled = known_log(bursts(1500, 400, 200), noise_k=0.1, grain_k=0.1)
    write_log(folder / "power.csv", cycled)
    write_log(folder / "load.csv", cycled, LOAD_ONLY)
    write_log(folder / "heat.csv", known_log(np.ones(900)), LOAD_ONLY)
    return folder


def test_a_log_with_power_gives_a_section_and_a_figure(logs, tmp_path):
    out, figure = tmp_path / "heat.yaml", tmp_path / "heat.png"
    done = called(logs / "power.csv", "-o", out, "--figure", figure)
    assert (done.returncode, done.stderr) == (0, "")
    assert figure.stat().st_size > 20_000
    section = yaml.safe_load(out.read_text(encoding="utf-8"))["thermal"]
    assert set(section) == {
        *("ambient", "ambient_to_case", "case_time", "case_cooling_time", "junction_to_case", "junction_time"),
    }
    digest = hashlib.sha256((logs / "power.csv").read_bytes()).hexdigest()
    for number in section.values():
        assert number["kind"] == "measured"
        assert f"power.csv, sha256 {digest}" in number["source"]
    value, unit = section["case_time"]["value"].split()
    assert (float(value), unit) == (pytest.approx(200, rel=0.08), "s")
    value, unit = section["ambient_to_case"]["value"].split()
    assert (float(value), unit) == (pytest.approx(3, rel=0.15), "K/W")
    assert "# not told by the log: trip (the log has no clock)" in out.read_text(encoding="utf-8")
    assert "held out: 1050 s to 1499 s" in done.stdout


def test_with_a_base_it_is_a_profile_that_loads(logs, tmp_path):
    out = tmp_path / "my-phone.yaml"
    done = called(logs / "load.csv", "-o", out, "--base", "galaxy-s24-ultra")
    assert (done.returncode, done.stderr) == (0, "")
    profile, base = load_profile(str(out)), load_profile("galaxy-s24-ultra")
    assert profile.name == "my-phone"
    assert profile.compute == base.compute
    assert profile.thermal.case_time.kind == "measured"
    assert profile.thermal.case_time.value == pytest.approx(200, rel=0.08)
    # The power is that of the base, so what follows from it is derived; the rule of the clock stays as it was.
    assert profile.thermal.ambient_to_case.kind == "derived"
    assert profile.thermal.ambient_to_case.value == pytest.approx(3, rel=0.15)
    assert "power of 5 W at full load and 500 mW when idle" in profile.thermal.ambient_to_case.source
    assert profile.thermal.trip == base.thermal.trip
    assert "kept from galaxy-s24-ultra: trip, hysteresis, clock_floor, power_exponent, static_share" in done.stdout


def test_given_powers_go_into_the_profile(logs, tmp_path):
    out = tmp_path / "strong.yaml"
    powers = ("--max-power", "10 W", "--idle-power", "1 W")
    done = called(logs / "load.csv", "-o", out, "--base", "galaxy-s24-ultra", *powers)
    assert (done.returncode, done.stderr) == (0, "")
    profile = load_profile(str(out))
    assert (profile.max_w, profile.idle_w) == (10, 1)
    assert profile.thermal.ambient_to_case.value == pytest.approx(1.5, rel=0.15)


def test_without_a_power_no_resistance_is_told(logs):
    found = json.loads(called(logs / "load.csv", "--json").stdout)
    assert {"ambient_to_case", "junction_to_case", "ambient_c"} & set(found["constants"]) == set()
    assert found["constants"]["case_rise_k"]["unit"] == "K"
    assert found["drive"] == "no power known: only rises in K can be told, no resistances"
    assert found["errors"]["held_out"]["case"]["mean_k"] < 0.6
    text = called(logs / "load.csv").stdout
    assert "K/W" not in text


def test_a_log_without_cooling_leaves_it_out(logs, tmp_path):
    out = tmp_path / "heat.yaml"
    done = called(logs / "heat.csv", "-o", out, "--max-power", "5 W", "--idle-power", "500 mW", "--ambient", "25 degC")
    assert (done.returncode, done.stderr) == (0, "")
    text = out.read_text(encoding="utf-8")
    assert "# not told by the log: case_cooling_time (the case never cools in the fitted part)" in text
    section = yaml.safe_load(text)["thermal"]
    assert "case_cooling_time" not in section
    assert section["ambient"] == {
        "value": "25 degC", "source": "given with --ambient when heat.csv was fitted", "kind": "assumed",
    }  # fmt: skip
    assert section["ambient_to_case"]["kind"] == "derived"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["load.csv", "--max-power", "5"], "--max-power: 5: a power needs a unit"),
        (["load.csv", "--max-power", "5 W"], "--max-power and --idle-power go together"),
        (["load.csv", "--max-power", "5 W", "--idle-power", "6 W"], "is not above --idle-power"),
        (["power.csv", "--max-power", "5 W"], "the log has a power"),
        (["load.csv", "--holdout", "1"], "--holdout: a share between 0 and 1"),
        (["load.csv", "--load", "1"], "the log has a column 'load'"),
        (["load.csv", "--load-column", "lode"], "there is no column 'lode', did you mean 'load'?"),
        (["load.csv", "--base", "galaxy-s24-ultra"], "--base writes a profile"),
        (["load.csv", "--figure", "x.bmp"], "a figure ends in"),
        (["load.csv", "--time-unit", "h"], "--time-unit: s or ms, found 'h'"),
        (["none.csv"], "none.csv: cannot be read"),
        (["bare.csv"], "no column says what warms the device"),
        (["clock.csv"], "the log has a clock and no power"),
        (["clock.csv", "--max-power", "5 W", "--idle-power", "1 W"], "say how the power goes with it"),
        (["load.csv", "-o", "x.yaml", "--base", "jetson-orin-nano@25w"], "name the profile without its power mode"),
        (["load.csv", "-o", "x.yaml", "--base", "jetson-orin-nano"], "the log nor jetson-orin-nano has thermal."),
        (["load.csv", "-o", "x.txt"], "a profile ends in .yaml"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(logs, tmp_path, arguments, message):
    log = known_log(np.ones(60))
    if arguments[0] == "bare.csv":
        write_log(logs / "bare.csv", log, ("time_s", "case_c"))
    if arguments[0] == "clock.csv":
        (logs / "clock.csv").write_text("time_s,case_c,clock,load\n" + "".join(f"{i},30,1,1\n" for i in range(60)))
    rest = [str(tmp_path / a) if a.startswith("x.") else a for a in arguments[1:]]
    done = called(logs / arguments[0], *rest)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []
