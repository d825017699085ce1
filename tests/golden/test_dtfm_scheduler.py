"""DT-FM's cost model and search against the public scheduler: 64 devices, 8 stages of 8, its own network presets.

Contiguous (stage k is devices 8k to 8k+7) and strided (devices k, k+8, ...) partitions have fixed costs; the search of
the public scheduler, run with 100 candidates and 400 offspring, ends at the better of the two in its default mode.
"""

from __future__ import annotations

import numpy as np
import pytest

from morphling.planning.dtfm import DtfmCosts, plan_dtfm

SIZE, STAGES = 64, 8
CITIES = ("oregon", "virginia", "ohio", "tokyo", "seoul", "london", "frankfurt", "ireland")
# ms and Gbit/s between cities, row by row of the upper triangle, in the order of CITIES
WORLD = (
    ((67, 0.79), (49, 1.10), (96, 0.523), (124, 0.46), (136, 0.42), (143, 0.404), (124, 0.482)),
    ((11, 1.12), (143, 0.524), (172, 0.5), (76, 1.16), (90, 1.02), (67, 1.05)),
    ((130, 0.694), (159, 0.529), (86, 1.05), (99, 0.799), (77, 1.14)),
    ((34, 1.10), (210, 0.366), (223, 0.36), (199, 0.465)),
    ((238, 0.342), (235, 0.358), (228, 0.335)),
    ((14, 1.14), (12, 1.09)),
    ((24, 1.08),),
)
# Virginia, Oregon, California, Ohio
REGIONS = (((67, 1.15), (59, 1.05), (11, 1.12)), ((12, 1.25), (49, 1.10)), ((52, 1.02),))


def between(table, a, b):
    a, b = min(a, b), max(a, b)
    return table[a][b - a - 1]


def datacentre(i, j):
    return (0, 100) if i // 8 == j // 8 else (0, 3.125)


def spot(i, j):
    return (0, 100) if i // 4 == j // 4 and max(i, j) < 32 else (0, 1.25)


def universities(i, j):
    return (1, 5) if i // 32 == j // 32 else (11, 1.12)


def regional(i, j):
    return (5, 2) if i // 16 == j // 16 else between(REGIONS, i // 16, j // 16)


def worldwide(i, j):
    return (5, 2) if i // 8 == j // 8 else between(WORLD, i // 8, j // 8)


def homogeneous(_i, _j):
    return (50, 1)


PRESETS = {f.__name__: f for f in (datacentre, spot, universities, regional, worldwide, homogeneous)}
CONTIGUOUS = np.arange(SIZE).reshape(STAGES, STAGES)
STRIDED = CONTIGUOUS.T


def costs(name):
    pairs = np.array([[PRESETS[name](i, j) for j in range(SIZE)] for i in range(SIZE)], float)
    # 0.65 GB of gradients a stage; the 0.4712 GiB of activations taken for GB, as the scheduler does
    return DtfmCosts(
        pairs[..., 0] / 1e3, pairs[..., 1] * 1e9 / 8, gradient_bytes=0.65e9, activation_bytes=0.471249e9, stages=STAGES
    )


@pytest.mark.parametrize(
    ("name", "groups", "total", "data_parallel", "pipeline"),
    [
        ("datacentre", CONTIGUOUS, 16.981, 0.091, 16.890),
        ("datacentre", STRIDED, 3.440, 2.912, 0.528),
        ("spot", CONTIGUOUS, 49.504, 7.280, 42.224),
        ("spot", STRIDED, 49.504, 7.280, 42.224),
        ("universities", CONTIGUOUS, 17.648, 1.834, 15.814),
        ("universities", STRIDED, 16.087, 5.517, 10.570),
        ("worldwide", CONTIGUOUS, 59.437, 4.620, 54.817),
        ("worldwide", STRIDED, 49.218, 22.758, 26.460),
    ],
)
def test_fixed_partitions(name, groups, total, data_parallel, pipeline):
    cost = costs(name).evaluate(groups)
    found = [round(x, 3) for x in (cost.total_s, cost.data_parallel_s, 2 * cost.pipeline_s)]
    assert found == [total, data_parallel, pipeline]


def test_equal_links_by_hand():
    # DP: 7 · 2 (0.05 + 0.65 · 8/8);  PP: 7 (0.05 + 0.471249 · 8)
    cost = costs("homogeneous").evaluate(CONTIGUOUS)
    assert cost.data_parallel_s == pytest.approx(7 * 2 * 0.70)
    assert cost.pipeline_s == pytest.approx(7 * (0.05 + 3.769992))
    assert cost.total_s == pytest.approx(9.8 + 2 * cost.pipeline_s)


@pytest.mark.parametrize("name", PRESETS)
def test_the_search_is_no_worse_than_the_better_of_the_two(name):
    model = costs(name)
    better = min(model.evaluate(groups).total_s for groups in (CONTIGUOUS, STRIDED))
    plan = plan_dtfm(model, 0, population=20, offspring=40, time_limit_s=None)
    assert plan.cost.total_s <= better + 1e-9
    assert not plan.cut


@pytest.mark.parametrize("name", ["datacentre", "universities", "regional", "worldwide"])
def test_the_search_gets_there_from_random_partitions_alone(name):
    model = costs(name)
    better = min(model.evaluate(groups).total_s for groups in (CONTIGUOUS, STRIDED))
    plan = plan_dtfm(model, 0, offspring=300, time_limit_s=None, structured=False)
    assert plan.cost.total_s <= better + 1e-9
