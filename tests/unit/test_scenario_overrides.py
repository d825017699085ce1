"""Overrides: they replace one value, and errors name them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from morphling.errors import ScenarioError
from morphling.scenario.overrides import apply_overrides
from morphling.scenario.yaml12 import read_yaml

TEXT = "a: 1\nfleet:\n  - {count: 1, link: {up: 5}}\n  - {count: 2}\nnothing:\n"


def applied(*overrides: str) -> object:
    return apply_overrides(read_yaml(TEXT, "f.yaml"), overrides).value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("5e9", 5e9),
        ("no", "no"),
        ("80 Mbit/s", "80 Mbit/s"),
        ("", None),
        ("{x: [1, b]}", {"x": [1, "b"]}),
        ("a=b", "a=b"),
    ],
)
def test_values_are_yaml(text: str, value: object) -> None:
    assert applied(f"fleet.1.count={text}")["fleet"][1] == {"count": value}  # type: ignore[index]


def test_missing_mappings_are_made_and_the_last_wins() -> None:
    assert applied("run.iterations=3", "nothing.x.y=1", "a=2", "a=3") == {
        "a": 3,
        "fleet": [{"count": 1, "link": {"up": 5}}, {"count": 2}],
        "nothing": {"x": {"y": 1}},
        "run": {"iterations": 3},
    }


def test_the_document_itself_is_not_changed() -> None:
    document = read_yaml(TEXT, "f.yaml")
    changed = apply_overrides(document, ["fleet.0.link.up=6", "fleet.0.link={down: 7}"])
    assert document.value["fleet"][0]["link"] == {"up": 5}
    assert changed.value["fleet"][0]["link"] == {"down": 7}
    assert changed.where(("fleet", 0, "link", "down")) == "--set fleet.0.link"
    assert changed.where(("fleet", 0, "count")) == "f.yaml:3:6"
    assert document.where(("fleet", 0, "link")) == "f.yaml:3:16"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("fleet.9.count=1", "--set fleet.9.count: no entry '9': fleet has entries 0 to 1"),
        ("fleet.-1.count=1", "--set fleet.-1.count: no entry '-1': fleet has entries 0 to 1"),
        ("fleet.x=1", "--set fleet.x: no entry 'x': fleet has entries 0 to 1"),
        ("a.b=1", "--set a.b: a is 1, which has no 'b' inside"),
        ("count", "--set count: write key=value, with dots between keys, such as fleet.0.count=8"),
        ("=1", "--set =1: write key=value"),
        ("a..b=1", "--set a..b=1: write key=value"),
        ("a=[1", "--set a:2:1: not YAML"),
        ("a={x: 1, x: 2}", "--set a:1:8: duplicate key 'x', first at --set a:1:2"),
    ],
)
def test_errors_name_the_override(override: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        applied(override)
    assert str(caught.value).startswith(message)


def test_a_mapping_of_typed_values() -> None:
    new = {"fleet.0.count": np.int64(7), "a": (1, Path("x/y")), "fleet.1": {"count": np.float64(0.5)}}
    value = apply_overrides(read_yaml(TEXT, "f.yaml"), new).value
    assert value["fleet"] == [{"count": 7, "link": {"up": 5}}, {"count": 0.5}]
    assert type(value["fleet"][0]["count"]) is int
    assert value["a"] == [1, "x/y"]


def test_all_wrong_overrides_at_once() -> None:
    with pytest.raises(ScenarioError) as caught:
        applied("x", "fleet.9=1", "a.b=1")
    assert len(caught.value.problems) == 3
