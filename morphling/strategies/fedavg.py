"""FedAvg: synchronous federated averaging, timing only (McMahan et al. 2017; rounds as in Bonawitz et al. 2019).

The server selects K clients and some more, sends each the model, and commits the round when K have reported, or when
its deadline passes with enough of them.  Who has not reported by then is late, and is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any, ClassVar, Literal

import numpy as np

from morphling.errors import Infeasible
from morphling.interfaces.strategy import Decisions
from morphling.interfaces.tasks import TaskTable
from morphling.interfaces.view import View
from morphling.planning.local_training import (
    LocalTraining,
    LocalTrainingConfig,
    local_training,
    shared_assumptions,
)
from morphling.planning.rounds import Round, RoundStrategy, Verdict
from morphling.types import IntArray
from morphling.units import format_bytes

__all__ = ["FedAvg", "FedAvgConfig"]


@dataclass(frozen=True)
class FedAvgConfig(LocalTrainingConfig):
    """Configuration of FedAvg.

    clients_per_round : K, reports that commit a round
    over_commitment : clients selected for each report that is wanted (1.3: 130 % of K, rounded up)
    deadline_s : seconds after the selection at which a round ends; left out, it waits for whoever has not left
    minimum_reports : reports with which a round may be committed at its deadline, or when nobody is left to report;
        with fewer it is abandoned and tried again.  With fewer devices here than that, no round is begun
    retries : how often in a row a round may be abandoned before the run stops with an error
    selection : among the devices here at that moment: ``uniform``, or the ``fastest`` by the server's estimate
    """

    clients_per_round: int = 100
    over_commitment: float = 1.3
    deadline_s: float | None = None
    minimum_reports: int = 1
    retries: int = 10
    selection: Literal["uniform", "fastest"] = "uniform"

    def __post_init__(self) -> None:
        """Refuse counts, shares and deadlines that mean nothing."""
        super().__post_init__()
        for name in ("clients_per_round", "minimum_reports"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: at least 1, not {getattr(self, name)}")
        if self.minimum_reports > self.clients_per_round:
            raise ValueError(
                f"minimum_reports: at most clients_per_round ({self.clients_per_round}), not {self.minimum_reports}"
            )
        if not (isfinite(self.over_commitment) and self.over_commitment >= 1):
            raise ValueError(f"over_commitment: from 1 on (1.3 selects 130 %), not {self.over_commitment:g}")
        if self.deadline_s is not None and not (isfinite(self.deadline_s) and self.deadline_s > 0):
            raise ValueError(f"deadline_s: seconds above 0, not {self.deadline_s:g}; leave it out for none")
        if self.retries < 0:
            raise ValueError(f"retries: from 0 on, not {self.retries}")

    @property
    def wanted(self) -> int:
        """Clients to select."""
        return ceil(round(self.clients_per_round * self.over_commitment, 9))  # 1.1 · 10 is 11, not 11.000000000000002


class FedAvg(RoundStrategy):
    """Rounds of local training on selected clients, with over-commitment and a deadline; timing only."""

    Config: ClassVar[type] = FedAvgConfig
    name: ClassVar[str] = "fedavg"
    config: FedAvgConfig

    def __init__(self, config: FedAvgConfig | None = None) -> None:
        super().__init__(config or FedAvgConfig())
        self.retries = self.config.retries  # type: ignore[misc] # the scenario's, instead of the class's
        self.local: LocalTraining | None = None
        self.estimate_s: float | None = None
        self.fastest_s = 0.0

    # ---------------------------------------------------------------------------------------------------------- hooks

    def start(self, view: View) -> Decisions:
        """Work out what each client does, and begin."""
        self.local = local_training(self.config, view)
        eligible = int(self.local.eligible.sum())
        if eligible < self.config.minimum_reports:
            raise Infeasible(
                f"minimum_reports is {self.config.minimum_reports}, and {eligible} of {view.fleet.size} devices can"
                f" train the model ({_reasons(self.local.left_out)}; needed {format_bytes(self.local.memory.total)})"
            )
        return super().start(view)

    def select(self, available: IntArray, view: View) -> IntArray:
        """As many as are wanted and here; nobody if they could not commit a round."""
        local = self._local
        able = available[local.eligible[available]]
        if len(able) < self.config.minimum_reports:
            return able[:0]
        n = min(self.config.wanted, len(able))
        if self.config.selection == "fastest":
            order = np.argsort(local.seconds(able, view), kind="stable")
            chosen = np.sort(able[order[:n]])
        else:
            chosen = np.sort(view.random("selection").choice(able, n, replace=False))
        if self.estimate_s is None:
            self._estimate(chosen, view)
        return chosen

    def tasks(self, devices: IntArray, view: View) -> TaskTable:  # noqa: ARG002 - the rows are worked out already
        """Download, training and upload of the selected clients."""
        return self._local.tasks.take(devices)

    def accept(self, current: Round, devices: IntArray, view: View) -> IntArray:  # noqa: ARG002 - counted
        """The first K, of those that report at one instant in the order of the fleet."""
        return devices[: self.config.clients_per_round - len(current.reported)]

    def close(self, current: Round, view: View) -> Verdict | None:  # noqa: ARG002 - counted, not timed
        """At K reports; else at the deadline; without one when nobody is left to report."""
        reports = len(current.reported)
        if reports >= min(self.config.clients_per_round, len(current.devices)):
            return "commit"
        # With a deadline the server does not know who died, and waits for it.
        over = current.overdue if self.config.deadline_s is not None else not current.waiting
        if not over:
            return None
        return "commit" if reports >= self.config.minimum_reports else "abandon"

    def deadline(self, view: View) -> float | None:  # noqa: ARG002 - the same for every round
        """As the scenario says."""
        return self.config.deadline_s

    def gave_up(self, current: Round) -> str:
        """With the deadline, where there is one, and the estimate to lay beside it."""
        limit = self.config.deadline_s
        if limit is None or self.estimate_s is None:
            return super().gave_up(current)
        fastest = self.fastest_s
        return (
            f"{super().gave_up(current)}; deadline_s is {limit:g}, and the fastest client needs about {fastest:.4g} s"
        )

    def report(self) -> dict[str, Any]:
        """Counts of rounds and clients, the estimate of the first round, who was left out, and what was assumed."""
        out: dict[str, Any] = {
            "strategy": "fedavg",
            **self.round_report(),
            "summary": [self.round_summary()],
            "assumptions": [*shared_assumptions(self.config), *self._assumptions()],
        }
        if self.local is not None:
            out["eligible"] = int(self.local.eligible.sum())
            out["devices_left_out"] = dict(self.local.left_out)
            out["client_memory_bytes"] = self.local.memory.total
        if self.estimate_s is not None:
            out["estimate_s"] = self.estimate_s
        return out

    # --------------------------------------------------------------------------------------------------------- pieces

    @property
    def _local(self) -> LocalTraining:
        assert self.local is not None  # noqa: S101 - start sets it
        return self.local

    def _estimate(self, chosen: IntArray, view: View) -> None:
        """The first round: its K-th report at the rates that the view shows, or the deadline."""
        seconds = np.sort(self._local.seconds(chosen, view))
        self.fastest_s = float(seconds[0])
        kth = float(seconds[min(self.config.clients_per_round, len(chosen)) - 1])
        self.estimate_s = kth if self.config.deadline_s is None else min(kth, self.config.deadline_s)

    def _assumptions(self) -> list[str]:
        c = self.config
        notes = [
            "a client that has not reported when its round closes is withdrawn; in a later round it starts afresh",
            f"a round wants {c.clients_per_round} reports of {c.wanted} clients, or of all that are here if fewer are",
            "estimate_s is the first round, at nominal rates of links, without departures",
        ]
        if c.deadline_s is None:
            notes.append("without a deadline the server knows at once that a client has left")
        else:
            notes.append("with a deadline the server does not notice that a client has left, and waits until then")
        return notes


def _reasons(left_out: dict[str, int]) -> str:
    return ", ".join(f"{reason}: {n}" for reason, n in left_out.items()) or "the fleet has no more"
