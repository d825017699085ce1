"""Real operands: what is put together from sub-tasks is the product, and where it is not the run fails."""

from __future__ import annotations

import numpy as np
import pytest

from morphling.engine import Engine
from morphling.errors import RunError
from morphling.executors.live import Live, LiveConfig
from morphling.executors.live.host import Host
from morphling.executors.live.numerics import relative_error, tolerance
from morphling.interfaces.strategy import Dispatch, Done, IterationDone, Placement, Strategy
from morphling.interfaces.tasks import TaskTable
from morphling.testing import tiny_fleet, tiny_workload
from morphling.types import DType, Kind
from morphling.workload import Place
from tests.live_back_ends import Formula


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MORPHLING_CACHE_DIR", str(tmp_path / "kept"))


class Blocks(Strategy):
    """Every GEMM of the devices in blocks of half its rows and a third of its columns, with the inner dimension whole
    or in two halves; all at once.  ``spoil`` may change the table and where its rows lie.
    """

    Config = object
    says = True

    def __init__(self, halves=1, iterations=1, spoil=lambda tasks, place: (tasks, place)):
        super().__init__(None)
        self.halves, self.left, self.spoil = halves, iterations, spoil

    def start(self, view):
        dag = view.workload.dag
        mine = np.flatnonzero((dag.kind == Kind.GEMM) & (dag.place == Place.DEVICES))
        cuts = []
        for node in mine.tolist():
            m, n, k = (int(x[node]) for x in (dag.m, dag.n, dag.k))
            for r0, r1 in ((0, m // 2), (m // 2, m)):
                for c0, c1 in ((0, n // 3), (n // 3, 2 * n // 3), (2 * n // 3, n)):
                    for i in range(self.halves):
                        i0, i1 = i * k // self.halves, (i + 1) * k // self.halves
                        cuts.append((node, r0, c0, i0, r1 - r0, c1 - c0, i1 - i0))
        node, row, column, inner, m, n, k = np.array(cuts, np.int64).T
        tasks = TaskTable.build(device=np.arange(len(m)) % view.fleet.size, m=m, n=n, k=k, dtype=DType.FLOAT16)
        self.table, self.place = self.spoil(tasks, Placement(node, row, column, inner))
        return Dispatch(self.table)

    def on_done(self, dispatch, rows, view):
        self.left -= 1
        return [IterationDone(), Dispatch(self.table) if self.left else Done()]

    def places(self, dispatch):
        return self.place if self.says else None


def run(strategy, back_end=None, iterations=1, **config):
    fleet = tiny_fleet()
    config = {"numerics": True, "stand_in": "float32", **config}
    executor = Live(LiveConfig(**config), fleet=fleet, back_end=back_end or Formula(dtypes=(DType.FLOAT32,)))
    workload = tiny_workload()
    recording = Engine(fleet, workload, strategy, executor, iterations=iterations, compiled=False).run()
    executor.finish(recording, workload)
    return executor.describe()["numerics"]


@pytest.mark.parametrize("halves", [1, 2])
def test_the_assembled_product_is_the_product(halves):
    found = run(Blocks(halves), Host())
    # forward and both backward passes of the six linear layers of each of two layers, the like of them once
    assert found["assembled_products"] > 0
    assert found["assembled_tiles"] == 6 * halves * found["assembled_products"]
    assert found["placed_dispatches"] == 1
    assert found["max_relative_error"] < tolerance(DType.FLOAT32, 256)


def test_every_iteration_is_checked():
    assert run(Blocks(iterations=3), iterations=3)["placed_dispatches"] == 3


def without(row):
    def spoil(tasks, place):
        keep = np.delete(np.arange(len(tasks)), row)
        return tasks.take(keep), Placement(*(x[keep] for x in place))

    return spoil


def moved(tasks, place):
    row = place.row.copy()
    row[0] += 1
    return tasks, place._replace(row=row)


def twice(tasks, place):
    again = np.append(np.arange(len(tasks)), 3)
    return tasks.take(again), Placement(*(x[again] for x in place))


def first_product_left_out(tasks, place):
    return without(np.flatnonzero(place.node == place.node[0]))(tasks, place)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without([4]), r"nobody computes rows \d+ to \d+, columns \d+ to \d+"),
        (twice, r"is computed 2 times"),
        (moved, r"nobody computes rows 0 to 1|is computed 2 times"),
        (first_product_left_out, r"is not computed in iteration 1"),
    ],
    ids=["a missing tile", "a doubled tile", "a moved tile", "a missing product"],
)
def test_a_plan_that_does_not_cover_the_product_is_caught(spoil, said):
    with pytest.raises(RunError, match=f"numerics: .*{said}"):
        run(Blocks(spoil=spoil))


def test_a_tile_outside_the_product_is_caught():
    def spoil(tasks, place):
        return tasks, place._replace(column=place.column + 1_000)

    with pytest.raises(RunError, match=r"lies outside it"):
        run(Blocks(spoil=spoil))


class Wrong(Formula):
    """Multiplies wrongly: a share of the largest element is added to one."""

    share = 1e-3

    def multiply(self, a, b, dtype, partition):
        out = a @ b
        if a.shape[0] < 48:  # sub-tasks, not the whole
            out[0, 0] += self.share * np.abs(out).max()
        return out


def test_an_error_beyond_rounding_fails_the_run():
    with pytest.raises(RunError, match=r"numerics: .*relative error is .*rounding explains"):
        run(Blocks(), Wrong(dtypes=(DType.FLOAT32,)))


def test_where_rows_lie_unsaid_each_sub_task_is_checked_by_itself():
    quiet = Blocks()
    quiet.says = False
    found = run(quiet)
    assert found["assembled_products"] == 0
    assert found["sub_tasks_by_themselves"] > 0
    quiet = Blocks()
    quiet.says = False
    with pytest.raises(RunError, match=r"numerics: sub-task .*relative error"):
        run(quiet, Wrong(dtypes=(DType.FLOAT32,)))


def test_a_check_that_takes_too_long_is_refused():
    with pytest.raises(RunError, match=r"max_measure_s"):
        run(Blocks(), Formula((1e6,), dtypes=(DType.FLOAT32,)), max_measure_s=1e-3)


def test_errors_are_relative_to_the_largest_element():
    whole = np.array([[4.0, 2.0]])
    assert relative_error(np.array([[4.0, 2.5]]), whole) == 0.125
    assert relative_error(whole, whole) == 0.0
    assert relative_error(np.array([[4.0, np.nan]]), whole) == np.inf
    assert tolerance(DType.FLOAT32, 256) == 16 * 2.0**-23 * 16
    assert tolerance(DType.FLOAT16, 256) == tolerance(DType.FLOAT32, 256) + 4 * 2.0**-10
