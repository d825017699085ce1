"""The plug-in page works as it stands: from a file, by name, as a class, and under its own suite."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import morphling
from morphling.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
DEVICES = 6
LAYERS, GEMMS, PASSES = 12, 6, 3
PAGE = (ROOT / "docs" / "plugin.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def folder(tmp_path):
    """A folder that holds the page's files and nothing else."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def call(*words: object, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, with this checkout (and ``path``) to import from."""
    places = os.pathsep.join(str(p) for p in (ROOT, path) if p is not None)
    env = {**os.environ, "PYTHONPATH": places, "COLUMNS": "80", "NO_COLOR": "1"}
    command = [sys.executable, *(str(w) for w in words)]
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


def test_the_page_shows_the_files():
    assert set(FILES) == {"even_rows.py", "mine.yaml", "pyproject.toml", "test_even_rows.py"}
    assert len(FILES["even_rows.py"].splitlines()) < 100


def test_from_a_file(folder):
    results = morphling.run(folder / "mine.yaml", out=folder / "r", figures=False, allow_plugins=True)
    assert results.metrics["rows"] == LAYERS * GEMMS * PASSES * DEVICES
    assert results.metrics["devices_used"] == DEVICES
    # forward, dX and dW of four 768 x 768 and two 768 x 3072 matrices on 2 x 64 tokens
    flops = LAYERS * PASSES * 2 * 128 * (4 * 768 * 768 + 2 * 768 * 3072)
    assert float(np.sum(results.events()["flops"])) == flops
    assert str(folder / "even_rows.py") in results.manifest["inputs_sha256"]


def test_as_a_class(folder, monkeypatch):
    import yaml

    monkeypatch.syspath_prepend(folder)
    try:
        even_rows = importlib.import_module("even_rows")
        scenario = yaml.safe_load(FILES["mine.yaml"])
        scenario["strategy"] = {"plugin": even_rows.EvenRows, "devices": DEVICES}
        results = morphling.run(scenario, out=folder / "r", figures=False)
        again = morphling.run(folder / "r" / "scenario.yaml", out=folder / "again", figures=False)
    finally:
        sys.modules.pop("even_rows", None)
    assert results.metrics["events_sha256"] == again.metrics["events_sha256"]
    assert any("was passed as a class" in note for note in results.manifest["notes"])


def test_its_suite_passes(folder):
    done = call("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder, folder, cwd=folder, path=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 passed, 2 skipped" in done.stdout


def test_the_words_about_permission_hold(folder):
    with pytest.raises(InputError, match=r"mine\.yaml:6:20: .*even_rows\.py is Python code"):
        morphling.run(folder / "mine.yaml", base=folder / "runs", figures=False)
    assert not (folder / "runs").exists()
    for command in re.findall(r"^morphling (.*?)(?:\s+#.*)?$", PAGE, re.MULTILINE):
        done = call("-m", "morphling", *command.split(), cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((folder / "runs").iterdir())) == 1


@pytest.mark.slow
def test_by_name(folder):
    site = folder / "site"
    done = call(
        "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index", "--target", site, folder,
        cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    empty = folder / "empty"
    empty.mkdir()
    listed = json.loads(call("-m", "morphling", "strategies", "--json", cwd=empty, path=site).stdout)
    (mine,) = [p for p in listed if p["name"] == "even-rows"]
    assert (mine["distribution"], mine["version"], mine["cause"]) == ("even-rows", "0.1", None)
    assert mine["parameters"] == [
        {
            "name": "devices",
            "type": "int",
            "required": False,
            "default": 1_000_000,
            "about": "use the first so many of those that are here",
        }
    ]
    text = FILES["mine.yaml"].replace("plugin: even_rows.py:EvenRows", "name: even-rows")
    assert text != FILES["mine.yaml"]
    (empty / "named.yaml").write_text(text, encoding="utf-8")
    done = call("-m", "morphling", "run", "named.yaml", "--no-figures", "--json", cwd=empty, path=site)
    assert done.returncode == 0, done.stderr
    by_name = json.loads(done.stdout)["metrics"]["events_sha256"]
    from_file = morphling.run(folder / "mine.yaml", out=folder / "r", figures=False, allow_plugins=True)
    assert by_name == from_file.metrics["events_sha256"]
