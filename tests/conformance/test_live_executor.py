"""The live executor passes the suite that ships for everybody's, on one CPU thread of this host."""

from __future__ import annotations

import pytest

from morphling.executors.live import Live
from morphling.executors.live.host import Host
from morphling.testing import ExecutorConformance


class TestLive(ExecutorConformance):
    """A new executor repeats what the first measured."""

    executor = Live
    config = {"backend": "host", "stand_in": "float32"}

    @pytest.fixture(autouse=True)
    def _own_cache(self, monkeypatch, tmp_path):
        monkeypatch.setenv("MORPHLING_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(Host, "stale_faster", 100.0)  # whatever else this machine is doing
        monkeypatch.setattr(Host, "stale_slower", 100.0)
