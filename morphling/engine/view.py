"""What the strategy sees: the coordinator's knowledge now, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from morphling.engine.running import Running
from morphling.fleet import Fleet
from morphling.fleet.streams import stream
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import read_only
from morphling.types import BoolArray, FloatArray, IntArray
from morphling.workload import Workload

if TYPE_CHECKING:
    from morphling.engine.engine import Engine

__all__ = ["EngineView"]

WEIGHT = 0.5
"""Weight of the newest observation in the running estimate of a link's rate."""


class EngineView:
    """`morphling.interfaces.view.View` over a running engine.  Arrays are read-only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._fleet, self._workload = read_only(engine.fleet), read_only(engine.workload)
        self._streams: dict[str, np.random.Generator] = {}
        self._unread: list[Running] = []
        self._rates: tuple[FloatArray, FloatArray] | None = None
        self._seen = (np.zeros(engine.fleet.size, bool), np.zeros(engine.fleet.size, bool))

    @property
    def now_s(self) -> float:
        """Virtual time, seconds."""
        return self._engine.now_ns / 1e9

    @property
    def now_ns(self) -> int:
        """Virtual time, whole nanoseconds."""
        return self._engine.now_ns

    @property
    def fleet(self) -> Fleet:
        """Static facts of the devices."""
        return self._fleet

    @property
    def workload(self) -> Workload:
        """The GEMM DAG and its model."""
        return self._workload

    @property
    def iterations(self) -> int:
        """How many training iterations the scenario asks for."""
        return self._engine.iterations

    @property
    def online(self) -> BoolArray:
        """Which devices are here now."""
        return _frozen(self._engine.online)

    @property
    def downlink_bps(self) -> FloatArray:
        """Estimated rate towards each device, bit/s."""
        return _frozen(self._estimates()[0])

    @property
    def uplink_bps(self) -> FloatArray:
        """Estimated rate from each device, bit/s."""
        return _frozen(self._estimates()[1])

    def gemm_seconds(self, m: int, n: int, k: int) -> FloatArray:
        """What the executor says of one product on every device."""
        engine, dtype = self._engine, self._engine.workload.dtype
        out: FloatArray = np.full(engine.fleet.size, np.nan)
        able = np.flatnonzero(~np.isnan(engine.fleet.compute_flops(dtype)))
        out[able] = engine.executor.estimate(TaskTable.build(device=able, m=m, n=n, k=k, dtype=dtype)) / 1e9
        return out

    def random(self, name: str) -> np.random.Generator:
        """The strategy's own random stream of that name."""
        if name not in self._streams:
            self._streams[name] = stream(self._engine.seed, f"strategy/{name}")
        return self._streams[name]

    def observe(self, running: Running) -> None:
        """A dispatch is settled; its transfers are folded in when somebody asks."""
        self._unread.append(running)

    def _estimates(self) -> tuple[FloatArray, FloatArray]:
        if self._rates is None:
            down, up = self._engine.fleet.links.nominal_bps()
            self._rates = (down.copy(), up.copy())
        latency = self._engine.fleet.links.latency_ns
        for running in self._unread:
            tasks, t = running.tasks, running.times
            here = (tasks.device < self._engine.fleet.size) & (tasks.peer < 0) & (running.lost == 0)
            lag = latency[np.where(here, tasks.device, 0)]
            # an upload cut into tiles pauses between them, so only whole ones measure the link
            for side, payload, start, end, valid in (
                (0, tasks.bytes_in, t[0], t[1], here),
                (1, tasks.bytes_out, t[4], t[5], here & (tasks.overlap <= 1)),
            ):
                span = end - start - lag
                rows = np.flatnonzero(valid & (payload > 0) & (span > 0) & (start >= 0))
                self._fold(side, tasks.device[rows].astype(np.int64), payload[rows] * 8e9 / span[rows])
        self._unread.clear()
        return self._rates

    def _fold(self, side: int, device: IntArray, rate: FloatArray) -> None:
        assert self._rates is not None  # noqa: S101 - set by the only caller
        estimate, seen = self._rates[side], self._seen[side]
        old = np.where(seen[device], estimate[device], rate)
        estimate[device] = (1 - WEIGHT) * old + WEIGHT * rate
        seen[device] = True


def _frozen(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
