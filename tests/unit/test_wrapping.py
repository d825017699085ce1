"""A wrapper forwards every hook and promise of a strategy, those that are still to come too."""

from __future__ import annotations

import inspect
from typing import ClassVar

import pytest

from morphling.emulate import clock, replicas
from morphling.interfaces.strategy import Strategy
from morphling.interfaces.wrapping import WrappedStrategy
from morphling.testing.replay import _Watched

PUBLIC = sorted(name for name in {*vars(Strategy), *Strategy.__annotations__} if not name.startswith("_"))
OWN = {"Config"}
"""A wrapper has no configuration of its own; ``config`` is that of the inner one."""
HOOKS = [name for name in PUBLIC if inspect.isfunction(vars(Strategy).get(name))]
PROMISES = [name for name in PUBLIC if name not in {*HOOKS, *OWN}]


class Marked(WrappedStrategy):
    """Says through which hands decisions went."""

    def passed(self, decisions):
        return ["passed", decisions]


class Inner:
    """Answers whatever it is asked with the name and the arguments."""

    config = "the configuration"

    def __getattr__(self, name):
        if name in HOOKS:
            return lambda *arguments: (name, arguments)
        return f"the {name}"


def test_there_is_something_to_forward():
    assert {"start", "on_done", "on_progress", "places", "shares", "report"} <= set(HOOKS)
    assert {"name", "uses_peers", "repeats_work", "restarts", "waiting_for", "covers"} <= set(PROMISES)


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_are_forwarded(name):
    taken = list(inspect.signature(vars(Strategy)[name]).parameters)[1:]
    arguments = tuple(f"the {x}" for x in taken)
    decides = "Decisions" in str(inspect.signature(vars(Strategy)[name]).return_annotation)
    answer = getattr(Marked(Inner()), name)(*arguments)
    assert answer == (["passed", (name, arguments)] if decides else (name, arguments))


@pytest.mark.parametrize("name", PROMISES)
def test_promises_are_forwarded(name):
    assert getattr(Marked(Inner()), name) == f"the {name}"


def test_what_the_inner_one_says_later_counts():
    class Waits(Strategy):
        Config: ClassVar[type] = object

        def start(self, view):
            return ()

    inner = Waits("the configuration")
    outer = Marked(inner)
    assert (outer.waiting_for, outer.uses_peers, outer.config) == ("", False, "the configuration")
    inner.waiting_for, inner.uses_peers = "two more devices", True
    assert (outer.waiting_for, outer.uses_peers) == ("two more devices", True)


@pytest.mark.parametrize("wrapper", [replicas._Paused, clock._Turns, _Watched])
def test_all_that_wrap_are_wrappers(wrapper):
    assert issubclass(wrapper, WrappedStrategy)
    # what decides goes through `passed`; only these three change on the way in, for products of a script
    changed = {name for name in HOOKS if name in vars(wrapper)}
    known = {"start", "on_done", "on_lost", "on_joined", "on_left", "on_timer"}
    assert changed <= (known if wrapper is clock._Turns else set())
