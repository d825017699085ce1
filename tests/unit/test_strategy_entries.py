"""Strategies as people write them: names, keys, files, mappings, classes."""

from __future__ import annotations

import pytest

from morphling.errors import InputError, ScenarioError
from morphling.run.strategy_entries import Entry, read_entries, split_outside
from morphling.scenario import StrategyChoice
from morphling.strategies.cleave import Cleave

INSTALLED = ("cleave", "dtfm")


def entries(given):
    return read_entries(given, INSTALLED)


def test_names_and_keys():
    first, second = entries("cleave, cleave:model=paper:tiles=4")
    assert first == Entry("cleave", {"name": "cleave"})
    assert second == Entry("cleave:model=paper:tiles=4", {"name": "cleave"}, ("model=paper", "tiles=4"))


def test_commas_and_colons_inside_brackets_and_quotes_do_not_cut():
    (one, two) = entries("cleave:detection_s=[1, 2]:x={a: 1, b: 2},dtfm:note='a,b:c'")
    assert one.keys == ("detection_s=[1, 2]", "x={a: 1, b: 2}")
    assert two.keys == ("note='a,b:c'",)
    assert split_outside("a,[b,c],'d,e'", ",") == ["a", "[b,c]", "'d,e'"]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("", "a name is missing"),
        ([], "at least one"),
        ("cleave,,dtfm", "a name is missing"),
        ("cleave,cleave", "'cleave' is there twice"),
        ("cleave:paper", "'paper' is no key=value"),
        ("cleave:=3", "no key=value"),
        ("cleave:name=dtfm", "the name comes first"),
        ("cleave:x=[1", "not closed"),
        ("cleave:x=1]", "not closed"),
        ("mine.py", "names no class; write it as mine.py:Class"),
        ("nowhere/mine.py:Mine", "no such file: .*nowhere/mine.py"),
        ([3], "write a name, a mapping"),
        ([{"model": "paper"}], "either name or plugin"),
        ([{"name": "cleave", "plugin": "a.b:C"}], "either name or plugin"),
        ([{"name": "cleave", "a.b": 1}], "'a.b' is no key"),
        ([("", "cleave")], "no label"),
        ([("a", "cleave", "dtfm")], "a pair is"),
        ([("a", "cleave"), ("a", "dtfm")], "'a' is there twice"),
    ],
)
def test_what_cannot_be_read_is_refused(given, match):
    with pytest.raises(InputError, match=match):
        entries(given)


def test_files_are_relative_to_where_the_caller_stands(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("")
    monkeypatch.chdir(tmp_path)
    (one,) = entries("code/mine.py:Mine:wait=3")
    assert one == Entry("mine.py:Mine:wait=3", {"plugin": f"{tmp_path}/code/mine.py:Mine"}, ("wait=3",))


def test_modules_mappings_classes_and_labels():
    module, mapping, cls, labelled = entries(
        [
            "morphling.strategies.cleave:Cleave",
            {"name": "cleave", "model": "paper", "tiles": 3},
            Cleave,
            ("b", "dtfm:x=1"),
        ]
    )
    assert module.named == {"plugin": "morphling.strategies.cleave:Cleave"}
    assert (mapping.label, mapping.values) == ("cleave:model=paper:tiles=3", {"model": "paper", "tiles": 3})
    assert (cls.label, cls.named) == ("Cleave", {"plugin": Cleave})
    assert (labelled.label, labelled.keys) == ("b", ("x=1",))


OWN = StrategyChoice(name="cleave", tiles=9)


def test_own_keys_stay_where_it_is_the_same_strategy():
    own, changed, other, mapped = entries(["cleave", "cleave:model=paper", "dtfm:x=1", {"name": "cleave", "tiles": 2}])
    assert own.overrides(OWN, None) == []
    assert changed.overrides(OWN, None) == ["strategy.model=paper"]
    assert other.overrides(OWN, None) == [("strategy", {"name": "dtfm"}), "strategy.x=1"]
    assert mapped.overrides(OWN, None) == [("strategy.tiles", 2)]


def test_faults_are_told_under_the_entry_that_brought_them_in():
    (keyed,) = entries("cleave:modle=paper")
    lines = ["--set strategy.modle: unknown key", "--set strategy.tiles: 3 is not 4", "a.yaml:3:1: name: no"]
    assert keyed.fault(ScenarioError(lines)).problems == (
        "--strategies cleave:modle=paper: modle: unknown key",
        "--set strategy.tiles: 3 is not 4",
        "a.yaml:3:1: name: no",
    )
    (other,) = entries("clave")
    told = other.fault(ScenarioError("--set strategy: strategy.name: unknown name 'clave'")).problems
    assert told == ("--strategies clave: strategy.name: unknown name 'clave'",)
