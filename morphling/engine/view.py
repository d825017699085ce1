"""What the strategy sees: the coordinator's knowledge now, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from morphling.engine.link_estimates import LinkEstimates
from morphling.engine.running import Running
from morphling.fleet import Fleet
from morphling.fleet.streams import stream
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import read_only
from morphling.types import BoolArray, FloatArray
from morphling.workload import Workload

if TYPE_CHECKING:
    from morphling.engine.engine import Engine

__all__ = ["EngineView"]


class EngineView:
    """`morphling.interfaces.view.View` over a running engine.  Arrays are read-only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._fleet, self._workload = read_only(engine.fleet), read_only(engine.workload)
        self._streams: dict[str, np.random.Generator] = {}
        self._unread: list[Running] = []
        self._estimates = LinkEstimates(engine.fleet)

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
        return _frozen(self._links().down.rate_bps)

    @property
    def uplink_bps(self) -> FloatArray:
        """Estimated rate from each device, bit/s."""
        return _frozen(self._links().up.rate_bps)

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

    def _links(self) -> LinkEstimates:
        if self._unread:
            since_ns = min((running.time_ns for running in self._engine.running.values()), default=self.now_ns)
            self._estimates.learn(self._unread, since_ns)
            self._unread.clear()
        return self._estimates


def _frozen(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
