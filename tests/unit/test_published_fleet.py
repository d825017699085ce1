"""The published Cleave fleet, and fleets from arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from morphling.errors import InputError
from morphling.fleet.published import cleave_draw, cleave_fleet, fleet_from_arrays, unlimited_coordinator
from morphling.types import DType


def test_the_draw_has_the_published_sums():
    drawn = cleave_draw(256)
    assert drawn.up_mb.sum() == 1805
    assert drawn.down_mb.sum() == 13786
    assert drawn.tera_flops.sum() == pytest.approx(1530.355385, abs=1e-6)


def test_the_first_devices_are_the_published_ones():
    drawn = cleave_draw(256)
    assert drawn.tera_flops[:3] == pytest.approx([5.749080, 6.901429, 6.463988], abs=1e-6)
    assert drawn.up_mb[:5].tolist() == [6, 7, 6, 6, 7]
    assert drawn.down_mb[:5].tolist() == [99, 28, 48, 76, 54]


def test_the_fleet_is_in_base_units():
    fleet, drawn = cleave_fleet(256), cleave_draw(256)
    down, up = fleet.links.nominal_bps()
    assert fleet.size == 256
    assert up.sum() == 1805 * 8 * 2**20
    assert down.sum() == 13786 * 8 * 2**20
    assert fleet.links.down_bps.dtype == np.int64
    for dtype in (DType.FLOAT16, DType.FLOAT32):
        assert fleet.compute_flops(dtype).tolist() == (drawn.tera_flops * 2.0**40).tolist()
    assert np.all(np.isnan(fleet.compute_flops(DType.INT8)))
    assert not fleet.links.latency_ns.any()
    assert np.all(np.isinf(fleet.memory_bandwidth))
    assert set(fleet.memory_bytes.tolist()) == {3_000_000_000}
    assert fleet.names()[7] == "cleave-published#7"


def test_the_coordinator_of_the_paper_binds_nothing():
    coordinator = cleave_fleet(8).coordinator
    assert coordinator.downlink_bps is None
    assert coordinator.uplink_bps is None
    assert coordinator.compute_flops(DType.FLOAT16) == math.inf
    assert coordinator.sources


def test_stragglers_are_slow_in_all_three_and_leave_the_rest_alone():
    plain, slowed = cleave_draw(256), cleave_draw(256, stragglers=0.2)
    assert len(slowed.stragglers) == 52  # ceil(51.2)
    assert slowed.stragglers[:5].tolist() == [91, 170, 203, 15, 148]
    factor = np.ones(256)
    factor[slowed.stragglers] = 0.1
    assert slowed.tera_flops == pytest.approx(plain.tera_flops * factor)
    assert slowed.up_mb == pytest.approx(plain.up_mb * factor)
    assert slowed.down_mb == pytest.approx(plain.down_mb * factor)


@pytest.mark.parametrize(("n", "share", "count"), [(100, 0.07, 7), (256, 0.05, 13), (10, 1.0, 10), (10, 0.0, 0)])
def test_the_number_of_stragglers_is_rounded_up_once(n, share, count):
    assert len(cleave_draw(n, stragglers=share).stragglers) == count


def test_straggler_links_are_whole_bits():
    fleet = cleave_fleet(64, stragglers=0.2)
    drawn = cleave_draw(64, stragglers=0.2)
    assert fleet.links.up_bps == pytest.approx(drawn.up_mb * 8 * 2**20, abs=0.5)


def test_the_asymmetry_sweep_fixes_the_uplink():
    fleet = cleave_fleet(16, down_up_ratio=20)
    assert set(fleet.links.up_bps.tolist()) == {int(7.5 * 8 * 2**20)}
    assert set(fleet.links.down_bps.tolist()) == {150 * 8 * 2**20}
    assert fleet.compute_flops(DType.FLOAT16).tolist() == cleave_fleet(16).compute_flops(DType.FLOAT16).tolist()


def _global_state() -> list[int]:
    return np.random.mtrand._rand.get_state()[1].tolist()


def test_another_seed_is_another_fleet_and_the_global_generator_is_left_alone():
    state = _global_state()
    assert cleave_draw(16, seed=1).tera_flops.tolist() != cleave_draw(16).tera_flops.tolist()
    assert _global_state() == state


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"n": 0}, "at least one device"),
        ({"n": 4, "stragglers": 1.5}, "not a share between 0 and 1"),
        ({"n": 4, "stragglers": math.nan}, "not a share between 0 and 1"),
        ({"n": 4, "seed": -1}, "seed: -1"),
        ({"n": 4, "slowdown": 0.0}, "slowdown"),
        ({"n": 4, "down_up_ratio": 0.0}, "down_up_ratio"),
    ],
)
def test_senseless_fleets_are_refused(changes, text):
    with pytest.raises(InputError, match=text):
        cleave_draw(**changes)


def test_a_fleet_from_arrays_spreads_single_numbers():
    fleet = fleet_from_arrays(
        flops=[1e12, 2e12], down_bps=[80, 160], up_bps=8, memory_bytes=10**9, latency_ns=[0, 5], launch_s=1e-5
    )
    assert fleet.links.up_bps.tolist() == [8, 8]
    assert fleet.links.latency_ns.tolist() == [0, 5]
    assert fleet.memory_bytes.tolist() == [10**9] * 2
    assert fleet.launch_s.tolist() == [1e-5] * 2
    assert fleet.availability.size == 2
    assert np.isnan(fleet.idle_w).all()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"flops": [1e12, 0.0]}, "flops"),
        ({"flops": [1e12, math.inf]}, "flops"),
        ({"down_bps": [1, 2, 3]}, "down_bps: expected one number or 2"),
        ({"up_bps": 0}, "up_bps: every value must be above zero"),
        ({"up_bps": 1.5}, "up_bps: every value must be a whole number"),
        ({"latency_ns": -1}, "latency_ns"),
        ({"memory_bytes": 0}, "memory_bytes"),
        ({"memory_bytes": math.nan}, "memory_bytes"),
    ],
)
def test_senseless_arrays_are_refused(changes, text):
    arguments = {"flops": [1e12, 1e12], "down_bps": 8, "up_bps": 8, "memory_bytes": 1, **changes}
    with pytest.raises(InputError, match=text):
        fleet_from_arrays(**arguments)


def test_a_given_coordinator_is_kept():
    coordinator = unlimited_coordinator()
    fleet = fleet_from_arrays(flops=[1e12], down_bps=8, up_bps=8, memory_bytes=1, coordinator=coordinator)
    assert fleet.coordinator is coordinator
