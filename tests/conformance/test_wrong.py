"""The suites catch strategies and executors that are wrong on purpose, each by the test that is about it."""

from __future__ import annotations

import re
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import SkipTest

import numpy as np
import pytest

from morphling.errors import PlanError
from morphling.executors.analytic import Analytic
from morphling.fleet.published import fleet_from_arrays
from morphling.interfaces.products import Products
from morphling.interfaces.strategy import Cancel, Dispatch, Done, IterationDone, Strategy, WakeAt
from morphling.interfaces.tasks import TaskTable
from morphling.testing import ExecutorConformance, Placement, StrategyConformance, replay, tiny_fleet, tiny_workload
from morphling.testing.worlds import fingerprint

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "plugin.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"^<!-- file: even_rows.py -->\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
page = types.ModuleType("even_rows_of_the_page")
sys.modules[page.__name__] = page  # dataclasses and pickles look it up by name
exec(compile(CODE, "docs/plugin.md", "exec"), page.__dict__)
EvenRows = page.EvenRows


def suite(strategy, **attributes):
    return type("Suite", (StrategyConformance,), {"strategy": strategy, **attributes})()


def names_of(one):
    return sorted(name for name in dir(one) if name.startswith("test_") and getattr(one, name))


def failing(one):
    """The names of the tests that do not pass."""
    wrong = []
    for name in names_of(one):
        try:
            getattr(one, name)()
        except SkipTest:
            continue
        except Exception:  # noqa: BLE001 - any way to fail counts
            wrong.append(name)
    return wrong


COVERED, ITERATIONS = "test_the_workload_is_covered", "test_iterations_are_counted"
CHURN, MEMORY = "test_it_finishes_under_churn", "test_memory_is_respected"
SEED, VIEW, PICKLE = "test_same_seed_same_decisions", "test_the_view_is_left_alone", "test_it_can_be_pickled"


def test_the_right_one_fails_nothing():
    assert failing(suite(EvenRows)) == []
    assert len(names_of(suite(EvenRows))) == 11


# --------------------------------------------------------------------------------------------------------------- tiles


class MissesATile(EvenRows):
    def bands(self, view, here, m, n, k):
        bands = super().bands(view, here, m, n, k)
        return bands.take(np.arange(len(bands) - 1)) if k == 256 else bands


class DoublesATile(EvenRows):
    def bands(self, view, here, m, n, k):
        bands = super().bands(view, here, m, n, k)
        return TaskTable.concat([bands, bands.take([0])]) if k == 256 else bands


class MissesOneDoublesAnother(EvenRows):
    """Rows say nothing of it: only places do."""

    def bands(self, view, here, m, n, k):
        bands = super().bands(view, here, m, n, k)
        self.at = [np.cumsum([0, *bands.m])[:-1].copy(), *getattr(self, "at", [])][:6]
        if k == 256:
            self.at[0][1] = self.at[0][0]
        return bands


class CountsNoFlops(EvenRows):
    def bands(self, view, here, m, n, k):
        bands = super().bands(view, here, m, n, k)
        return replace(bands, flops=bands.flops * 0.999)


class ReturnsNothing(EvenRows):
    def bands(self, view, here, m, n, k):
        bands = super().bands(view, here, m, n, k)
        return replace(bands, bytes_out=np.where(bands.k == 256, 0, bands.bytes_out))


class DownloadsTooMuch(EvenRows):
    def bands(self, view, here, m, n, k):
        bands = super().bands(view, here, m, n, k)
        return replace(bands, bytes_in=bands.bytes_in + 1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        # a down projection: 48 x 64 outputs in 4 bands of 12 rows, of 2 layers; dX of the up projection likewise
        (MissesATile, "dimension 256: 9,216 of 12,288 output elements were computed; some are missed"),
        (DoublesATile, "dimension 256: 15,360 output elements were computed, for 12,288; some twice"),
        (CountsNoFlops, "the devices' GEMMs: rows have"),
        (ReturnsNothing, "bytes of results are uploaded"),
        (DownloadsTooMuch, "rows download more bytes than their operands have"),
    ],
)
def test_tiles_that_do_not_add_up(wrong, said):
    with pytest.raises(AssertionError, match=said):
        suite(wrong).test_the_workload_is_covered()
    assert set(failing(suite(wrong))) == {COVERED, ITERATIONS, CHURN}


def test_results_that_stay_on_devices_can_be_declared():
    assert suite(ReturnsNothing, returns_results=False).test_the_workload_is_covered() is None


def places(self, strategy, dispatch):
    """Bands lie below each other; which GEMM a block is of follows from the order of the levels."""
    dag = self.workload().dag
    strategy.count = getattr(strategy, "count", -1) + 1
    levels = [[int(i) for i in level if dag.kind[i] == 0 and dag.place[i] == 0] for level in dag.levels()]
    levels = [level for level in levels if level]
    nodes = levels[strategy.count % len(levels)]
    bands = len(dispatch.tasks) // len(nodes)
    top = np.concatenate([np.cumsum([0, *dag_rows])[:-1] for dag_rows in np.split(dispatch.tasks.m, len(nodes))])
    if isinstance(strategy, MissesOneDoublesAnother):
        top = np.concatenate(strategy.at[: len(nodes)][::-1])
    return Placement(np.repeat(nodes, bands), top, np.zeros(len(top), np.int64))


def test_a_missed_and_a_doubled_tile_show_where_places_are_given():
    assert failing(suite(MissesOneDoublesAnother)) == []
    assert failing(suite(EvenRows, rectangles=places)) == []
    with pytest.raises(AssertionError, match=r"element \(0, 0\) is computed 2 times in 1 iterations"):
        suite(MissesOneDoublesAnother, rectangles=places).test_the_workload_is_covered()


def test_a_block_outside_its_output_is_refused():
    def shifted(self, strategy, dispatch):
        node, row, column, _ = places(self, strategy, dispatch)
        return Placement(node, row, column + 1)

    with pytest.raises(AssertionError, match=r"dispatch 0, row 0: the block lies outside layer 0 q_proj \(48 x 64\)"):
        suite(EvenRows, rectangles=shifted).test_the_workload_is_covered()


# ------------------------------------------------------------------------------------------------------ view and seed


class WritesToTheView(EvenRows):
    def start(self, view):
        view.fleet.memory_bytes[0] += 1
        return super().start(view)


class ForcesItsWayIntoTheView(EvenRows):
    def start(self, view):
        view.fleet.memory_bytes.flags.writeable = True
        view.fleet.memory_bytes[0] += 1
        return super().start(view)


class ChangesWhatItSent(EvenRows):
    def on_done(self, dispatch, rows, view):
        dispatch.tasks.memory_bytes[:] = 0
        return super().on_done(dispatch, rows, view)


@pytest.mark.parametrize("wrong", [WritesToTheView, ForcesItsWayIntoTheView, ChangesWhatItSent])
def test_what_is_not_theirs_to_change(wrong):
    assert VIEW in failing(suite(wrong))


def test_in_any_run_the_view_is_read_only():
    fleet = fleet_from_arrays(flops=[1e12] * 2, down_bps=[10**7] * 2, up_bps=[10**7] * 2, memory_bytes=10**9)
    with pytest.raises(ValueError, match="read-only"):
        replay(suite(WritesToTheView).made(), fleet, tiny_workload())
    assert fleet.memory_bytes.flags.writeable  # the fleet itself is the caller's
    assert fleet.memory_bytes.tolist() == [10**9] * 2


class DrawsWithoutASeed(EvenRows):
    def bands(self, view, here, m, n, k):
        return super().bands(view, np.random.default_rng().permutation(here), m, n, k)


class DrawsFromTheView(EvenRows):
    def bands(self, view, here, m, n, k):
        return super().bands(view, view.random("order").permutation(here), m, n, k)


def test_random_numbers_without_a_seed():
    assert SEED in failing(suite(DrawsWithoutASeed))
    assert failing(suite(DrawsFromTheView)) == []


# -------------------------------------------------------------------------------------------------------------- ending


class WakesForEver(EvenRows):
    def proceed(self, view):
        return [WakeAt(view.now_s + 1e-6)]

    def on_timer(self, tag, view):
        return self.proceed(view)


class WaitsForNothing(EvenRows):
    def proceed(self, view):
        return [] if len(self.todo) == 1 else super().proceed(view)


class DecidesForEver(EvenRows):
    def proceed(self, view):
        while True:
            yield Cancel(0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (WakesForEver, "never finishes: 50,000 hooks"),
        (WaitsForNothing, "the engine stopped WaitsForNothing: "),
        (DecidesForEver, "never finishes: one hook gave 100,000 decisions"),
    ],
)
def test_no_end(wrong, said):
    with pytest.raises(AssertionError, match=said):
        suite(wrong).test_the_workload_is_covered()


class SaysNoIterations(EvenRows):
    def proceed(self, view):
        return [d for d in super().proceed(view) if not isinstance(d, IterationDone)]


def test_iterations_that_are_not_told():
    assert failing(suite(SaysNoIterations)) == [ITERATIONS]


# -------------------------------------------------------------------------------------------------------------- memory


class LooksAtNoMemory(EvenRows):
    def proceed(self, view):
        self.made = []
        try:
            return super().proceed(view)
        except PlanError:
            self.under_way += 1
            return [Dispatch(TaskTable.concat(self.made))]

    def bands(self, view, here, m, n, k):
        self.made.append(super().bands(view, here, m, n, k))
        return self.made[-1]


class FillsMemoryBitByBit(EvenRows):
    """Each dispatch fits, and all are there at once."""

    def proceed(self, view):
        held = np.full(view.fleet.size, view.fleet.memory_bytes.min() * 3 // 4)
        one = TaskTable.build(device=np.arange(view.fleet.size), flops=1e12, resident_bytes=held, bytes_in=10)
        return [Dispatch(one), Dispatch(one, tag="last")] if not self.under_way else [Done()]

    def on_done(self, dispatch, rows, view):
        return [Done()] if dispatch.tag == "last" else []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(LooksAtNoMemory, r"would hold \d+ bytes of"), (FillsMemoryBitByBit, r"device \d holds [\d,]+ bytes at once")],
)
def test_memory_is_overfilled(wrong, said):
    with pytest.raises(AssertionError, match=said):
        suite(wrong).test_memory_is_respected()


# --------------------------------------------------------------------------------------------------------------- churn


class ForgetsLostRows(EvenRows):
    def on_lost(self, dispatch, rows, view):
        return ()


class HasNoRecovery(EvenRows):
    def on_lost(self, dispatch, rows, view):
        raise PlanError("a device left, and there is no plan for that")


def test_churn():
    assert failing(suite(ForgetsLostRows)) == [CHURN]
    assert failing(suite(HasNoRecovery)) == [CHURN]
    assert failing(suite(HasNoRecovery, recovers=False)) == []
    with pytest.raises(AssertionError, match="recovers is False, yet it went on"):
        suite(EvenRows, recovers=False).test_it_finishes_under_churn()


# ------------------------------------------------------------------------------------------------ pickles and reports


class HoldsALambda(EvenRows):
    def __init__(self, config):
        super().__init__(config)
        self.cost = lambda m: m


class ReportsAnEstimate(EvenRows):
    off = 1.0

    def report(self):
        return {"estimate_s": self.off}


class ReportsAnObject(EvenRows):
    def report(self):
        return {"plan": self}


def test_pickles_estimates_and_reports():
    assert failing(suite(HoldsALambda)) == [PICKLE]
    assert failing(suite(ReportsAnObject)) == ["test_the_report_can_be_saved"]
    took = replay(suite(EvenRows).made(), tiny_fleet(), tiny_workload()).recording.end_ns / 1e9
    for share, wrong in (
        (1.4, []),
        (0.6, []),
        (1.6, ["test_the_estimate_is_near"]),
        (0.4, ["test_the_estimate_is_near"]),
    ):
        assert (
            failing(suite(type("R", (ReportsAnEstimate,), {"off": share * took}), test_it_can_be_pickled=None)) == wrong
        )
    assert suite(type("R", (ReportsAnEstimate,), {"off": 1.9 * took}), margin=1.0).test_the_estimate_is_near() is None


# --------------------------------------------------------------------------------------------------------------- FLOPs


@dataclass(frozen=True)
class Nothing:
    pass


class Replicas(Strategy):
    """Every device does an equal share of every layer's FLOPs."""

    Config = Nothing
    covers = "flops"
    share = 1.0

    def start(self, view):
        dag, size = view.workload.dag, view.fleet.size
        flops = [dag.gemm_flops(layer=i) * self.share / size for i in range(view.workload.model.layers)]
        ends = 1e9  # whatever is done at the ends of the model
        rows = TaskTable.build(device=np.repeat(np.arange(size), len(flops) + 1), flops=[*flops, ends] * size)
        self.left, self.rows = view.iterations, rows
        return Dispatch(rows)

    def on_done(self, dispatch, rows, view):
        self.left -= 1
        return [IterationDone(), Dispatch(self.rows) if self.left else Done()]

    def on_lost(self, dispatch, rows, view):
        raise PlanError("no recovery")


class ForgetsAShare(Replicas):
    share = 2 / 3


class Sloppy(Replicas):
    covers = "everything"


class NamesMoreThanItDoes(Replicas):
    """Its table was changed after `TaskTable.build` had looked at it."""

    def start(self, view):
        super().start(view)
        honest = TaskTable.build(device=[0], flops=48.0, products=0, product_lists=(Products([(2, 3, 4)]),))
        self.rows = replace(honest, flops=np.array([47.0]))
        return Dispatch(self.rows)


class NamesASecondShape(NamesMoreThanItDoes):
    def start(self, view):
        super().start(view)
        self.rows = replace(self.rows, flops=np.array([48.0]), m=np.array([2]))
        return Dispatch(self.rows)


def test_lists_of_products_that_are_not_their_rows():
    with pytest.raises(AssertionError, match="row 0: its list of products has more FLOPs than the row"):
        suite(NamesMoreThanItDoes).test_the_workload_is_covered()
    with pytest.raises(AssertionError, match="rows have a shape and a list"):
        suite(NamesASecondShape).test_the_workload_is_covered()


def test_flops_of_each_layer():
    assert failing(suite(Replicas, recovers=False)) == []
    with pytest.raises(AssertionError, match=r"2 layers more are .* FLOPs of GEMMs a layer more, not"):
        suite(ForgetsAShare).test_the_workload_is_covered()
    assert (
        failing(suite(type("N", (ForgetsAShare,), {"covers": "none"}), recovers=False, test_it_can_be_pickled=None))
        == []
    )
    with pytest.raises(AssertionError, match="covers is 'everything'"):
        suite(Sloppy).test_the_workload_is_covered()


# ----------------------------------------------------------------------------------------------------------- executors


class Negative(Analytic):
    def durations(self, tasks, start_ns):
        return super().durations(tasks, start_ns) - 10**9


class Floats(Analytic):
    def durations(self, tasks, start_ns):
        return super().durations(tasks, start_ns) * 1.0


class TooFew(Analytic):
    def durations(self, tasks, start_ns):
        return super().durations(tasks, start_ns)[1:]


class Noisy(Analytic):
    def durations(self, tasks, start_ns):
        return super().durations(tasks, start_ns) + np.random.default_rng().integers(0, 1000, len(tasks))


class Warming(Analytic):
    def durations(self, tasks, start_ns):
        return super().durations(tasks, start_ns) * (2 if start_ns else 1)


class Greedy(Analytic):
    def durations(self, tasks, start_ns):
        found = super().durations(tasks, start_ns)
        tasks.flops[:] = 0
        return found


class Silent(Analytic):
    def describe(self):
        return {"executor": np.zeros(3)}


@pytest.mark.parametrize(
    ("wrong", "test"),
    [
        (Negative, "test_every_row_gets_whole_nanoseconds"),
        (Floats, "test_every_row_gets_whole_nanoseconds"),
        (TooFew, "test_every_row_gets_whole_nanoseconds"),
        (Noisy, "test_same_rows_same_durations"),
        (Warming, "test_same_rows_same_durations"),
        (Greedy, "test_rows_and_fleet_are_left_alone"),
        (Silent, "test_it_says_where_numbers_come_from"),
    ],
)
def test_wrong_executors(wrong, test):
    one = type("Suite", (ExecutorConformance,), {"executor": wrong})()
    assert test in failing(one)


def test_an_executor_that_measures_may_differ():
    assert failing(type("Suite", (ExecutorConformance,), {"executor": Noisy, "deterministic": False})()) == [
        "test_nothing_to_do_is_no_work"
    ]
    warming = type("W", (Warming,), {"stationary": False})
    assert failing(type("Suite", (ExecutorConformance,), {"executor": warming})()) == []


# -------------------------------------------------------------------------------------------------------------- worlds


def test_worlds_are_read_only_and_repeat():
    fleet, workload = tiny_fleet(), tiny_workload()
    assert fingerprint(fleet) == fingerprint(tiny_fleet()) != fingerprint(tiny_fleet(seed=1))
    assert fingerprint(workload) == fingerprint(tiny_workload()) != fingerprint(tiny_workload(3))
    for array in (fleet.memory_bytes, fleet.links.down_bps, fleet.availability.ptr, workload.dag.m):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_the_suites_import_no_pytest():
    import subprocess

    heavy = ("pytest", "_pytest", "matplotlib", "torch")
    code = f"import sys, morphling.testing; print([m for m in {heavy} if m in sys.modules])"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
