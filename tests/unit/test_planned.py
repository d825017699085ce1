"""`PlannedStrategy`: the order of a recovery in time, worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from morphling.errors import Infeasible, PlanError
from morphling.fleet import Availability, Links
from morphling.fleet.published import fleet_from_arrays
from morphling.interfaces.tasks import TaskTable
from morphling.planning.group_costs import GroupCost
from morphling.planning.moves import moved_bytes, shifted
from morphling.planning.placement import Placement, PlannedConfig, Recovery
from morphling.planning.planned import PlannedStrategy
from morphling.planning.training_memory import DeviceMemory
from morphling.results.metrics import metrics
from morphling.testing import replay, tiny_workload
from morphling.types import FAR_NS, SECOND_NS, Kind

S = SECOND_NS


@dataclass(frozen=True)
class ToyConfig(PlannedConfig):
    model: str = "physical"
    keeps: bool = True
    least: int = 1


class Toy(PlannedStrategy):
    """Every device of the placement computes for 10 s; states of 1 MB a device."""

    Config: ClassVar[type] = ToyConfig
    name: ClassVar[str] = "toy"

    def plan(self, view, here):
        if len(here) < self.config.least:
            raise Infeasible(f"{self.config.least} devices are needed, {len(here)} are here")
        size = np.full(len(here), 1_000_000)
        return Placement(here, (DeviceMemory(1_000_000, 0),) * len(here), saved_bytes=size, restored_bytes=size)

    def tasks(self, placement, view):
        return TaskTable.build(
            device=placement.devices, kind=Kind.ELEMENTWISE, flops=10e12, memory_bytes=0, resident_bytes=0
        )

    def recover(self, view, old, new, gone):
        found = super().recover(view, old, new, gone)
        return Recovery(found.moves, from_checkpoint=not self.config.keeps)

    def paper(self, view, here):
        return GroupCost("toy", 7.0, {"all": 7.0}, 1, 1)


class Growing(Toy):
    grows: ClassVar[bool] = True


def fleet(*sessions, devices=3):
    """1 TFLOP/s, 8 Mbit/s down and up, no latency."""
    made = fleet_from_arrays(
        flops=np.full(devices, 1e12), down_bps=8_000_000, up_bps=8_000_000, memory_bytes=1 << 30, name="toy"
    )
    always = [[(0, FAR_NS)]] * devices
    listed = [*sessions, *always[len(sessions) :]]
    return replace(made, availability=Availability.of(listed))


def run(strategy, where, iterations=3):
    found = replay(strategy, where, tiny_workload(), iterations=iterations)
    report = found.strategy.report()
    return found.recording, metrics(found.recording, where, report=report), report


def toy(cls=Toy, **more):
    return cls(ToyConfig(**{"detection_s": 2.0, "planning_s": 1.0, "setup_s": 3.0, "checkpoint_every": 0, **more}))


def test_the_parts_of_a_recovery():
    # Iterations of 10 s.  Device 0 leaves at 15 s, which is noticed at 17; planned at 18; 1 MB at 8 Mbit/s until 19;
    # set up at 22; iteration 2 is done again, 5 s of which had been done before: until 27; it ends at 32, the third at
    # 42.
    recording, got, report = run(toy(), fleet([(0, 15 * S)]))
    assert recording.iteration_ends_ns == [10 * S, 32 * S, 42 * S]
    (entry,) = report["recoveries"]
    assert [entry[f"{x}_ns"] // S for x in ("lost", "detected", "planning", "planned", "moved", "ready")] == [
        15, 17, 17, 18, 19, 22,
    ]  # fmt: skip
    assert entry["replayed_ns"] == 27 * S
    assert got["recovery_time_s"] == 12.0
    parts = ("detection", "planning", "redispatch", "setup", "recompute", "waiting")
    assert [got[f"recovery_{x}_s"] for x in parts] == [2.0, 1.0, 1.0, 3.0, 5.0, 0.0]
    assert got["recovery_moved_bytes"] == entry["moved_bytes"] == 2_000_000
    assert got["unrecovered_losses"] == 0
    # Thrown away: 5 s of device 0, and 7 s each of devices 1 and 2, whose rows were withdrawn at 17 s.
    assert got["discarded_compute_s"] == 19.0
    assert (got["iteration_time_before_loss_s"], got["iteration_time_after_recovery_s"]) == (10.0, 10.0)


def test_a_checkpoint_restart_does_all_again():
    # As above, but iteration 1 is done again first, from 22 to 32 s; iteration 2 has run for 5 s again at 37.
    recording, got, report = run(toy(keeps=False), fleet([(0, 15 * S)]))
    assert recording.iteration_ends_ns == [10 * S, 42 * S, 52 * S]
    assert got["recovery_time_s"] == 22.0
    assert got["recovery_recompute_s"] == 15.0
    assert report["recoveries"][0]["iterations_redone"] == 1
    assert got["discarded_compute_s"] == 19.0 + 30.0
    assert [d.label for d in recording.dispatches] == [
        "iteration 1", "iteration 2", "recovery/states", "recovery/replay iteration 1", "recovery/replay iteration 2",
        "iteration 3",
    ]  # fmt: skip


def test_a_checkpoint_saves_what_came_before():
    # Saving takes 1 s beside iteration 2, so only that iteration is done again.
    _, got, report = run(toy(keeps=False, checkpoint_every=1), fleet([(0, 15 * S)]))
    assert report["recoveries"][0]["iterations_redone"] == 0
    assert got["recovery_time_s"] == 12.0
    # Three devices save once, and the two that are left once more, beside iteration 3.
    assert got["bytes_up"] == 5_000_000


def test_a_checkpoint_under_way_is_not_a_checkpoint():
    # Device 0 leaves at 10.5 s, while the states after iteration 1 are being saved: both iterations are done again.
    _, got, report = run(toy(keeps=False, checkpoint_every=1), fleet([(0, 10 * S + S // 2)]))
    assert report["recoveries"][0]["iterations_redone"] == 1
    assert got["unrecovered_losses"] == 0


def test_a_last_checkpoint_that_is_cut_off_needs_no_recovery():
    # Saving after the first iteration takes until 11 s for devices 1 and 2 and never ends for device 0, whose uplink
    # is as slow as 1 kbit/s.  The last iteration ends at 20 s; device 0 leaves at 25 s, which is noticed at 27.
    where = fleet([(0, 25 * S)])
    where = replace(where, links=Links.constant(where.links.down_bps, np.array([1_000, 8_000_000, 8_000_000])))
    recording, got, report = run(toy(checkpoint_every=1), where, iterations=2)
    assert recording.iteration_ends_ns == [10 * S, 20 * S]
    assert recording.end_ns == 27 * S
    (entry,) = report["recoveries"]
    assert entry == {"lost_ns": 25 * S, "detected_ns": 27 * S, "rows": 1, "further_ns": [27 * S], "absorbed": True}
    assert (got["lost_rows"], got["loss_instants"], got["unrecovered_losses"]) == (1, 1, 0)
    assert (got["recovery_detection_s"], got["recovery_recompute_s"]) == (2.0, 0.0)


def test_two_departures_in_one_recovery():
    # Device 1 leaves at 18.5 s, while states move: noticed at 20.5, planned at 21.5, moved at 22.5, ready at 25.5.
    recording, got, report = run(toy(), fleet([(0, 15 * S)], [(0, 37 * S // 2)]))
    first, second = report["recoveries"]
    assert first["planned_ns"] == second["planned_ns"] == 43 * S // 2
    assert first["ready_ns"] == second["ready_ns"] == 51 * S // 2
    assert recording.iteration_ends_ns[1] == 71 * S // 2
    assert got["unrecovered_losses"] == 0
    # The second departure interrupted no iteration, so it is over when the set-up works.
    assert second["replayed_ns"] == second["ready_ns"]
    assert got["recovery_time_s"] == (30.5 - 15) + (25.5 - 18.5)


def test_a_departure_between_its_last_row_and_its_notice():
    # It leaves at 10 s sharp, as iteration 1 ends: iteration 2 begins with it, loses its row at once, and stands until
    # 12 s.
    recording, got, report = run(toy(), fleet([(0, 10 * S)]))
    assert recording.iteration_ends_ns == [10 * S, 27 * S, 37 * S]
    assert report["recoveries"][0]["replayed_ns"] == 17 * S
    assert got["recovery_time_s"] == 7.0


def test_it_waits_until_enough_are_here():
    # Two are needed; both that are left of three go, one comes back at 60 s.
    sessions = [(0, 15 * S)], [(0, 16 * S), (60 * S, FAR_NS)]
    recording, got, report = run(toy(least=2), fleet(*sessions))
    # Planned at 61 (device 2 stayed, device 1 is back), moved at 62, ready at 65.
    assert report["recoveries"][0]["ready_ns"] == 65 * S
    assert recording.iteration_ends_ns[1] == 75 * S
    assert got["recovery_waiting_s"] == (60 - 17) + (60 - 18)


def test_it_is_refused_with_the_reason_if_nobody_comes():
    with pytest.raises(Infeasible, match="3 devices are needed, 2 are here") as error:
        run(toy(least=3), fleet([(0, 15 * S)]))
    assert "1 of 3 iterations" in str(error.value)


def test_a_start_with_too_few_waits():
    recording, _, _ = run(toy(least=3), fleet([(5 * S, FAR_NS)]))
    assert recording.iteration_ends_ns[0] == 15 * S


def test_a_fleet_that_can_never_do_is_refused_at_once():
    with pytest.raises(Infeasible, match="4 devices are needed, 3 are here"):
        run(toy(least=4), fleet([(5 * S, FAR_NS)]))


def test_newcomers_are_taken_in_at_the_end_of_an_iteration():
    # Device 0 comes at 5 s; after iteration 1 it fetches its states (1 s), and so do all here.
    recording, got, _ = run(toy(Growing), fleet([(5 * S, FAR_NS)]))
    assert recording.iteration_ends_ns == [10 * S, 21 * S, 31 * S]
    assert got["devices_used"] == 3
    recording, got, _ = run(toy(), fleet([(5 * S, FAR_NS)]))
    assert recording.iteration_ends_ns == [10 * S, 20 * S, 30 * S]
    assert got["devices_used"] == 2


def test_a_checkpoint_that_is_due_as_newcomers_come_is_made_once_they_are_taken_in():
    # Device 0 comes at 5 s and fetches its states from 10 to 11 s; all three save beside iteration 2, until 12 s.  It
    # leaves at 16 s: noticed at 18, planned at 19, moved at 20, ready at 23, and only iteration 2 is done again.
    recording, got, report = run(toy(Growing, keeps=False, checkpoint_every=1), fleet([(5 * S, 16 * S)]))
    assert [d.label for d in recording.dispatches] == [
        "iteration 1", "join/states", "upkeep/after iteration 1", "iteration 2", "recovery/states",
        "recovery/replay iteration 2", "upkeep/after iteration 2", "iteration 3",
    ]  # fmt: skip
    assert recording.iteration_ends_ns == [10 * S, 33 * S, 43 * S]
    assert report["recoveries"][0]["iterations_redone"] == 0
    assert got["bytes_up"] == 3_000_000 + 2_000_000


def test_a_checkpoint_is_made_of_those_that_are_here_if_newcomers_fit_no_plan():
    class Pair(Growing):
        def plan(self, view, here):
            if len(here) > 2:
                raise Infeasible("two at most")
            return super().plan(view, here)

    recording, got, _ = run(toy(Pair, checkpoint_every=1), fleet([(5 * S, FAR_NS)]))
    assert recording.iteration_ends_ns == [10 * S, 20 * S, 30 * S]
    assert got["bytes_up"] == 2 * 2_000_000


def test_a_checkpoint_that_is_due_is_made_of_those_that_are_left_if_a_newcomer_goes_meanwhile():
    # Device 0 comes at 5 s, fetches from 10 s on, and leaves at 10.5 s: noticed at 12.5, planned at 13.5, moved at
    # 14.5, ready at 17.5.  Nobody of iteration 1 is missing: its states are saved, and iteration 2 ends at 27.5.
    recording, got, report = run(toy(Growing, checkpoint_every=1), fleet([(5 * S, 21 * S // 2)]), iterations=2)
    assert recording.iteration_ends_ns == [10 * S, 55 * S // 2]
    assert "upkeep/after iteration 1" in [d.label for d in recording.dispatches]
    assert got["bytes_up"] == 2_000_000
    assert report["recoveries"][0]["iterations_redone"] == 0


def test_unused_devices_may_leave():
    class Pair(Toy):
        def plan(self, view, here):
            return super().plan(view, here[:2])

    recording, got, _ = run(toy(Pair), fleet(devices=3))
    quiet = recording.events_sha256
    recording, got, report = run(toy(Pair), replace(fleet(), availability=Availability.of(
        [[(0, FAR_NS)], [(0, FAR_NS)], [(0, 15 * S)]])))  # fmt: skip
    assert recording.events_sha256 == quiet
    assert report["recoveries"] == []
    assert got["recovery_time_s"] is None


def test_a_published_formula_has_a_time_and_nothing_else():
    recording, got, report = run(toy(model="paper"), fleet())
    assert recording.iteration_ends_ns == [7 * S, 14 * S, 21 * S]
    assert got["iteration_time_s"] == 7.0
    assert got["bytes_up"] is None
    assert got["device_utilization"] is None
    assert "formula" in got["not_available"]["bytes_up"]
    assert report["parts_s"] == {"all": 7.0}
    with pytest.raises(PlanError, match="come and go"):
        run(toy(model="paper"), fleet([(0, 15 * S)]))


def test_too_little_memory_names_the_device():
    poor = replace(fleet(), memory_bytes=np.array([1 << 30, 1000, 1 << 30]))
    with pytest.raises(Infeasible, match=r"device toy#1 has 1 kB, needed 1 MB"):
        run(toy(), poor)


def test_wrong_delays_are_refused():
    for wrong in ({"detection_s": -1.0}, {"setup_s": [1.0]}, {"planning_s": float("nan")}, {"checkpoint_every": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            toy(**wrong)


def test_layers_come_from_who_holds_them():
    # Three devices hold layers 0-1, 2-3, 4-5; the middle one is gone; device 0 keeps a copy of layer 2.
    held = {0: range(2), 2: range(4, 6)}
    needed = {0: range(3), 2: range(3, 6)}
    size = [10, 10, 10, 10, 10, 10]
    tasks = shifted(held, needed, size, copies={0: [2]})
    assert tasks.device.tolist() == [2]  # layer 3 from the coordinator
    assert tasks.bytes_in.tolist() == [10]
    # Without copies, and with layer 1 handed over: from its holder, as one row of the sender.
    tasks = shifted(held, {0: range(1), 2: range(1, 6)}, size)
    rows = zip(
        tasks.device.tolist(), tasks.peer.tolist(), tasks.bytes_in.tolist(), tasks.bytes_out.tolist(), strict=True
    )
    assert sorted(rows) == [(0, 2, 0, 10), (2, -1, 20, 0)]
    assert moved_bytes(tasks) == 30
