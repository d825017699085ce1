"""The Cleave strategy on small fleets: conservation, the published totals, memory, churn, the shard cache."""

from __future__ import annotations

import numpy as np
import pytest

from morphling.engine import Engine
from morphling.errors import PlanError
from morphling.executors.analytic import Analytic
from morphling.fleet import Availability
from morphling.fleet.published import cleave_fleet, fleet_from_arrays
from morphling.strategies.cleave import Cleave, CleaveConfig
from morphling.types import FAR_NS, DType, Kind
from morphling.workload import Place, model_named, training_step

S = 10**9


def small_fleet(n=9, memory=4 << 30, **how):
    rng = np.random.default_rng(3)
    return fleet_from_arrays(
        flops=rng.uniform(2e11, 4e12, n),
        down_bps=np.rint(rng.uniform(2e7, 2e8, n)),
        up_bps=np.rint(rng.uniform(5e6, 5e7, n)),
        memory_bytes=np.full(n, memory),
        latency_ns=rng.integers(0, 40_000_000, n),
        **how,
    )


def replay(fleet, workload, config=None, **how):
    strategy = Cleave(config)
    recording = Engine(fleet, workload, strategy, Analytic(fleet=fleet), **how).run()
    return recording, strategy.report()


def tiny(**how):
    return training_step(model_named("opt-125m"), 2, 64, DType.FLOAT16, **how)


def done_flops(recording, size):
    total = 0.0
    for d in recording.dispatches:
        rows = ~d.lost & (d.tasks.device < size) & (d.tasks.kind == Kind.GEMM)
        total += float(d.tasks.flops[rows].sum())
    return total


@pytest.mark.parametrize("lm_head", [Place.COORDINATOR, Place.DEVICES])
@pytest.mark.parametrize("model", ["opt-125m", "opt-350m", "gpt2"])
def test_every_gemm_is_covered_once(model, lm_head):
    fleet = small_fleet()
    work = training_step(model_named(model), 2, 64, DType.FLOAT16, lm_head)
    recording, _ = replay(fleet, work)
    assert done_flops(recording, fleet.size) == work.dag.gemm_flops(place=Place.DEVICES)
    central = sum(float(d.tasks.flops[d.tasks.device == fleet.size].sum()) for d in recording.dispatches)
    assert central == pytest.approx(work.dag.flops.sum() - done_flops(recording, fleet.size), rel=1e-12)
    cells = sum(int((d.tasks.m * d.tasks.n)[d.tasks.device < fleet.size].sum()) for d in recording.dispatches)
    nodes = work.dag.select(kind=Kind.GEMM, place=Place.DEVICES)
    assert cells == int((work.dag.m[nodes] * work.dag.n[nodes]).sum())
    sent_back = sum(int(d.tasks.bytes_out.sum()) for d in recording.dispatches)
    assert sent_back == 2 * cells


def test_replay_lies_between_the_bounds_and_the_estimate_on_a_quiet_fleet():
    fleet = small_fleet()
    recording, report = replay(fleet, tiny())
    seconds = recording.end_ns / 1e9
    assert seconds <= report["estimate_s"] * (1 + 1e-6)
    assert seconds >= report["estimate_s"] * 0.6
    assert seconds >= max(report["lower_bounds"].values())


@pytest.mark.parametrize(("n", "want"), [(32, 4528), (64, 2272), (256, 611.7), (1024, 180)])
def test_paper_model_replays_the_published_totals(n, want):
    """OPT-13B, batch 128 x 1024, linear GEMMs, published fleet: seconds a batch."""
    fleet = cleave_fleet(n)
    work = training_step(model_named("opt-13b"), 128, 1024, DType.FLOAT16)
    recording, report = replay(fleet, work, CleaveConfig(model="paper"))
    assert recording.end_ns / 1e9 == pytest.approx(want, rel=3e-3 if n == 1024 else 1e-3)
    assert recording.end_ns / 1e9 == pytest.approx(report["estimate_s"], rel=1e-6)


def test_paper_model_with_the_artifact_list():
    fleet = cleave_fleet(256)
    work = training_step(model_named("opt-13b"), 128, 1024, DType.FLOAT16)
    recording, _ = replay(fleet, work, CleaveConfig(model="paper", gemms="artifact"))
    assert recording.end_ns / 1e9 == pytest.approx(2170, rel=1e-3)


def test_memory_is_respected_and_too_little_is_refused():
    work = training_step(model_named("opt-125m"), 4, 256, DType.FLOAT16)
    fleet = small_fleet(memory=5_000_000)
    recording, _ = replay(fleet, work)
    for d in recording.dispatches:
        held = np.bincount(d.tasks.device, d.tasks.resident_bytes, minlength=fleet.size + 1)[: fleet.size]
        assert (held <= fleet.memory_bytes).all()
    assert len(recording.dispatches) > len(replay(small_fleet(), work)[0].dispatches)  # groups go one after another
    with pytest.raises(PlanError, match=r"it would with .* times the memory"):
        replay(small_fleet(memory=3_000_000), work)
    with pytest.raises(PlanError, match="memory"):
        replay(small_fleet(memory=1_000), work)


def test_same_seed_same_events():
    first, second = (replay(small_fleet(), tiny())[0].events_sha256 for _ in range(2))
    assert first == second


def leaving(fleet, sessions):
    columns = {name: getattr(fleet, name) for name in fleet.__dataclass_fields__}
    return type(fleet)(**{**columns, "availability": Availability.of(sessions)})


def test_orphaned_blocks_are_planned_again():
    base = small_fleet()
    quiet, _ = replay(base, tiny())
    always = [(0, FAR_NS)]
    sessions = [always] * 7 + [[(0, quiet.end_ns // 3)], [(0, quiet.end_ns // 5), (quiet.end_ns // 2, FAR_NS)]]
    fleet = leaving(base, sessions)
    recording, report = replay(fleet, tiny())
    lost = sum(int(d.lost.sum()) for d in recording.dispatches)
    assert lost > 0
    assert report["rows_planned_again"] == lost
    assert done_flops(recording, fleet.size) == tiny().dag.gemm_flops(place=Place.DEVICES)
    missed = 0
    for d in recording.dispatches:  # nobody is given work while away, unless it has not been noticed yet
        for device, spans in enumerate(sessions):
            if any(start <= d.time_ns < end for start, end in spans):
                continue
            rows = d.tasks.device == device
            missed += int(rows.sum())
            assert d.lost[rows].all()
            assert not rows.any() or 0 < d.time_ns - max(end for _, end in spans if end <= d.time_ns) <= 0.2 * S
    assert missed == 2


def test_everybody_away_is_a_pause():
    base = small_fleet(3)
    quiet, _ = replay(base, tiny())
    away = quiet.end_ns // 4
    back = away + 500 * S
    fleet = leaving(base, [[(0, away), (back, FAR_NS)]] * 3)
    recording, _ = replay(fleet, tiny())
    assert recording.end_ns > back
    assert done_flops(recording, 3) == tiny().dag.gemm_flops(place=Place.DEVICES)


def test_shards_that_are_read_again_stay_on_the_devices():
    """With recomputation the forward GEMMs come twice; kept shards are not sent twice, if there is memory for them."""
    work = tiny(recompute="full")

    def down(memory, *, cache):
        recording, report = replay(small_fleet(memory=memory), work, CleaveConfig(cache=cache))
        return sum(int(d.tasks.bytes_in.sum()) for d in recording.dispatches), report

    without, _ = down(4 << 30, cache=False)
    plenty, report = down(4 << 30, cache=True)
    little, _ = down(4_000_000, cache=True)
    assert report["shard_cache"]["hits"] > 0
    assert report["shard_cache"]["evictions"] == 0
    assert plenty < little <= without


def test_iterations_are_recorded():
    recording, _ = replay(small_fleet(), tiny(), iterations=3)
    assert len(recording.iteration_ends_ns) == 3
    first, second, third = recording.iteration_ends_ns
    assert third - second == second - first


def test_shards_do_not_outlive_their_iteration():
    """The optimizer changes the weights, and the next batch has other activations: nothing kept is valid any more."""
    fleet = small_fleet()
    recording, report = replay(fleet, tiny(recompute="full"), iterations=3)
    assert report["shard_cache"]["hits"] > 0
    each, rest = divmod(len(recording.dispatches), 3)
    assert rest == 0
    sent = [sum(int(d.tasks.bytes_in.sum()) for d in recording.dispatches[i * each : (i + 1) * each]) for i in range(3)]
    assert sent[0] == sent[1] == sent[2]
