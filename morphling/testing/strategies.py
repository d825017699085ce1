"""The suite of a strategy: does it finish, cover the workload, keep within memory, repeat, and survive churn."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar
from unittest import SkipTest

import numpy as np

from morphling.errors import InputError, PlanError
from morphling.fleet import Fleet
from morphling.interfaces.strategy import Dispatch, Placement, Strategy
from morphling.results.sweep import sweep
from morphling.run import build
from morphling.scenario import LoadedScenario, load_scenario
from morphling.testing.accounts import GemmRows, layer_gemm_flops, require, require_lists
from morphling.testing.replay import Replayed, replay
from morphling.testing.worlds import coming_and_going, fingerprint, tiny_fleet, tiny_workload
from morphling.types import SECOND_NS
from morphling.workload import Workload

__all__ = ["Placement", "StrategyConformance"]

UNKNOWN = "no_such_key"


class StrategyConformance:
    """Derive a class whose name begins with ``Test``, set ``strategy`` and ``config``, and let pytest run it.

    strategy : the class
    config : what a scenario would write beside its name
    margin : largest share by which ``report()["estimate_s"]`` may miss the time of an iteration on a quiet fleet
    rounding : largest share by which FLOPs may differ from the workload's
    recovers : whether it goes on when devices leave; if not, it has to refuse with a ``PlanError``
    returns_results : whether rows upload their whole results (not if those stay on devices or are compressed)

    What is asked of rows depends on `Strategy.covers`; `rectangles` sharpens it.  The worlds can be replaced by methods
    of the same name.
    """

    strategy: ClassVar[type[Strategy]]
    config: ClassVar[Mapping[str, Any]] = {}
    margin: ClassVar[float] = 0.5
    rounding: ClassVar[float] = 1e-9
    recovers: ClassVar[bool] = True
    returns_results: ClassVar[bool] = True

    # ---------------------------------------------------------------------------------------------------------- worlds

    def fleet(self) -> Fleet:
        """The fleet, always there; at least 2 devices."""
        return tiny_fleet()

    def workload(self, layers: int = 2) -> Workload:
        """The workload, of that many layers."""
        return tiny_workload(layers)

    def layer_flops(self, workload: Workload) -> float:
        """For ``covers = "flops"``: what rows of kind GEMM add up to in one layer; by default all its GEMMs."""
        return layer_gemm_flops(workload)

    def rectangles(self, strategy: Strategy, dispatch: Dispatch) -> Placement | None:
        """For ``covers = "gemms"``: where the rows of a dispatch lie; by default what `Strategy.places` says.

        Asked when the dispatch is decided.  With it, each element of every output is counted; without (None) the number
        of elements of each inner dimension is, which a missed tile and a doubled one of the same size pass.
        """
        return strategy.places(dispatch)

    def made(self) -> Strategy:
        """A new strategy, made through the same door as in a run."""
        return build(self._scenario({})).strategy

    # ----------------------------------------------------------------------------------------------------------- tests

    def test_the_workload_is_covered(self) -> None:
        """It finishes, and its rows add up to what `Strategy.covers` says."""
        self._require_covered(1)

    def test_iterations_are_counted(self) -> None:
        """Two iterations are two times the work, and their ends are said."""
        run = self._require_covered(2)
        ends = len(run.recording.iteration_ends_ns)
        require(ends == 2, f"asked for 2 iterations, it said IterationDone {ends} times")

    def test_memory_is_respected(self) -> None:
        """With less and less memory it holds no more than there is, or refuses with a ``PlanError``."""
        if not self.made().enforces_memory:
            raise SkipTest("its model ignores memory, and says so")
        fleet, workload = self.fleet(), self.workload()
        peak = self._require_memory(fleet, workload)
        for share in (2, 8, 64):
            less = np.full(fleet.size, max(peak // share, 1), np.int64)
            self._require_memory(replace(fleet, memory_bytes=less), workload)

    def test_same_seed_same_decisions(self) -> None:
        """Nothing but the scenario and the seed decides: not the clock, not other random numbers."""
        fleet, workload = self.fleet(), self.workload()
        first, second = (replay(self.made(), fleet, workload, seed=1).recording.events_sha256 for _ in range(2))
        require(first == second, "two runs with the same seed differ; draw from view.random(name) only")

    def test_the_view_is_left_alone(self) -> None:
        """What the view shows and what was handed over stay as they are."""
        fleet, workload = self.fleet(), self.workload()
        before = fingerprint(fleet), fingerprint(workload)
        try:
            run = replay(self.made(), fleet, workload)
        except ValueError as error:
            require("read-only" not in str(error), f"it writes to an array of the view: {error}")
            raise
        require(before == (fingerprint(fleet), fingerprint(workload)), "it changed what the view shows")
        require(not run.changed_tables, f"it changed tables after it dispatched them: {run.changed_tables[:3]}")

    def test_it_finishes_under_churn(self) -> None:
        """Devices leave and come during the run: all of the work gets done, or it refuses with a ``PlanError``."""
        fleet, workload = self.fleet(), self.workload()
        quiet = replay(self.made(), fleet, workload).recording.end_ns
        unquiet = replace(fleet, availability=coming_and_going(fleet.size, quiet))
        if not self.recovers:
            try:
                replay(self.made(), unquiet, workload)
            except PlanError:
                return
            raise AssertionError("recovers is False, yet it went on when devices left; or is it True?")
        run = self._require_placed(unquiet, workload, 1, own=True)
        self._require_contract(run, unquiet, workload, 1)

    def test_it_can_begin_again(self) -> None:
        """With `Strategy.restarts`, one that has been through runs decides in the next as a new one does."""
        strategy = self.made()
        if not strategy.restarts:
            raise SkipTest("it does not say that it can begin again")
        fleet, workload = self.fleet(), self.workload()
        quiet = replay(self.made(), fleet, workload).recording
        unquiet = replace(fleet, availability=coming_and_going(fleet.size, quiet.end_ns))
        worlds = [fleet, unquiet, fleet, fleet] if self.recovers else [fleet, fleet]
        for number, there in enumerate(worlds, 1):
            again, new = (replay(s, there, workload).recording.events_sha256 for s in (strategy, self.made()))
            require(again == new, f"restarts is True, but run {number} of one instance differs from that of a new one")

    def test_it_can_be_pickled(self) -> None:
        """Before its start, as other processes need it."""
        strategy = self.made()
        config = pickle.loads(pickle.dumps(strategy.config))  # noqa: S301 - our own bytes
        same = config == strategy.config or repr(config) == repr(strategy.config)
        require(same, f"the Config comes out of a pickle as {config!r}")
        again = pickle.loads(pickle.dumps(strategy))  # noqa: S301
        fleet, workload = self.fleet(), self.workload()
        here, there = (replay(s, fleet, workload).recording.events_sha256 for s in (strategy, again))
        require(here == there, "out of a pickle it decides otherwise")

    def test_the_estimate_is_near(self) -> None:
        """``report()["estimate_s"]`` and the engine agree on a fleet where nothing changes."""
        run = replay(self.made(), self.fleet(), self.workload())
        estimate = run.strategy.report().get("estimate_s")
        if estimate is None:
            raise SkipTest("its report gives no estimate_s")
        took = run.recording.end_ns / SECOND_NS
        off = abs(estimate - took) / took
        require(off <= self.margin, f"estimate_s is {estimate:.4g}, the run took {took:.4g} s: {off:.0%} off")

    def test_unknown_keys_are_refused(self) -> None:
        """A typo in a scenario is an error that names it."""
        try:
            build(self._scenario({UNKNOWN: 1}))
        except InputError as error:
            require(UNKNOWN in str(error), f"the error does not name the unknown key: {error}")
            return
        raise AssertionError(f"a scenario with the unknown key {UNKNOWN!r} was taken")

    def test_the_report_can_be_saved(self) -> None:
        """``report()`` is a mapping of plain values, before and after a run."""
        strategy = self.made()
        before = strategy.report()
        replay(strategy, self.fleet(), self.workload())
        for said in (before, strategy.report()):
            require(isinstance(said, Mapping), f"report() is a {type(said).__name__}, not a mapping")
            json.dumps(said, default=_numpy_only)

    # ---------------------------------------------------------------------------------------------------------- pieces

    def _scenario(self, more: Mapping[str, Any]) -> LoadedScenario:
        """A scenario that names the class; only its strategy is used."""
        link = {"downlink": "8 Mbit/s", "uplink": "8 Mbit/s"}
        entry = {"profile": {"compute": "1 TFLOP/s", "memory": "1 GB"}, "count": 1, "link": link}
        return load_scenario(
            {
                "name": "conformance",
                "workload": {"model": "opt-125m", "batch_size": 1, "sequence_length": 8},
                "fleet": [entry],
                "strategy": {"plugin": self.strategy, **self.config, **more},
            }
        )

    def _require_covered(self, iterations: int) -> Replayed:
        fleet, workload = self.fleet(), self.workload()
        run = self._require_placed(fleet, workload, iterations)
        self._require_contract(run, fleet, workload, iterations)
        return run

    def _require_placed(self, fleet: Fleet, workload: Workload, iterations: int, *, own: bool = False) -> Replayed:
        """A run whose rows cover every output exactly once, if the strategy (or `rectangles`) says where they lie."""
        strategy = self.made()
        places: list[Placement | None] = []
        run = replay(
            strategy,
            fleet,
            workload,
            iterations=iterations,
            on_dispatch=lambda decided: places.append(
                strategy.places(decided) if own else self.rectangles(strategy, decided)
            ),
        )
        known = {serial: place for serial, place in enumerate(places) if place is not None}
        if strategy.covers == "gemms" and known:
            rows = GemmRows(run.recording, fleet.size, devices_only=True)
            rows.require_places(workload, iterations, known)
        return run

    def _require_contract(self, run: Replayed, fleet: Fleet, workload: Workload, iterations: int) -> None:
        covers = run.strategy.covers
        require(covers in ("gemms", "flops", "none"), f"covers is {covers!r}, not gemms, flops or none")
        for dispatch in run.dispatches:
            require_lists(dispatch.label, dispatch.tasks)
        if covers == "gemms":
            rows = GemmRows(run.recording, fleet.size, devices_only=True)
            rows.require_outputs(workload, iterations)
            wanted = 2.0 * float((rows.m.astype(float) * rows.n * rows.k).sum())
            rows.require_flops(wanted, self.rounding, "the devices' GEMMs")
            rows.require_bytes(workload, returned=self.returns_results)
        elif covers == "flops":
            self._require_layer_flops(run, fleet, workload, iterations)

    def _require_layer_flops(self, run: Replayed, fleet: Fleet, workload: Workload, iterations: int) -> None:
        """Twice the layers are that many layers' FLOPs more: so much is done in each, whatever is done at the ends."""
        layers = workload.model.layers
        more = self.workload(2 * layers)
        deeper = replay(self.made(), self.fleet(), more, iterations=iterations)
        mine, theirs = (_kept_flops(r, fleet.size) for r in (run, deeper))
        each = (theirs - mine) / (layers * iterations)
        wanted = self.layer_flops(workload)
        near = abs(each - wanted) <= self.rounding * wanted
        require(near, f"{layers} layers more are {each:.12g} FLOPs of GEMMs a layer more, not {wanted:.12g}")

    def _require_memory(self, fleet: Fleet, workload: Workload) -> int:
        """The highest peak of a device, bytes; 1 if the strategy refuses."""
        try:
            run = replay(self.made(), fleet, workload)
        except PlanError:
            return 1
        peak = sweep(run.recording.dispatches, fleet.size)[: fleet.size]
        over = np.flatnonzero(peak > fleet.memory_bytes)
        if len(over):
            d = int(over[0])
            raise AssertionError(f"device {d} holds {peak[d]:,} bytes at once, of {fleet.memory_bytes[d]:,}")
        return int(peak.max(initial=1))


def _kept_flops(run: Replayed, size: int) -> float:
    """FLOPs of the rows that count: where work is repeated, those of whole dispatches, each piece of work once.

    Pieces are told apart by how their label ends.
    """
    recording = run.recording
    if run.strategy.repeats_work:
        pieces = {}
        for dispatch in recording.dispatches:
            if not dispatch.lost.any():
                pieces[dispatch.label.removeprefix("recovery/replay ")] = dispatch
        recording = replace(recording, dispatches=list(pieces.values()))
    return float(GemmRows(recording, size, devices_only=False).flops.sum())


def _numpy_only(value: object) -> object:
    """Numbers and arrays of numpy become plain on the way into the run folder; anything else would become its name."""
    require(hasattr(value, "tolist"), f"report() holds {value!r}, which is no plain value")
    return value.tolist()  # type: ignore[attr-defined] # asked above
