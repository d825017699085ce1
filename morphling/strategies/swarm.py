"""SWARM: pools of peers serve the stages of a pipeline, and every micro-batch finds its own way (Ryabinin et al. 2023).

The trainer is the coordinator, as in yandex-research/swarm: it sends a micro-batch to one peer of each stage in turn,
keeps what it sent, and sends it to another peer if the first one fails.  A peer keeps nothing of a micro-batch, so a
backward pass brings its input again and computes the stage's forward pass again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from morphling.errors import Infeasible
from morphling.interfaces.strategy import (
    Cancel,
    Covers,
    Decision,
    Decisions,
    Dispatch,
    Done,
    IterationDone,
    Sent,
    Strategy,
    WakeAt,
)
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.delays import check_delay, delay_range
from morphling.planning.lacking import too_little_memory, with_rate
from morphling.planning.lines import summed
from morphling.planning.losses import Losses
from morphling.planning.moves import copied, restored, saved
from morphling.planning.partition import even_partition
from morphling.planning.pipelines import micro_batch_of
from morphling.planning.routing import Pass, Passes, Pool, routed_s
from morphling.planning.stages import SharedTable, Stages
from morphling.planning.training_memory import DeviceMemory
from morphling.planning.upkeep import mean_iteration_s, now_and_then, uplinks_busy_s
from morphling.types import IntArray
from morphling.workload.counts import Optimizer

__all__ = ["Swarm", "SwarmConfig"]


@dataclass(frozen=True)
class SwarmConfig:
    """Configuration of SWARM.

    stages : how many stages; ``fewest``: as few as the memory of half of the devices allows
    micro_batch : sequences of a micro-batch, a divisor of the batch; ``auto``: 1, or the next larger divisor with
        which an iteration has at most 300,000 passes
    in_flight : micro-batches under way at one time; ``auto``: as many as there are peers
    compression : of activations and gradients between peers and trainer: ``8bit`` (a byte for each element), ``none``
    optimizer : which states a peer holds
    table : of a table that the model uses for both embedding and LM head: ``summed``, the first and the last stage sum
        its gradients (Megatron-LM), or ``separate``, as if the model had two tables
    smoothing : weight of a new observation of a peer's throughput
    detection_s : seconds until a request to a peer that left fails; or ``[lowest, highest]``, of which one is drawn for
        each instant at which peers leave (our choice: the 5 s at which peers are polled)
    checkpoint_every : iterations between two copies of each stage to the trainer, which take over a stage that has lost
        all its peers; 0: none but the initial ones, which cost nothing
    """

    stages: int | Literal["fewest"] = "fewest"
    micro_batch: int | Literal["auto"] = "auto"
    in_flight: int | Literal["auto"] = "auto"
    compression: Literal["8bit", "none"] = "8bit"
    optimizer: Optimizer = "adam-mixed"
    table: SharedTable = "summed"
    smoothing: float = 0.1
    detection_s: float | list[float] = 5.0
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        """Refuse counts, shares and delays that are none."""
        check_delay("detection_s", self.detection_s)
        for name, least in (("stages", 1), ("micro_batch", 1), ("in_flight", 1), ("checkpoint_every", 0)):
            value = getattr(self, name)
            if isinstance(value, int) and value < least:
                raise ValueError(f"{name}: at least {least}, not {value}")
        if not 0 < self.smoothing <= 1:
            raise ValueError(f"smoothing: above 0, up to 1, not {self.smoothing:g}")


class Swarm(Strategy):
    """Stochastic wiring: micro-batches are routed to the peer that is expected first; a lost one is sent again."""

    Config: ClassVar[type] = SwarmConfig
    name: ClassVar[str] = "swarm"
    uses_peers: ClassVar[bool] = True
    repeats_work: ClassVar[bool] = True
    config: SwarmConfig

    def __init__(self, config: SwarmConfig | None = None) -> None:
        super().__init__(SwarmConfig() if config is None else config)
        self.pools: list[Pool] = []
        self.stages: Stages | None = None
        self.memory: DeviceMemory | None = None
        self.finished = self.started = self.over = self.serials = self.window = 0
        self.waiting: list[list[tuple[Pass, str]]] = []
        self.fetching: dict[int, int] = {}
        self.reducing: int | None = None
        self.spoiled = False
        self.open_upkeep = 0
        self.ended = False
        self.estimated_s: float | None = None
        self.further: dict[int, list[int]] = {}
        self.aside: list[dict[str, Any]] = []
        self.routed: dict[int, int] = {}
        self.busy: dict[int, int] = {}

    @property
    def covers(self) -> Covers:
        """Whole stages of micro-batches."""
        return "flops"

    # ------------------------------------------------------------------------------------------------------------ start

    def start(self, view: View) -> Decisions:
        """Stages, pools of about the same speed, and the first micro-batches."""
        self.losses = Losses(view.online)
        self._planned(view, with_rate(view, np.arange(view.fleet.size)))
        here = [d for d in self.able.tolist() if view.online[d]]
        return self._begin(view, here) if len(here) >= len(self.pools) else []

    @property
    def waiting_for(self) -> str:  # type: ignore[override] # read as an attribute
        """Peers for stages that have none."""
        if not self.window:
            return f"{len(self.pools)} stages need a peer each; fewer that can hold one are here"
        empty = [s for s, pool in enumerate(self.pools) if not len(pool) and s not in self.fetching.values()]
        return f"stage {empty[0]} has lost all its peers, and no other stage has one to spare" if empty else ""

    def _planned(self, view: View, able: IntArray) -> None:
        """How many stages, and who can hold any of them."""
        w, asked, memory = view.workload, self.config.stages, view.fleet.memory_bytes
        most = min(len(able), w.model.layers)
        if isinstance(asked, int) and asked > most:
            raise Infeasible(
                f"stages: {len(able)} devices and {w.model.layers} layers cannot fill {asked} stages; at most {most}"
            )
        for P in range(1, most + 1) if asked == "fewest" else [asked]:
            batch = micro_batch_of(self.config.micro_batch, w.batch_size, 2 * P)
            stages = Stages(
                w, even_partition(w.model.layers, P), batch, "full", self.config.optimizer, table=self.config.table
            )
            # Between passes a peer keeps nothing; in one, all layers of its stage.
            whole = Stages(w, stages.bounds, batch, "none", self.config.optimizer)
            need = max((whole.memory(p, 1) for p in range(P)), key=lambda m: m.total)
            fits = able[memory[able] >= need.total]
            if len(fits) >= max(P, len(able) // 2 if asked == "fewest" and most > P else P):
                break
        else:
            names = view.fleet.names()
            raise too_little_memory(f"one of {P} stages", need, memory[able], [names[d] for d in able], wanted=P)
        self.able, self.stages, self.memory = fits, stages, need
        self.pools = [Pool(self.config.smoothing, 1.0) for _ in range(P)]
        self.waiting = [[] for _ in range(P)]
        self.count = w.batch_size // batch
        self.passes = Passes.of(stages, compressed=self.config.compression == "8bit")

    def _begin(self, view: View, here: list[int]) -> list[Decision]:
        """Peers join the pool with the least speed, the fastest first; of equals, in random order."""
        rate = view.fleet.compute_flops(view.workload.dtype)
        mixed = view.random("wiring").permutation(here)
        speed = [0.0] * len(self.pools)
        for device in sorted(mixed.tolist(), key=lambda d: -rate[d]):
            stage = min(range(len(speed)), key=lambda s: (len(self.pools[s]) > 0, speed[s]))
            self.pools[stage].add(device)
            speed[stage] += float(rate[device])
        asked = self.config.in_flight
        self.window = min(self.count, len(here) if asked == "auto" else asked)
        self.estimated_s = self._expected_s(view)
        return self._next_iteration(view)

    def _expected_s(self, view: View) -> float:
        """Seconds of an iteration on average, copies to the trainer included."""
        seconds = partial(routed_s, self.passes, self.pools, self.count, self.window, view)
        due, copies = partial(now_and_then, self.config.checkpoint_every), self._copies()
        return mean_iteration_s(seconds(), view.iterations, due, lambda _: seconds(busy_s=uplinks_busy_s(copies, view)))

    # ------------------------------------------------------------------------------------------------------- iterations

    def _copies(self) -> TaskTable:
        """Each stage, from one of its peers to the trainer."""
        assert self.stages is not None  # noqa: S101 - planned
        senders = [min(pool.priority) for pool in self.pools]
        return saved(senders, [self.stages.memory(p, 1).states for p in range(len(senders))])

    def _send(self, tasks: TaskTable, tag: Any, label: str) -> Dispatch:
        self.serials += 1
        return Dispatch(tasks, tag=tag, label=label)

    def _next_iteration(self, view: View) -> list[Decision]:
        self.started = self.over = 0
        out: list[Decision] = []
        while self.started < self.window:
            out += self._another(view)
        return out

    def _another(self, view: View) -> list[Decision]:
        """The next micro-batch begins, if there is one."""
        if self.started == self.count:
            return []
        self.started += 1
        return self._route(Pass(self.started - 1, 0, backward=False), view)

    def _route(self, x: Pass, view: View, prefix: str = "") -> list[Decision]:
        """Send a pass to the peer that is expected to be done first; without peers it waits."""
        pool = self.pools[x.stage]
        if not len(pool):
            self.waiting[x.stage].append((x, prefix))
            return self._adopt(x.stage, view)
        peer = pool.choose(x.size)
        self.routed[peer] = self.routed.get(peer, 0) + 1
        label = f"{prefix}iteration {self.finished + 1} {x.label}"
        # What a peer holds stands in the first of the rows that it has at one time.
        held = self.memory.total if self.memory and not self.busy.get(peer) else 0
        self.busy[peer] = self.busy.get(peer, 0) + 1
        return [self._send(self.passes.row(x, peer, held), ("pass", x, peer, view.now_ns), label)]

    def on_done(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:
        """A pass came back, gradients are summed, or a peer has its stage's states."""
        what = dispatch.tag[0]
        if what == "pass":
            self.busy[dispatch.tag[2]] -= 1
        if what == "upkeep":
            self.open_upkeep -= 1
            return self._finish(view)
        if len(rows) < len(dispatch.tasks):
            return ()
        if what == "states":
            _, stage, device = dispatch.tag
            return self._arrived(stage, device, view)
        if what == "reduce":
            return self._reduced(view)
        _, x, peer, sent_ns = dispatch.tag
        self.pools[x.stage].observe(peer, x.size, (view.now_ns - sent_ns) / 1e9)
        P = len(self.pools)
        if not x.backward:
            last = x.stage == P - 1
            return self._route(Pass(x.micro_batch, x.stage if last else x.stage + 1, backward=last), view)
        if x.stage:
            return self._route(Pass(x.micro_batch, x.stage - 1, backward=True), view)
        self.over += 1
        return self._reduce(view) if self.over == self.count else self._another(view)

    def _reduce(self, view: View, prefix: str = "") -> list[Decision]:
        """Each pool sums its gradients around a ring, and the optimizer runs on each of its peers."""
        assert self.stages is not None  # noqa: S101 - planned
        empty = [s for s, pool in enumerate(self.pools) if not len(pool)]
        if empty:
            return [d for s in empty for d in self._adopt(s, view)]
        peers = [np.array(sorted(pool.priority), np.int64) for pool in self.pools]
        table = summed(TaskTable.build(device=[]), peers, self.stages)
        self.reducing, self.spoiled = self.serials, False
        return [self._send(table, ("reduce",), f"{prefix}iteration {self.finished + 1} sums")]

    def _reduced(self, view: View) -> list[Decision]:
        self.reducing = None
        self.finished += 1
        out: list[Decision] = [IterationDone()]
        if self.finished >= view.iterations:
            self.ended = True
            return [*out, *self._finish(view)]
        if any(now_and_then(self.config.checkpoint_every, self.finished)):
            self.open_upkeep += 1
            out.append(self._send(self._copies(), ("upkeep",), f"upkeep/after iteration {self.finished}"))
        return [*out, *self._next_iteration(view)]

    def _finish(self, view: View) -> list[Decision]:
        if not self.ended or self.open_upkeep:
            return []
        if self.fetching:  # newcomers that come too late
            self._without(len(self.fetching), view)
        return [Done(f"{self.finished} iterations")]

    # ------------------------------------------------------------------------------------------------------- departures

    def _watch(self, alarms: list[int], view: View) -> list[Decision]:
        low, high = delay_range(self.config.detection_s)
        draw = view.random("detection").uniform
        return [WakeAt(view.now_s + (draw(low, high) if low < high else low), ("notice", x)) for x in alarms]

    def on_left(self, devices: IntArray, view: View) -> Decisions:
        """Whoever sent them something hears of it after a while."""
        return self._watch(self.losses.left(devices, view.now_ns), view)

    def on_lost(self, dispatch: Sent, rows: IntArray, view: View) -> Decisions:
        """What has to be sent again is noted; the states of a newcomer are asked for again."""
        what = dispatch.tag[0]
        if what == "states":
            device = dispatch.tag[2]
            self.fetching.pop(device, None)
            record = self._without(1, view)
            return WakeAt(view.now_s + delay_range(self.config.detection_s)[1], ("again", (device, record)))
        if what not in ("pass", "reduce"):
            self._without(len(rows), view)
            return ()
        self.spoiled |= what == "reduce"
        again = dispatch.tag[1] if what == "pass" else "reduce"
        alarms = self.losses.lost(dispatch.tasks.device[rows], [again] * len(rows), view.now_ns)
        return [*self._watch(alarms, view), *self._resend(view)]

    def _without(self, rows: int, view: View) -> dict[str, Any]:
        """Training goes on without these rows, unless they are asked for again."""
        now = view.now_ns
        self.aside.append({"lost_ns": now, "detected_ns": now, "rows": rows, "absorbed": True})
        return self.aside[-1]

    def on_timer(self, tag: Any, view: View) -> Decisions:
        """Requests to peers that left fail: they are banned, and what they had is sent to others."""
        what, number = tag
        if what == "again":
            device, record = number
            served = device in self.fetching or any(device in pool.priority for pool in self.pools)
            if served or not self.losses.present[device]:
                return ()
            times = dict.fromkeys(("detected_ns", "planning_ns", "planned_ns"), view.now_ns)
            record.update(times, absorbed=False)
            return self._join(device, view, "recovery/")
        for device in self.losses.noticed(number, view.now_ns).tolist():
            self._ban(device)
        return self._resend(view)

    def _ban(self, device: int) -> None:
        for pool in self.pools:
            pool.ban(device)
        self.fetching.pop(device, None)

    def _resend(self, view: View) -> list[Decision]:
        """Send again what was noticed to be lost, once every stage has a peer."""
        if not self.losses.plannable:
            return []
        empty = [s for s, pool in enumerate(self.pools) if not len(pool)]
        if empty:
            return [d for s in empty for d in self._adopt(s, view)]
        blocks = self.losses.plan(view.now_ns)
        out: list[Decision] = []
        if "reduce" in blocks and self.reducing is not None:
            out.append(Cancel(self.reducing))
            self.further[view.now_ns] = [view.now_ns]
            out += self._reduce(view, "recovery/replay ")
        for x in blocks:
            if isinstance(x, Pass):
                out += self._route(x, view, "recovery/replay ")
        self.losses.sent(view.now_ns)
        return out

    # -------------------------------------------------------------------------------------------------------- newcomers

    def on_joined(self, devices: IntArray, view: View) -> Decisions:
        """Newcomers fetch the states of the stage with the least speed, and serve it."""
        self.losses.joined(devices)
        out: list[Decision] = []
        for device in devices.tolist():
            self._ban(device)  # what it held before is gone
        if not self.window:
            here = [d for d in self.able.tolist() if self.losses.present[d]]
            return self._begin(view, here) if len(here) >= len(self.pools) else []
        for device in devices.tolist():
            out += self._join(device, view)
        return out

    def _join(self, device: int, view: View, prefix: str = "") -> list[Decision]:
        """A device takes up a stage: one without peers, or that with the least speed."""
        if device not in self.able:
            return []
        rate = view.fleet.compute_flops(view.workload.dtype)
        coming = list(self.fetching.values())

        def speed(stage: int) -> tuple[bool, float]:
            pool = self.pools[stage]
            return len(pool) > 0 or stage in coming, sum(float(rate[d]) for d in pool.priority)

        return self._fetch(device, min(range(len(self.pools)), key=speed), prefix)

    def _adopt(self, stage: int, view: View) -> list[Decision]:  # noqa: ARG002 - as the others
        """A stage has lost all its peers: one of the largest pool takes it over, with the trainer's copy."""
        if stage in self.fetching.values():
            return []
        largest = max(self.pools, key=len)
        if len(largest) < 2:
            return []
        peer = max(largest.priority, key=largest.priority.__getitem__)
        largest.ban(peer)
        return self._fetch(peer, stage)

    def _fetch(self, device: int, stage: int, prefix: str = "") -> list[Decision]:
        """States come from a peer of the stage, or from the trainer if there is none."""
        assert self.stages is not None  # noqa: S101 - planned
        size, pool = self.stages.memory(stage, 1).states, self.pools[stage]
        self.fetching[device] = stage
        source = min(pool.priority, key=pool.priority.__getitem__) if len(pool) else None
        moves = restored([device], [size]) if source is None else copied([source], [device], [size])
        return [self._send(moves, ("states", stage, device), f"{prefix}join/states stage {stage}")]

    def _arrived(self, stage: int, device: int, view: View) -> list[Decision]:
        """A peer has what it needs: it serves what waits for the stage."""
        if self.fetching.get(device) != stage:
            return []
        del self.fetching[device]
        self.pools[stage].add(device)
        waiting, self.waiting[stage] = self.waiting[stage], []
        out = [d for x, prefix in waiting for d in self._route(x, view, prefix)]
        out += self._resend(view)
        idle = self.over == self.count and self.reducing is None and not self.ended
        return [*out, *(self._reduce(view) if idle else [])]

    # ----------------------------------------------------------------------------------------------------------- report

    def report(self) -> dict[str, Any]:
        """Pools, memory, estimate, recoveries and what was assumed."""
        out: dict[str, Any] = {"strategy": self.name, "assumptions": list(ASSUMPTIONS)}
        if self.stages is None or self.memory is None:
            return out
        recoveries = self.losses.merged()  # passes are dispatches of their own
        for record in recoveries:
            if record["detected_ns"] in self.further:
                record["further_ns"] = self.further[record["detected_ns"]]
        m = self.memory
        return out | {
            "estimate_s": self.estimated_s,
            "memory_bytes": {"states": m.states, "activations": m.activations, "other": m.other},
            "devices_left_out": {"too little memory for a stage": len(self.losses.present) - len(self.able)},
            "plan": {
                "stages": self.stages.count,
                "layers": self.stages.layers().tolist(),
                "micro_batch": self.stages.micro_batch,
                "micro_batches": self.count,
                "peers": [sorted(pool.priority) for pool in self.pools],
                "passes_of_peers": {str(d): n for d, n in sorted(self.routed.items())},
            },
            "recoveries": [*recoveries, *self.aside],
        }


ASSUMPTIONS = [
    "the coordinator is the only trainer: all activations and gradients go through its link",
    "a backward pass brings the stage's input again, and computes its forward pass again",
    "gradients that a lost peer had summed up count as if they were there; its micro-batches are not done again",
    "a stage that loses all its peers goes on with the trainer's copy, as old as its last checkpoint",
    "the first stage gets tokens, the last one has the labels and returns the loss",
]
