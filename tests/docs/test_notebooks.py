"""Notebooks use the public screen only, and hold what they drew.  `test_wheel.py` runs them where no checkout is."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import morphling

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def code(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [c for c in cells if c["cell_type"] == "code"]


def test_there_is_one():
    assert "01_compare_strategies.ipynb" in [p.name for p in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_it_uses_the_public_screen_only(path):
    for cell in code(path):
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("morphling")
            if isinstance(node, ast.Import):
                assert all(not a.name.startswith("morphling.") for a in node.names)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "morphling":
                assert node.attr in morphling.__all__


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_it_holds_its_pictures_and_no_errors(path):
    outputs = [o for cell in code(path) for o in cell["outputs"]]
    assert any("image/png" in o.get("data", {}) for o in outputs)
    assert all(o["output_type"] != "error" for o in outputs)
