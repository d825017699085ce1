"""YAML 1.2: what the core schema says, not what YAML 1.1 guessed; positions; duplicates."""

from __future__ import annotations

import math

import pytest

from morphling.errors import ScenarioError
from morphling.scenario.yaml12 import dump, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e9", 5e9),
        ("5.e9", 5e9),
        ("1E3", 1000.0),
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("190:20:30.15", "190:20:30.15"),
        ("2024-01-01", "2024-01-01"),
        ("-12", -12),
        ("+12", 12),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("~", None),
        ("null", None),
        ("", None),
        ("'5e9'", "5e9"),
        ("!!str 5", "5"),
        ("!!float 5", 5.0),
        ("80 Mbit/s", "80 Mbit/s"),
        ("=", "="),
        ("[1, two, 3.0]", [1, "two", 3.0]),
    ],
)
def test_core_schema(text: str, value: object) -> None:
    found = read_yaml(f"a: {text}\n", "f.yaml").value["a"]
    assert found == value
    assert type(found) is type(value)


def test_nan() -> None:
    assert math.isnan(read_yaml("a: .nan", "f").value["a"])


@pytest.mark.parametrize(
    "value", ["5e9", "no", "010", "0o17", "1:30", "~", "", "true", "<<", "a: b", "# x", 5e9, 1e-5, None]
)
def test_what_is_written_is_read_back(value: object) -> None:
    found = read_yaml(dump({"a": value, "b": [value]}), "f").value
    assert found == {"a": value, "b": [value]}
    assert type(found["a"]) is type(value)


def test_positions_of_keys_and_values() -> None:
    document = read_yaml("a: 1\nb:\n  - c: 2\n  - {d: 3}\n", "f.yaml")
    assert document.where(("b",)) == "f.yaml:2:1"
    assert document.where(("b", 0, "c")) == "f.yaml:3:5"
    assert document.where(("b", 0, "c"), value=True) == "f.yaml:3:8"
    assert document.where(("b", 1, "d")) == "f.yaml:4:6"
    assert document.where(("b", 1, "missing")) == "f.yaml:4:5"


def test_duplicate_keys_name_both_places() -> None:
    with pytest.raises(ScenarioError) as caught:
        read_yaml("a: 1\nb: {c: 1, c: 2}\na: 2\n", "f.yaml")
    assert caught.value.problems == (
        "f.yaml:2:11: duplicate key 'c', first at f.yaml:2:5",
        "f.yaml:3:1: duplicate key 'a', first at f.yaml:1:1",
    )


def test_anchors_and_merge_keys() -> None:
    text = "base: &b {x: 1, y: 2}\none: {<<: *b, y: 3}\ntwo: [*b, *b]\nmany: {<<: [*b, {z: 4}], x: 9}\n"
    value = read_yaml(text, "f").value
    assert value["one"] == {"x": 1, "y": 3}
    assert value["two"] == [{"x": 1, "y": 2}] * 2
    assert value["many"] == {"x": 9, "y": 2, "z": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2", "f.yaml:2:2: not YAML:"),
        ("a: 1\n---\nb: 2", "f.yaml:2:1: not YAML:"),
        ("a: &x [*x]", "f.yaml:1:4: an anchor that contains itself"),
        ("a: &x {<<: *x}", "f.yaml:1:4: an anchor that contains itself"),
        ("a: *nobody", "not YAML: found undefined alias"),
        ("a: !!python/object:os.system x", "f.yaml:1:4: unknown tag '!!python/object:os.system'"),
        ("a: !mine [1]", "f.yaml:1:4: unknown tag '!mine'"),
        ("a: !!int x", "f.yaml:1:4: 'x' is not a YAML int"),
        ("a: 1e999", "f.yaml:1:4: '1e999' is out of range"),
        (f"a: {'9' * 5000}", f"f.yaml:1:4: '{'9' * 40}' is out of range"),
        ("1: a", "f.yaml:1:1: the key '1' is not text; put it in quotes"),
        ("true: a", "f.yaml:1:1: the key 'true' is not text; put it in quotes"),
        ("[1]: a", "f.yaml:1:1: the key is not text; put it in quotes"),
        ("a: {<<: 5}", "f.yaml:1:9: only mappings can be merged with '<<'"),
        ("a: \t- b", "not YAML"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read_yaml(text, "f.yaml")
    assert message in str(caught.value)


def test_an_alias_bomb_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(ScenarioError, match="aliases repeat more than 100000 values"):
        read_yaml("\n".join(lines), "f")


@pytest.mark.parametrize("depth", [900, 20_000])
def test_deep_nesting_is_an_error_not_a_crash(depth: int) -> None:
    with pytest.raises(ScenarioError, match=r"nested too deeply|not YAML"):
        read_yaml("[" * depth + "]" * depth, "f")


def test_control_characters_are_refused() -> None:
    with pytest.raises(ScenarioError, match="not YAML"):
        read_yaml("a: \x00b", "f")
