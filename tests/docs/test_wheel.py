"""A wheel installed elsewhere runs a shipped scenario by name, from a folder that is no checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


def call(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def program(wheel, tmp_path_factory) -> Path:
    """The installed command, in an environment of its own that borrows only the dependencies of this one."""
    place = tmp_path_factory.mktemp("venv") / "v"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    call(
        sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel,
        cwd=place,
    )  # fmt: skip
    (site,) = (place / "lib").glob("python*/site-packages")
    # A line in a .pth file comes after the environment's own packages, so the wheel wins over an editable install.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return place / "bin" / "morphling"


def test_the_data_folders_ship_inside(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("scenarios", "device_profiles", "network_traces"):
        wanted = {f"morphling/data/{p.relative_to(ROOT)}" for p in (ROOT / folder).rglob("*") if p.is_file()}
        assert wanted
        assert wanted - inside == set()
    assert "morphling/py.typed" in inside
    assert [n for n in inside if n.startswith("tests/")] == []


def test_a_shipped_scenario_runs_by_name(program, tmp_path):
    where = call(program.with_name("python"), "-c", "import morphling; print(morphling.__file__)", cwd=tmp_path).stdout
    assert Path(where.strip()).is_relative_to(program.parents[1])
    call(program, "run", "quickstart", cwd=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    files = {p.name for p in folder.iterdir()}
    assert {
        "scenario.yaml",
        "manifest.json",
        "metrics.json",
        "events.parquet",
        "devices.parquet",
        "timeline.json",
    } <= files
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["devices"] == 12
    assert metrics["iteration_time_s"] > 0


def test_the_resolved_scenario_runs_to_the_same_events(program, tmp_path):
    call(program, "run", "quickstart", "--out", tmp_path / "first", cwd=tmp_path)
    call(program, "run", tmp_path / "first" / "scenario.yaml", "--out", tmp_path / "second", cwd=tmp_path)
    first, second = (json.loads((tmp_path / n / "metrics.json").read_text("utf-8")) for n in ("first", "second"))
    assert first["events_sha256"] == second["events_sha256"]


def test_the_notebook_runs_there(program, tmp_path):
    cells, notebook = ROOT / "tests" / "docs" / "notebook_cells.py", ROOT / "notebooks" / "01_compare_strategies.ipynb"
    said = call(program.with_name("python"), "-P", cells, notebook, cwd=tmp_path).stdout
    assert said.splitlines()[-1].endswith(" cells")
