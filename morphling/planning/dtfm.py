"""DT-FM's planner: which devices form a stage, in which order the stages stand, and who passes on to whom.

Yuan et al., "Decentralized training of foundation models in heterogeneous environments" (NeurIPS 2022, arXiv
2206.01288), restated with its public scheduler (repository DS3Lab/DT-FM, ``scheduler``).  D = P g equally fast devices:
the g devices of a stage run data parallel, one device of each stage forms a pipeline.  Communication of one iteration:

    DP   = max over stages, over their members i, of the sum over the other members of 2 (latency + c_dp / (g bw))
    PP   = least sum along the stages of the bottleneck of the best matching between neighbours, latency + c_pp / bw
    COMM = DP + 2 PP                                    (activations forward, gradients backward)

The cost model and the search for groups belong here; pair matching and routes are in `morphling.planning.matching`.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from morphling.errors import Infeasible, PlanError
from morphling.planning.matching import EXACT_ROUTE, bottleneck_matching, bottleneck_value, cheapest_path
from morphling.types import BoolArray, FloatArray, IntArray

__all__ = ["CommunicationCost", "DtfmCosts", "DtfmPlan", "plan_dtfm"]

POPULATION, OFFSPRING, CROSSOVER_POINTS = 100, 4900, 5
"""Of the public scheduler."""
GAINS = ("spread", "apart", "gather")
"""What the moves of a child aim at, in turn.

spread (the public scheduler's default): away from a group in which the device has a near member, to the group that is
farthest on average, because pipelines need near devices in different groups;  gather (its baseline, after Kernighan
and Lin): from a group that is far on average to one that is near;  apart (ours): to the group whose nearest member is
farthest, which finds one device of each region in every group where averages do not.
"""


class CommunicationCost(NamedTuple):
    """Seconds of one iteration: ``total_s`` = ``data_parallel_s`` + 2 ``pipeline_s``."""

    total_s: float
    data_parallel_s: float
    pipeline_s: float


@dataclass(frozen=True, eq=False)
class DtfmPlan:
    """Where every tasklet runs, and how the plan was found.

    pipelines : int64[P, g]     device of stage p in pipeline i; a row is the data-parallel group of a stage
    cost : `CommunicationCost`;  hops_s : float64[P - 1], slowest transfer between neighbouring stages, one way
    exact_order : the order of the stages is proven the best for these groups
    evaluations : candidates whose cost was worked out;  asked : how many were asked for
    cut : the time limit ended the search early.  Only then does the plan depend on the machine; the same seed with
        ``evaluations`` of this plan and no time limit finds it again.
    seed : of the search
    """

    pipelines: IntArray
    cost: CommunicationCost
    hops_s: FloatArray
    exact_order: bool
    evaluations: int
    asked: int
    cut: bool
    seed: int


class DtfmCosts:
    """DT-FM's cost model on D devices: ``within`` and ``across``, float64[D, D], seconds of one pair.

    Parameters
    ----------
    latency_s
        float[D, D], one way; the diagonal is not read.
    bandwidth
        float[D, D], bytes/s from row to column, above zero.
    gradient_bytes
        c_dp, the gradients of one stage.
    activation_bytes
        c_pp, what one device passes on in an iteration.
    stages
        P, at least 1; it must divide D.

    The public matrices are symmetric.  Where they are not, a pair costs half of there and back, so that 2 PP is both.
    Raises `PlanError` on wrong shapes or values, `Infeasible` where P does not divide D.
    """

    def __init__(
        self,
        latency_s: ArrayLike,
        bandwidth: ArrayLike,
        *,
        gradient_bytes: float,
        activation_bytes: float,
        stages: int,
    ) -> None:
        latency, rate = np.array(latency_s, np.float64), np.array(bandwidth, np.float64)
        size = len(rate)
        if rate.shape != (size, size) or latency.shape != (size, size) or not size:
            raise PlanError(f"latency {latency.shape} and bandwidth {rate.shape} must be square and of one size")
        np.fill_diagonal(latency, 0.0)
        np.fill_diagonal(rate, np.inf)
        if not (np.isfinite(latency).all() and (latency >= 0).all() and (rate > 0).all()):
            raise PlanError("latencies must be finite and not negative, bandwidths above zero")
        if not (0 <= gradient_bytes < np.inf and 0 <= activation_bytes < np.inf):
            raise PlanError("gradient_bytes and activation_bytes must be finite and not negative")
        if stages < 1 or size % stages:
            near = [p for p in range(1, size + 1) if size % p == 0]
            best = min(near, key=lambda p: (abs(p - stages), p))
            raise Infeasible(f"dtfm: {size} devices cannot form {stages} equal stages; the nearest number is {best}")
        self.size, self.stages, self.members = size, stages, size // stages
        self.within = 2.0 * (latency + gradient_bytes / (self.members * rate))
        across = latency + activation_bytes / rate
        self.across = 0.5 * (across + across.T)

    def data_parallel_s(self, groups: IntArray) -> float:
        """DP of ``groups``, int64[P, g]."""
        return float(self.within[groups[:, :, None], groups[:, None, :]].sum(axis=2).max())

    def between(self, groups: IntArray) -> FloatArray:
        """Bottleneck of the best matching between every two groups, float64[P, P], seconds."""
        out = np.zeros((self.stages, self.stages))
        pairs = self.across[groups[:, None, :, None], groups[None, :, None, :]]
        for x in range(self.stages):
            for y in range(x + 1, self.stages):
                out[x, y] = out[y, x] = bottleneck_value(pairs[x, y])
        return out

    def evaluate(self, groups: ArrayLike, exact: int = EXACT_ROUTE) -> CommunicationCost:
        """COMM of a partition, int[P, g], with the best order found for its stages (`cheapest_path`)."""
        members = self._groups(groups)
        route, _, _ = cheapest_path(self.between(members), exact)
        data = self.data_parallel_s(members)
        return CommunicationCost(data + 2.0 * route, data, route)

    def pipelines(self, groups: ArrayLike, exact: int = EXACT_ROUTE) -> tuple[IntArray, FloatArray, bool]:
        """The groups in pipeline order with columns matched, the slowest hops, and whether the order is exact."""
        members = self._groups(groups)
        _, order, proven = cheapest_path(self.between(members), exact)
        rows, hops = [members[order[0]]], []
        for stage in order[1:]:
            slowest, columns = bottleneck_matching(self.across[np.ix_(rows[-1], members[stage])])
            rows.append(members[stage][columns])
            hops.append(slowest)
        return np.array(rows, np.int64), np.array(hops, np.float64), proven

    def _groups(self, groups: ArrayLike) -> IntArray:
        members = np.asarray(groups, np.int64)
        wanted = (self.stages, self.members)
        if members.shape != wanted or not np.array_equal(np.sort(members, axis=None), np.arange(self.size)):
            raise PlanError(f"groups must hold each of {self.size} devices once, as int[{wanted[0]}, {wanted[1]}]")
        return members


def plan_dtfm(
    costs: DtfmCosts,
    seed: int,
    *,
    population: int = POPULATION,
    offspring: int = OFFSPRING,
    evaluations: int | None = None,
    time_limit_s: float | None = 20.0,
    structured: bool = True,
    exact: int = EXACT_ROUTE,
) -> DtfmPlan:
    """DT-FM's genetic search for the groups (GCMA), with a seed.

    ``population`` random partitions; then ``offspring`` times: two parents, five-point crossover, group sizes repaired,
    cyclic moves of single devices between groups, and the child replaces the worse parent if it is not worse.

    Where we part from the public scheduler, which does not repeat (it assigns ``random.seed`` instead of calling it):
    the generator is seeded; a child is compared with its worse parent (there with a boolean); moves take turns between
    the two gains that it offers as modes and a third (`GAINS`), and every fourth child is instead the better parent
    with two devices exchanged; with ``structured`` the first two partitions are consecutive devices and devices P
    apart, which are often the best that regions of a network allow.

    ``evaluations`` ends the search after so many candidates (default: all), ``time_limit_s`` after so much time; `cut`
    in the plan tells the latter.  Up to ``exact`` stages are ordered exactly.  `PlanError` on a number below its least.
    """
    if population < 1 or offspring < 0 or (evaluations is not None and evaluations < 1):
        raise PlanError("population and evaluations must be at least 1, offspring not negative")
    if time_limit_s is not None and not time_limit_s > 0:
        raise PlanError(f"time_limit_s is {time_limit_s}; it must be above zero, or None")
    asked = population + offspring if evaluations is None else min(evaluations, population + offspring)
    end = None if time_limit_s is None else monotonic() + time_limit_s
    search = _Search(costs, np.random.default_rng(seed), exact)
    done = 0
    # The first candidate is always looked at, so that there is a plan.
    while done < asked and not (done and end is not None and monotonic() >= end):
        search.first(done, structured=structured) if done < population else search.child(done - population)
        done += 1
    best = int(np.argmin([cost.total_s for cost in search.costs]))
    pipelines, hops, proven = costs.pipelines(search.grouped(search.labels[best]), exact)
    return DtfmPlan(pipelines, search.costs[best], hops, proven, done, asked, done < asked, seed)


class _Search:
    """The population: of each device the group it is in, int64[D], and the cost."""

    def __init__(self, model: DtfmCosts, random: np.random.Generator, exact: int) -> None:
        self.model, self.random, self.exact = model, random, exact
        self.labels: list[IntArray] = []
        self.costs: list[CommunicationCost] = []

    def grouped(self, labels: IntArray) -> IntArray:
        return np.argsort(labels, kind="stable").reshape(self.model.stages, self.model.members)

    def first(self, number: int, *, structured: bool) -> None:
        ids, model = np.arange(model_size := self.model.size), self.model
        # Drawn in any case, so that the random ones are the same with and without the structured ones.
        labels = self.random.permutation(model_size) // model.members
        if structured and number < 2:
            labels = ids // model.members if number == 0 else ids % model.stages
        self.labels.append(labels)
        self.costs.append(model.evaluate(self.grouped(labels), self.exact))

    def child(self, number: int) -> None:
        one, two = self.random.integers(len(self.labels), size=2)
        turn = number % (len(GAINS) + 1)
        if turn < len(GAINS):
            labels = self._repaired(self._crossed(self.labels[one], self.labels[two]))
            labels = _moved(labels, self.model.across, self.model.stages, GAINS[turn])
        else:
            one = two = min(one, two, key=lambda parent: self.costs[parent].total_s)
            labels = self._swapped(self.labels[one])
        cost = self.model.evaluate(self.grouped(labels), self.exact)
        worse = int(one if self.costs[one].total_s > self.costs[two].total_s else two)
        if cost.total_s <= self.costs[worse].total_s:
            self.labels[worse], self.costs[worse] = labels, cost

    def _crossed(self, one: IntArray, two: IntArray) -> IntArray:
        """The second parent with five devices where the first parent has them."""
        labels = two.copy()
        points = self.random.permutation(len(labels))[:CROSSOVER_POINTS]
        labels[points] = one[points]
        return labels

    def _swapped(self, labels: IntArray) -> IntArray:
        """Two devices of different groups exchanged: small steps on the real cost, where gains only stand for it."""
        labels = labels.copy()
        first = int(self.random.integers(len(labels)))
        others = np.flatnonzero(labels != labels[first])
        if len(others):
            second = int(self.random.choice(others))
            labels[first], labels[second] = labels[second], labels[first]
        return labels

    def _repaired(self, labels: IntArray) -> IntArray:
        """Every group has its size again: the first devices of full groups go where room is."""
        sizes = np.bincount(labels, minlength=self.model.stages)
        for device in np.flatnonzero(sizes[labels] > self.model.members):
            if sizes[labels[device]] > self.model.members:
                room = int(np.argmax(sizes < self.model.members))
                sizes[labels[device]] -= 1
                sizes[room] += 1
                labels[device] = room
        return labels


def _moved(labels: IntArray, pair_s: FloatArray, stages: int, aim: str) -> IntArray:
    """Cycles of moves of one device each, every cycle kept as far as it gains; a device moves at most once."""
    labels, locked = labels.copy(), np.zeros(len(labels), bool)
    for _ in range(stages):
        moves, totals = _cycle(_Groups(labels, pair_s, stages, aim), locked)
        if not moves or max(totals) <= 1e-12:
            break
        last = int(np.argmax(totals))
        for device, _, target in moves[:last]:
            labels[device] = target
        labels[moves[last][0]] = moves[0][1]  # closes the cycle
    return labels


def _cycle(groups: _Groups, locked: BoolArray) -> tuple[list[tuple[int, int, int]], list[float]]:
    """Moves (device, from, to) until the first group has its size again, and what closing at each would gain in all.

    ``groups`` and ``locked`` are changed on the way.
    """
    moves: list[tuple[int, int, int]] = []
    totals: list[float] = []
    gained, movable = 0.0, np.flatnonzero(~locked)
    while len(movable):
        gain = groups.gains(movable)
        row, target = divmod(int(np.argmax(gain)), groups.stages)
        device = int(movable[row])
        source = int(groups.labels[device])
        start = moves[0][1] if moves else source
        totals.append(gained + float(gain[row, start]))  # -inf for the first move: it closes nothing
        moves.append((device, source, target))
        gained += float(gain[row, target])
        groups.move(device, target)
        locked[device] = True
        if target == start:
            break
        movable = np.flatnonzero((groups.labels == target) & ~locked)
    return moves, totals


class _Groups:
    """Groups while devices move: per device and group the sum of the pairs and the cheapest pair, float64[D, P]."""

    def __init__(self, labels: IntArray, pair_s: FloatArray, stages: int, aim: str) -> None:
        self.labels, self.pair_s, self.stages, self.aim = labels.copy(), pair_s, stages, aim
        self.dearest = float(pair_s.max())
        self.others = pair_s.copy()
        np.fill_diagonal(self.others, np.inf)
        self.counts = np.bincount(labels, minlength=stages).astype(np.float64)
        members = np.argsort(labels, kind="stable")
        starts = np.arange(stages) * (len(labels) // stages)  # groups are equal to begin with
        self.total = np.add.reduceat(pair_s[:, members], starts, axis=1)  # a device with itself costs 0
        self.nearest = np.minimum.reduceat(self.others[:, members], starts, axis=1)
        np.minimum(self.nearest, self.dearest, out=self.nearest)

    def _renew(self, group: int) -> None:
        # Nobody there is as good as nobody near.
        members = self.others[:, self.labels == group]
        self.nearest[:, group] = members.min(axis=1, initial=self.dearest)

    def move(self, device: int, target: int) -> None:
        source = int(self.labels[device])
        self.labels[device] = target
        for group, sign in ((source, -1.0), (target, 1.0)):
            self.counts[group] += sign
            self.total[:, group] += sign * self.pair_s[:, device]
        self._renew(source)
        np.minimum(self.nearest[:, target], self.others[:, device], out=self.nearest[:, target])

    def gains(self, devices: IntArray) -> FloatArray:
        """What moving each of ``devices`` to each group gains, seconds of a pair; -inf where it is already."""
        own, rows = self.labels[devices], np.arange(len(devices))
        nearest = self.nearest[devices]
        near = nearest[rows, own][:, None]
        if self.aim == "apart":
            gain = nearest - near
        else:
            total = self.total[devices]
            mean = total / np.maximum(self.counts, 1.0)
            among = total[rows, own] / np.maximum(self.counts[own] - 1.0, 1.0)
            gain = mean - near if self.aim == "spread" else among[:, None] - mean
        gain[rows, own] = -np.inf
        return gain
