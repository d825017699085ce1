"""The suite of an executor: durations that the engine can use, and that repeat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from morphling.errors import InputError
from morphling.fleet import Fleet
from morphling.interfaces.executor import Executor
from morphling.interfaces.tasks import TaskTable
from morphling.scenario import configured, load_scenario
from morphling.testing.accounts import require
from morphling.testing.worlds import fingerprint, tiny_fleet
from morphling.types import DType, Kind

__all__ = ["ExecutorConformance"]

UNKNOWN = "no_such_key"


class ExecutorConformance:
    """Derive a class whose name begins with ``Test``, set ``executor`` and ``config``, and let pytest run it.

    executor : the class
    config : what a scenario would write under ``execution`` beside its name
    deterministic : whether asking again gives the same durations (real measurements need not)
    """

    executor: ClassVar[type[Executor]]
    config: ClassVar[Mapping[str, Any]] = {}
    deterministic: ClassVar[bool] = True

    def fleet(self) -> Fleet:
        """The fleet whose rows are timed."""
        return tiny_fleet()

    def tasks(self, fleet: Fleet) -> TaskTable:
        """Rows of many sizes on every device and on the coordinator, in float16."""
        sizes = np.array([1, 7, 64, 256, 1024])
        m, n, k = (axis.ravel() for axis in np.meshgrid(sizes, sizes[1:4], sizes[2:4]))
        return TaskTable.build(device=np.arange(len(m)) % (fleet.size + 1), m=m, n=n, k=k, dtype=DType.FLOAT16)

    def made(self, fleet: Fleet) -> Executor:
        """A new executor, its configuration checked as in a run."""
        return self.executor(self._config({}), fleet=fleet)  # type: ignore[call-arg] # as the interface says in words

    # ----------------------------------------------------------------------------------------------------------- tests

    def test_every_row_gets_whole_nanoseconds(self) -> None:
        """int64[n], none below 0; also of no rows at all."""
        fleet = self.fleet()
        executor = self.made(fleet)
        require(isinstance(executor, Executor), f"{self.executor.__name__} does not make an Executor")
        for tasks in (self.tasks(fleet), self.tasks(fleet).take([0]), self.tasks(fleet).take(np.zeros(0, np.int64))):
            found = executor.durations(tasks, 0)
            require(isinstance(found, np.ndarray), f"durations are a {type(found).__name__}, not an array")
            require(found.dtype == np.int64, f"durations are {found.dtype}, not int64")
            require(found.shape == (len(tasks),), f"durations of {len(tasks)} rows have shape {found.shape}")
            require(not len(found) or found.min() >= 0, f"a duration is below 0: {found.min(initial=0)} ns")

    def test_same_rows_same_durations(self) -> None:
        """Asked again, and asked of a new executor; ``stationary`` means at any time."""
        if not self.deterministic:
            return
        fleet = self.fleet()
        tasks, executor = self.tasks(fleet), self.made(fleet)
        first = executor.durations(tasks, 0).copy()
        require((executor.durations(tasks, 0) == first).all(), "asked again, it gives other durations")
        require((self.made(fleet).durations(tasks, 0) == first).all(), "a new one gives other durations")
        if executor.stationary:
            later = executor.durations(tasks, 3_600_000_000_000)
            require((later == first).all(), "it says it is stationary, and gives other durations an hour later")

    def test_rows_and_fleet_are_left_alone(self) -> None:
        """Timing changes nothing."""
        fleet = self.fleet()
        tasks = self.tasks(fleet)
        before = fingerprint(tasks), fingerprint(fleet)
        self.made(fleet).durations(tasks, 0)
        require(before == (fingerprint(tasks), fingerprint(fleet)), "it changed the rows or the fleet")

    def test_nothing_to_do_is_no_work(self) -> None:
        """A bare transfer computes for no time."""
        fleet = self.fleet()
        tasks = TaskTable.build(device=np.arange(fleet.size), kind=Kind.TRANSFER, bytes_in=1000)
        found = self.made(fleet).durations(tasks, 0)
        require(not found.any(), f"a transfer without work would compute for {found.max(initial=0)} ns")

    def test_it_says_where_numbers_come_from(self) -> None:
        """``describe()`` is a mapping of plain JSON values that names the executor."""
        said = self.made(self.fleet()).describe()
        require(isinstance(said, Mapping) and "executor" in said, "describe() has no key 'executor'")
        json.dumps(said, allow_nan=False)

    def test_unknown_keys_are_refused(self) -> None:
        """A typo in a scenario is an error that names it."""
        try:
            self._config({UNKNOWN: 1})
        except InputError as error:
            require(UNKNOWN in str(error), f"the error does not name the unknown key: {error}")
            return
        raise AssertionError(f"a scenario with the unknown key {UNKNOWN!r} was taken")

    def _config(self, more: Mapping[str, Any]) -> Any:
        link = {"downlink": "8 Mbit/s", "uplink": "8 Mbit/s"}
        entry = {"profile": {"compute": "1 TFLOP/s", "memory": "1 GB"}, "count": 1, "link": link}
        values = {**self.config, **more}
        loaded = load_scenario(
            {
                "name": "conformance",
                "workload": {"model": "opt-125m", "batch_size": 1, "sequence_length": 8},
                "fleet": [entry],
                "strategy": {"name": "cleave"},
                "execution": values,
            }
        )
        return configured(loaded, "execution", values, self.executor.Config)
