"""Links in the documents lead somewhere, named commands exist, and every metric that a run reports is defined."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "network_traces" / "README.md"])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MORPHLING = Path(sys.executable).with_name("morphling")


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(page: Path) -> set[str]:
    """What headings may be linked by: lower case, punctuation dropped, spaces to hyphens."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    broken = []
    for target in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_make_targets_that_pages_name_exist(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = set(re.findall(r"^ {4}make ([a-z-]+)|`make ([a-z-]+)`", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert {a or b for a, b in named} - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_pages_name_exist(page):
    """Paths in backticks that start in a folder of this repository."""
    text = page.read_text(encoding="utf-8")
    paths = re.findall(
        r"`((?:morphling|docs|tests|scenarios|device_profiles|network_traces|benchmarks)/[\w./-]*)`", text
    )
    assert [p for p in paths if "NAME" not in p and not (ROOT / p).exists()] == []


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics") / "out"
    command = [str(MORPHLING), "run", str(ROOT / "scenarios" / "quickstart.yaml"), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder.parent, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_metric_is_defined(run_folder):
    metrics = json.loads((run_folder / "metrics.json").read_text(encoding="utf-8"))
    defined = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")))
    assert sorted(set(metrics) - defined) == []


def test_the_promised_metrics_are_there(run_folder):
    metrics = json.loads((run_folder / "metrics.json").read_text(encoding="utf-8"))
    promised = [
        *("iteration_time_s", "makespan_s", "compute_s", "download_s", "upload_s", "bytes_down", "bytes_up"),
        *("peak_device_memory_bytes", "device_utilization", "energy_j", "devices", "rows", "lost_rows"),
        *("recovery_time_s", "wall_time_s", "events_sha256"),
    ]
    assert [name for name in promised if name not in metrics] == []


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").rglob("*.yaml")), ids=lambda p: p.name)
def test_every_shipped_scenario_is_valid(path, tmp_path):
    command = [str(MORPHLING), "check", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
