"""Measurements on disk: whole files, one host each, and nothing believed that does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from morphling.executors.live.cache import TimingCache, cache_folder
from morphling.executors.live.partition import Timing

HOST = {"back_end": "host", "cpu": "one"}


def written(folder, **seconds):
    cache = TimingCache(HOST, folder)
    for key, value in seconds.items():
        cache.put(key, Timing(value, 3, 0.01))
    cache.save()
    return cache


def test_what_is_saved_is_read_again(tmp_path):
    written(tmp_path, a=0.25, b=1e-6)
    cache = TimingCache(HOST, tmp_path)
    assert cache.get("a") == Timing(0.25, 3, 0.01)
    assert cache.get("c") is None
    assert cache.notes == []


def test_another_host_has_another_file(tmp_path):
    written(tmp_path, a=0.25)
    other = TimingCache({**HOST, "cpu": "two"}, tmp_path)
    assert other.get("a") is None
    assert other.path.name != TimingCache(HOST, tmp_path).path.name


def test_a_float_comes_back_to_the_bit(tmp_path):
    value = 0.1 + 0.2
    written(tmp_path, a=value)
    assert TimingCache(HOST, tmp_path).get("a").seconds == value


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace("0.25", "0.75"),
        lambda text: text.replace('"cpu": "one"', '"cpu": "two"'),
        lambda text: text.replace('"format": 1', '"format": 99'),
    ],
    ids=["cut off", "empty", "a list", "another number", "another host", "another format"],
)
def test_a_file_that_does_not_fit_is_put_aside(tmp_path, damage):
    path = written(tmp_path, a=0.25).path
    path.write_text(damage(path.read_text()))
    cache = TimingCache(HOST, tmp_path)
    assert cache.timings == {}
    assert any("broken" in note and "measured anew" in note for note in cache.notes)
    assert path.with_suffix(".broken.json").exists()
    cache.put("b", Timing(0.5, 1, 0.0))
    cache.save()
    assert TimingCache(HOST, tmp_path).get("b") == Timing(0.5, 1, 0.0)


@pytest.mark.parametrize("value", [0, -1.0, "fast", None, [1], 1e999])
def test_a_time_that_is_none_is_not_believed(tmp_path, value):
    from morphling.executors.live.cache import _digest

    path = written(tmp_path, a=0.25).path
    body = json.loads(path.read_text())
    body["measured"]["a"][0] = value
    body["sha256"] = _digest(body["measured"])
    path.write_text(json.dumps(body))
    assert TimingCache(HOST, tmp_path).timings == {}


def test_a_binary_file_is_put_aside(tmp_path):
    path = written(tmp_path, a=0.25).path
    path.write_bytes(b"\xff\xfe\x00")
    assert TimingCache(HOST, tmp_path).timings == {}


def test_a_folder_that_cannot_be_made_costs_only_the_keeping(tmp_path):
    (tmp_path / "file").write_text("")
    cache = written(tmp_path / "file" / "below", a=0.25)
    assert cache.get("a").seconds == 0.25
    assert any("not kept for later runs" in note for note in cache.notes)


def test_programs_that_write_at_once_lose_nothing(tmp_path):
    code = (
        "import sys, pathlib\n"
        "from morphling.executors.live.cache import TimingCache\n"
        "from morphling.executors.live.partition import Timing\n"
        "for i in range(20):\n"
        "    c = TimingCache({'back_end': 'host', 'cpu': 'one'}, pathlib.Path(sys.argv[1]))\n"
        "    c.put(f'{sys.argv[2]}-{i}', Timing(1.0, 1, 0.0))\n"
        "    c.put('both', Timing(float(sys.argv[2]), 1, 0.0)); c.save()\n"
    )
    programs = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(n)]) for n in (1, 2, 3)]
    assert [p.wait() for p in programs] == [0, 0, 0]
    cache = TimingCache(HOST, tmp_path)
    assert len(cache.timings) == 61
    assert cache.get("both").seconds in {1.0, 2.0, 3.0}
    assert cache.notes == []
    assert [p.suffix for p in tmp_path.iterdir() if p.suffix == ".part"] == []


def test_who_measured_first_is_repeated_by_all_later_runs(tmp_path):
    slow = TimingCache(HOST, tmp_path)
    written(tmp_path, a=0.25)
    slow.put("a", Timing(0.5, 1, 0.0))
    slow.save()
    assert TimingCache(HOST, tmp_path).get("a").seconds == 0.25


def test_stale_measurements_are_put_aside(tmp_path):
    cache = written(tmp_path, a=0.25)
    cache.drop("the host is another")
    assert cache.get("a") is None
    assert TimingCache(HOST, tmp_path).timings == {}
    assert cache.path.with_suffix(".stale.json").exists()


def test_where_it_is_kept(monkeypatch):
    monkeypatch.setenv("MORPHLING_CACHE_DIR", "/some/where")
    assert cache_folder() == Path("/some/where")
    monkeypatch.delenv("MORPHLING_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == Path("/caches/morphling")
