"""The strategy that the plug-in page shows runs, and does what the page says."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
DEVICES = 5


@pytest.fixture
def page(monkeypatch):
    text = (ROOT / "docs" / "plugin.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    # Dataclasses look up the module that they are defined in.
    module = types.ModuleType("plugin_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, "docs/plugin.md", "exec"), module.__dict__)
    return module


@pytest.fixture
def recording(page):
    from morphling.engine import Engine
    from morphling.executors.analytic import Analytic
    from morphling.fleet.published import cleave_fleet
    from morphling.types import DType
    from morphling.workload import model_named, training_step

    fleet = cleave_fleet(DEVICES)
    workload = training_step(model_named("opt-125m"), 2, 16, DType.FLOAT16)
    engine = Engine(fleet, workload, page.EvenRows(page.EvenRowsConfig()), Analytic(fleet=fleet), compiled=False)
    return engine.run()


def test_every_device_gets_a_band_of_every_gemm(recording):
    # 12 layers of 6 linear GEMMs, each forward, dX and dW.
    assert sum(len(d) for d in recording.dispatches) == 12 * 6 * 3 * DEVICES
    counts = np.bincount(np.concatenate([d.tasks.device for d in recording.dispatches]))
    assert counts.tolist() == [12 * 6 * 3] * DEVICES


def test_all_flops_of_the_linear_layers_are_done(recording):
    flops = sum(float(d.tasks.flops.sum()) for d in recording.dispatches)
    assert flops == 3 * 2 * (2 * 16) * 12 * (4 * 768 * 768 + 2 * 768 * 3072)
    assert not any(d.lost.any() for d in recording.dispatches)
    assert recording.end_ns > 0
