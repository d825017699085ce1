"""Rows of whole layers timed product by product: by a fitted model worked by hand, and by executing them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from morphling.errors import RunError
from morphling.executors import Analytic, Profiled
from morphling.executors.live import Live, LiveConfig
from morphling.executors.live.host import Host
from morphling.executors.profiled import ProfiledConfig
from morphling.interfaces.products import Products
from morphling.interfaces.strategy import Dispatch
from morphling.interfaces.tasks import TaskTable
from morphling.run import build
from morphling.run.run import replay as replay_built
from morphling.scenario import load_scenario
from morphling.testing import replay, tiny_fleet, tiny_workload
from morphling.types import DType, Kind
from tests.live_back_ends import Formula
from tests.unit.test_gemm_model import PLAIN
from tests.unit.test_layer_products import made
from tests.unit.test_profiled import FIT, fleet

S, H, FFN, HEADS, VOCAB = 24, 64, 256, 4, 512
SLOWER = replace(FIT, parameters=replace(PLAIN, launch=5e-6, peak=5e10))
FAST = replace(FIT, parameters=PLAIN)
LINEAR, MLP, ATTENTION = 2 * S * H * H, 2 * S * H * FFN, 2 * S * S * 16 * HEADS
"""FLOPs of a projection, of a product of the MLP, and of one of attention's over all heads."""


def two_devices(first=FAST, second=SLOWER, dtype=DType.FLOAT16):
    """FAST takes 1 us and 1e11 FLOP/s, SLOWER 5 us and 5e10; memory takes no time."""
    return replace(fleet({dtype: first}, {dtype: second}), memory_bandwidth=np.full(2, np.inf))


# ------------------------------------------------------------------------------------------------------------ profiled


def test_the_stages_of_a_pipeline_on_two_profiles_by_hand():
    """GPipe, two layers on two devices, micro-batches of one sequence."""
    config = {"micro_batch": 1, "data_parallel": 1}
    (dispatch,) = replay(made("gpipe", config), tiny_fleet(2), tiny_workload(2)).dispatches
    t = dispatch.tasks
    took = Profiled(fleet=two_devices()).durations(t, 0)
    found = {
        d: np.unique(took[(t.device == d) & (t.kind == Kind.GEMM) & (t.flops > 0)]).tolist()
        for d in (0, 1)
    }  # fmt: skip
    # Forward: q, k, v and out, two of the MLP, scores and context: 8 calls.  Backward: twice the linears, and 4 of
    # attention.
    forward = 4 * LINEAR + 2 * MLP + 2 * ATTENTION
    backward = 2 * (4 * LINEAR + 2 * MLP) + 4 * ATTENTION
    head = 2 * S * H * VOCAB
    first, last = int(t.device[t.products >= 0][0]), 1 - int(t.device[t.products >= 0][0])
    launch, rate = ((1e3, 5e3), (100.0, 50.0))  # ns, FLOP/ns

    def ns(device, calls, flops):
        return round(calls * launch[device] + flops / rate[device])

    assert found[first] == [ns(first, 8, forward), ns(first, 16, backward)]
    assert found[last] == [ns(last, 9, forward + head), ns(last, 18, backward + 2 * head)]
    assert found[first][0] == (33_068, 90_135)[first]


def row(products, **more):
    listed = {"flops": products.flops, "memory_bytes": 0.0} | more
    return TaskTable.build(device=[0], products=0, product_lists=(products,), dtype=DType.FLOAT32, **listed)


def test_half_of_a_call_has_half_of_a_launch_and_the_rest_is_the_roofline():
    world = replace(fleet({DType.FLOAT32: FAST}), memory_bandwidth=np.array([2e9]))
    products = Products([(100, 200, 300, 2, 0.5)])  # 24e6 FLOPs in a call of two products
    executor = Profiled(fleet=world)
    half = 0.5 * (1e-6 + 24e6 / 1e11)
    assert executor.durations(row(products), 0)[0] == round(half * 1e9)
    # 4 bytes for each of the 110,000 elements are the products', 2e6 bytes more take 1 ms
    beside = row(products, memory_bytes=4 * 110_000 + 2e6)
    assert executor.durations(beside, 0)[0] == round((half + 1e-3) * 1e9)
    # 1e6 FLOPs more at 1e9 FLOP/s take 1 ms, and the traffic goes on meanwhile
    both = row(products, memory_bytes=4 * 110_000 + 1e6, flops=12e6 + 1e6)
    assert executor.durations(both, 0)[0] == round((half + 1e-3) * 1e9)
    assert executor.counts == {"fitted": 3, "extrapolated": 0, "roofline_gemm": 0, "roofline_other": 0}


def test_only_lists_that_rows_have_are_read():
    """A row taken from a table for 20,000 clients brings the lists of all of them along."""

    class Unread:
        flops = elements = 0.0

    one = row(Products([(10, 10, 10)]))
    more = replace(one, product_lists=(*one.product_lists, Unread()))
    executor = Profiled(fleet=fleet({DType.FLOAT32: FAST}))
    assert executor.durations(more, 0).tolist() == executor.durations(one, 0).tolist()
    assert more.digest() == one.digest()


def test_a_list_beyond_the_samples_is_an_extrapolated_row():
    executor = Profiled(fleet=fleet({DType.FLOAT32: FAST}))
    executor.durations(TaskTable.concat([row(Products([(10, 10, 10), (1001, 10, 10)])), row(Products([(9, 9, 9)]))]), 0)
    assert executor.counts["extrapolated"] == 1
    assert executor.counts["fitted"] == 2


def test_without_a_model_lists_take_the_roofline_of_the_sum():
    world = fleet({})
    executor = Profiled(ProfiledConfig("analytic"), fleet=world)
    one = row(Products([(10, 10, 10, 1, 7.0)]), memory_bytes=1e6)
    assert executor.durations(one, 0).tolist() == Analytic(fleet=world).durations(one, 0).tolist()
    assert executor.counts["roofline_gemm"] == 1


def test_the_analytic_executor_reads_no_lists():
    world = fleet({DType.FLOAT32: FAST})
    one = row(Products([(10, 10, 10, 1, 7.0)]), memory_bytes=1e6)
    plain = replace(one, products=np.full(1, -1, np.int32), product_lists=())
    assert Analytic(fleet=world).durations(one, 0).tolist() == Analytic(fleet=world).durations(plain, 0).tolist()


# ---------------------------------------------------------------------------------------------------------------- live


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("MORPHLING_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "kept"))


def live(world, back_end, **config):
    return Live(LiveConfig(cache=False, **config), fleet=world, back_end=back_end)


def executed(executor, tasks):
    executor.sent(0, Dispatch(tasks), made("ddp", {}))
    return executor.durations(tasks, 0)


def test_products_of_a_list_are_executed_once_and_scaled():
    # the partition does 1e11 FLOP/s, device 0 1e9 and 1 ms to start: a hundred times as long
    back_end = Formula(factor={(64, 32, 16): 3.0}, bandwidth=np.inf)
    world = replace(fleet({}, {}), memory_bandwidth=np.full(2, np.inf))
    products = Products([(64, 32, 16, 4, 2.0), (512, 512, 8, 1, 0.5)])
    tasks = TaskTable.concat([row(products), row(products, flops=products.flops + 5e6)] * 50)
    executor = live(world, back_end)
    found = executed(executor, tasks)
    own = 2 * (1e-3 + 3 * 4 * 65_536 / 1e9) + 0.5 * (1e-3 + 4_194_304 / 1e9)
    assert found.tolist() == [round(own * 1e9), round((own + 5e-3) * 1e9)] * 50
    asked = [p for p, _ in back_end.asked if (p.m, p.n, p.k) in {(64, 32, 16), (512, 512, 8)}]
    assert sorted(p.m for p in asked) == [64, 512]
    said = executor.describe()
    assert said["rows"]["executed"] == 100
    assert said["flops"] == {"executed": pytest.approx(100 * products.flops), "roofline": pytest.approx(50 * 5e6)}


def test_each_device_is_scaled_for_itself():
    back_end = Formula((1e11,), bandwidth=np.inf)
    world = replace(fleet({}, {}), memory_bandwidth=np.full(2, np.inf))
    world = replace(world, efficiency=np.tile([[1.0], [0.5]], (1, len(DType))))
    one = row(Products([(64, 32, 16, 1, 10.0)]))
    tasks = TaskTable.concat([one, replace(one, device=np.array([1], np.int32))])
    found = executed(live(world, back_end), tasks)
    assert found.tolist() == [round(10 * (1e6 + 65_536)), round(10 * (1e6 + 2 * 65_536))]


def test_enforced_each_product_is_paced_at_the_devices_rate():
    back_end = Formula((1e11,), bandwidth=np.inf)
    world = replace(fleet({}), memory_bandwidth=np.array([np.inf]))
    executor = live(world, back_end, limiting="enforced")
    (took,) = executed(executor, row(Products([(64, 32, 16, 3, 2.0), (8, 8, 8)])))
    assert took == round(2 * (1e6 + 3 * 65_536) + 1e6 + 1024)
    assert back_end.paced_at == pytest.approx([1e9, 1e9])


def test_numerics_check_each_product_of_a_list():
    class Wrong(Formula):
        def multiply(self, a, b, dtype, partition):
            return super().multiply(a, b, dtype, partition) * (1.01 if a.shape == (8, 4) else 1.0)

    products = Products([(64, 32, 16, 1, 2.0), (8, 8, 4)])
    for back_end, wrong in ((Formula(), False), (Wrong(), True)):
        executor = live(fleet({}), back_end, numerics=True)
        executed(executor, row(products))
        done = replay(made("ddp", {}), tiny_fleet(), tiny_workload()).recording
        if wrong:
            with pytest.raises(RunError, match=r"sub-task 8x4x8 float32"):
                executor.finish(done, tiny_workload())
            continue
        executor.finish(done, tiny_workload())
        assert executor.checked["sub_tasks_by_themselves"] == 2
        assert any("no output was put together" in note for note in executor.notes())


TINY = {
    "architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "ffn_dim": 512, "vocab_size": 1000, "max_position_embeddings": 512,
    "word_embed_proj_dim": 128, "do_layer_norm_before": True, "activation_function": "relu",
}  # fmt: skip
SCENARIO = {
    "name": "live",
    "workload": {"batch_size": 4, "sequence_length": 256, "dtype": "float32"},
    "fleet": [
        {
            "profile": {"compute": "20 GFLOP/s", "memory": "8 GB"},
            "count": 2,
            "link": {"downlink": "800 Mbit/s", "uplink": "800 Mbit/s", "latency": "1 ms"},
        }
    ],
    "execution": {"mode": "live", "backend": "host", "max_measure_s": 300.0},
}


@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "ddp"},
        {"name": "gpipe"},
        {"name": "fedavg", "clients_per_round": 2, "local_steps": 1, "batch_size": 2},
    ],
    ids=lambda s: s["name"],
)
def test_strategies_of_whole_layers_are_executed_on_this_host(strategy, monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    workload = SCENARIO["workload"] | {"model": str(tmp_path / "config.json")}
    monkeypatch.setattr(Host, "stale_faster", 100.0)  # whatever else this machine is doing
    monkeypatch.setattr(Host, "stale_slower", 100.0)
    built = build(load_scenario(SCENARIO | {"workload": workload, "strategy": strategy}))
    replay_built(built)
    said = built.executor.describe()
    assert said["executed_share_of_flops"] > 0.95
    assert said["rows"]["roofline_device_gemm"] == 0
