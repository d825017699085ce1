"""Federated local training: what a client downloads, computes, uploads and holds, and how long that takes.

Timing only: no weights are trained here.  A client is a device of the fleet; a sample is one sequence of the workload.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from math import ceil, isfinite

import numpy as np

from morphling.errors import Infeasible
from morphling.fleet import Fleet
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.lacking import too_little_memory
from morphling.planning.layer_costs import layer_costs
from morphling.planning.layer_products import list_columns
from morphling.planning.training_memory import (
    DeviceMemory,
    head_activation_bytes,
    input_activation_bytes,
    sharded_state_bytes,
    stage_activation_bytes,
)
from morphling.types import BoolArray, FloatArray, IntArray, Kind
from morphling.workload import Workload
from morphling.workload.counts import Optimizer, training_flops
from morphling.workload.models import parameters

__all__ = [
    "LocalTraining",
    "LocalTrainingConfig",
    "chained",
    "draw_samples",
    "fedscale_client_seconds",
    "local_training",
    "reports_s",
    "shared_assumptions",
    "training_memory",
]

DEFAULT_STEPS = 20
"""Local steps where neither steps nor epochs are given: FedScale's default."""

DRAWS = {"uniform": "[lowest, highest]", "lognormal": "[median, sigma]"}
MOST_SAMPLES = 1e12

FEW_REPORTS = 200
"""Reports that are drawn for an estimate at least, in several draws."""

MOST_REPORTS = 10_000
"""Reports that are drawn for an estimate, or ten for each place; the mean over more is taken to be theirs."""

NO_MEMORY = "too little memory to train the model"


@dataclass(frozen=True)
class LocalTrainingConfig:
    """What one client does: fields that FedAvg and FedBuff share.

    local_steps : steps of ``batch_size`` samples that a client trains; left out, 20 unless local_epochs is given
    local_epochs : instead of steps, passes over the client's own samples
    batch_size : samples (sequences) of a local step; left out, the workload's
    samples_per_client : with local_epochs, how many samples a client has: a number, ``{uniform: [lowest, highest]}`` or
        ``{lognormal: [median, sigma]}``, drawn once for each client
    optimizer : the local optimizer, for memory: its weights, gradients and states stay on the client while it trains
    download_bytes_per_parameter : bytes of the model for each parameter, towards the client
    upload_bytes_per_parameter : bytes of the update for each parameter, towards the server
    compression : the update's bytes are divided by this (1 = as they are)
    """

    local_steps: int | None = None
    local_epochs: int | None = None
    batch_size: int | None = None
    samples_per_client: int | dict[str, list[float]] | None = None
    optimizer: Optimizer = "sgd"
    download_bytes_per_parameter: float = 4.0
    upload_bytes_per_parameter: float = 4.0
    compression: float = 1.0

    def __post_init__(self) -> None:
        """Refuse counts below 1, both kinds of length, samples that nobody reads, and draws that mean nothing."""
        for name in ("local_steps", "local_epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: at least 1, not {value}")
        if self.local_steps is not None and self.local_epochs is not None:
            raise ValueError("local_epochs: give local_steps or local_epochs, not both")
        if self.local_epochs is None and self.samples_per_client is not None:
            raise ValueError("samples_per_client: only local_epochs reads it; give local_epochs, or leave it out")
        if self.local_epochs is not None and self.samples_per_client is None:
            raise ValueError("local_epochs: samples_per_client is needed too, how many samples each client has")
        _check_samples(self.samples_per_client)
        for name in ("download_bytes_per_parameter", "upload_bytes_per_parameter"):
            _check_positive(name, getattr(self, name))
        if not (isfinite(self.compression) and self.compression >= 1):
            raise ValueError(f"compression: from 1 on (the update's bytes are divided by it), not {self.compression:g}")


def _check_positive(name: str, value: float) -> None:
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{name}: a number above 0, not {value:g}")


def _check_samples(given: int | dict[str, list[float]] | None) -> None:
    if given is None:
        return
    name = "samples_per_client"
    if not isinstance(given, dict):
        if not 1 <= given <= MOST_SAMPLES:
            raise ValueError(f"{name}: from 1 to {MOST_SAMPLES:g}, not {given}")
        return
    known = " or ".join(f"{{{key}: {shape}}}" for key, shape in DRAWS.items())
    if len(given) != 1 or next(iter(given)) not in DRAWS:
        raise ValueError(f"{name}: a number, {known}, not {given}")
    key, values = next(iter(given.items()))
    if len(values) != 2 or not all(isfinite(x) for x in values):
        raise ValueError(f"{name}: {key} needs two numbers, {DRAWS[key]}, not {values}")
    if key == "uniform":
        if not 1 <= values[0] <= values[1] <= MOST_SAMPLES or any(x != int(x) for x in values):
            raise ValueError(f"{name}: uniform needs whole numbers, 1 <= lowest <= highest, not {values}")
    elif not (1 <= values[0] <= MOST_SAMPLES and 0 <= values[1] <= 10):
        raise ValueError(f"{name}: lognormal needs a median from 1 on and a sigma from 0 to 10, not {values}")


def draw_samples(given: int | dict[str, list[float]], size: int, rng: np.random.Generator) -> IntArray:
    """Samples of each of ``size`` clients, int64[size], each at least 1 (a lognormal draw is rounded, up to 1)."""
    if not isinstance(given, dict):
        return np.full(size, given, np.int64)
    key, (first, second) = next(iter(given.items()))
    if key == "uniform":
        return rng.integers(int(first), int(second) + 1, size)
    drawn = np.rint(rng.lognormal(np.log(first), second, size))
    return np.maximum(drawn, 1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class LocalTraining:
    """What each of N devices does if it is selected.

    tasks : a table of N rows, row i on device i: download of the model, training, upload of the update
    samples : int64[N], samples that it trains on, over all of its steps or epochs
    memory : what any device holds meanwhile
    eligible : bool[N], devices that can hold that and have the workload's dtype
    left_out : reason → how many devices are not eligible
    """

    tasks: TaskTable
    samples: IntArray
    memory: DeviceMemory
    eligible: BoolArray
    left_out: dict[str, int]

    def seconds(self, devices: IntArray, view: View, at_once: int | None = None) -> FloatArray:
        """Seconds from selection to report, as the server would estimate them, float64[len(devices)].

        α + W/D + launch + flops/F + α + W_up/U, at the view's rates of links; where ``at_once`` of them (None: all)
        would fill the coordinator's own link, each is taken to get an equal share of that.
        """
        c, n, rows = view.fleet.coordinator, max(at_once or len(devices), 1), self.tasks
        down, up = view.downlink_bps[devices], view.uplink_bps[devices]
        down = down if c.uplink_bps is None else np.minimum(down, c.uplink_bps / n)
        up = up if c.downlink_bps is None else np.minimum(up, c.downlink_bps / n)
        compute = rows.flops[devices] / view.fleet.compute_flops(view.workload.dtype)[devices]
        moved = rows.bytes_in[devices] * 8.0 / down + rows.bytes_out[devices] * 8.0 / up
        latency = view.fleet.links.latency_ns[devices] / 1e9
        total: FloatArray = 2 * latency + moved + view.fleet.launch_s[devices] + compute
        return total


def local_training(config: LocalTrainingConfig, view: View) -> LocalTraining:
    """The local work of every device.  Raises ``Infeasible``, with bytes, if no device can train the model."""
    work, fleet = view.workload, view.fleet
    batch = config.batch_size or work.batch_size
    if config.local_epochs is None:
        own = np.full(fleet.size, batch * (config.local_steps or DEFAULT_STEPS), np.int64)
    else:
        assert config.samples_per_client is not None  # noqa: S101 - the config has checked it
        own = draw_samples(config.samples_per_client, fleet.size, view.random("samples"))
    epochs = config.local_epochs or 1
    samples = own * epochs
    each = training_flops(work.model, 1, work.sequence_length, recompute=work.recompute)
    memory = training_memory(work, batch, config.optimizer)
    count = parameters(work.model)
    tasks = TaskTable.build(
        device=np.arange(fleet.size),
        kind=Kind.GEMM,
        dtype=work.dtype,
        flops=samples * float(each),
        bytes_in=ceil(count * config.download_bytes_per_parameter),
        bytes_out=ceil(count * config.upload_bytes_per_parameter / config.compression),
        memory_bytes=0.0,
        resident_bytes=memory.total,
        **list_columns([layer_costs(work, batch).whole().products.times(epochs)], 0, own / batch),
    )
    fits = fleet.memory_bytes >= memory.total
    able = ~np.isnan(fleet.compute_flops(work.dtype))
    reasons = {NO_MEMORY: int((~fits).sum()), f"no {work.dtype.label} rate": int((fits & ~able).sum())}
    left_out = {reason: n for reason, n in reasons.items() if n}
    _require_somebody(fits, able, memory, fleet, work)
    return LocalTraining(tasks, samples, memory, fits & able, left_out)


def training_memory(work: Workload, batch_size: int, optimizer: Optimizer) -> DeviceMemory:
    """What a client holds that trains the whole model on ``batch_size`` sequences at a time."""
    model, s = work.model, work.sequence_length
    layers = stage_activation_bytes(model, batch_size, s, layers=model.layers, scheme=work.recompute, dtype=work.dtype)
    ends = input_activation_bytes(model, batch_size, s) + head_activation_bytes(model, batch_size, s)
    return DeviceMemory(sharded_state_bytes(parameters(model), optimizer), layers, ends)


def _require_somebody(fits: BoolArray, able: BoolArray, memory: DeviceMemory, fleet: Fleet, work: Workload) -> None:
    if (fits & able).any():
        return
    what = f"the training of {work.model.name}"
    if not fits.any():
        raise too_little_memory(what, memory, fleet.memory_bytes, fleet.names())
    raise Infeasible(
        f"{int(fits.sum())} of {len(fits)} devices can hold {what}, and none of them has a {work.dtype.label} rate"
    )


def fedscale_client_seconds(
    *, batch_size: int, local_steps: int, inference_ms: float, model_kbit: float, bandwidth_kbps: float
) -> dict[str, float]:
    """A client's ``compute_s`` and ``communication_s`` as FedScale counts them; its round time is the sum.

    compute = 3.0 · batch · steps · inference ms of a sample / 1000; communication = (upload + download) / bandwidth,
    one bandwidth for both directions; no latency, no overlap.  ``model_kbit`` is one way.  Source: the client model of
    SymbioticLab/FedScale (bytes are turned into kbit as bytes / 1024 · 8 there).

    On a fleet with equal rates in both directions and without latency and launch cost, `LocalTraining.seconds` is the
    same (there 3·forward/F is the training of a sample).
    """
    for name, value in (("model_kbit", model_kbit), ("bandwidth_kbps", bandwidth_kbps), ("inference_ms", inference_ms)):
        _check_positive(name, value)
    return {
        "compute_s": 3.0 * batch_size * local_steps * inference_ms / 1000.0,
        "communication_s": 2.0 * model_kbit / bandwidth_kbps,
    }


def reports_s(seconds: FloatArray, places: int, reports: int, numbers: np.random.Generator) -> float:
    """Seconds until so many reports are there, if a client that reports is replaced at once by one of the idle.

    seconds : float64[clients], of a turn;  places : of them that train at all times
    Who is drawn is chance: of few reports, the mean over several draws.
    """
    counted = min(reports, max(MOST_REPORTS, 10 * places))
    draws = max(FEW_REPORTS // counted, 1)
    ends = [_drawn_s(seconds.tolist(), places, counted, numbers) for _ in range(draws)]
    return sum(ends) / draws * reports / counted


def _drawn_s(turn: list[float], places: int, reports: int, numbers: np.random.Generator) -> float:
    order = numbers.permutation(len(turn)).tolist()
    busy, idle = [(turn[client], client) for client in order[:places]], order[places:]
    heapify(busy)
    end = 0.0
    for number in numbers.random(reports).tolist():
        end, client = busy[0]
        idle.append(client)
        at = int(number * len(idle))
        idle[at], idle[-1] = idle[-1], idle[at]
        client = idle.pop()
        heapreplace(busy, (end + turn[client], client))
    return end


def shared_assumptions(config: LocalTrainingConfig) -> list[str]:
    """What a reader of federated timings should know, whichever strategy made them."""
    length = (
        f"{config.local_epochs or config.local_steps or DEFAULT_STEPS}"
        f" {'pass(es) over its own samples' if config.local_epochs else 'step(s)'}"
    )
    return [
        f"timing only: nothing is trained; a client trains {length}, one forward and its backward pass for each sample",
        "download, training and upload of a client do not overlap; memory traffic is not charged",
        "a launch is charged once; under profiled and live for each product",
        "aggregation at the coordinator takes no time",
        "a device knows nothing of its last turn: it downloads the whole model every time",
    ]


def chained(tasks: TaskTable, devices: list[int]) -> TaskTable:
    """The rows of ``tasks`` (row i: device i) of these devices, each starting when the one before it is done."""
    n = len(devices)
    taken = tasks.take(devices)
    if n == 1:
        return taken
    ptr = np.arange(-1, n, dtype=np.int64)
    ptr[0] = 0
    return replace(taken, dep_ptr=ptr, dep_idx=np.arange(n - 1, dtype=np.int64))
