"""Which lane a run takes, by what its links share."""

from __future__ import annotations

from morphling.engine.closed_lane import ClosedLane
from morphling.engine.event_lane import EventLane
from morphling.engine.kernels.records import Heat
from morphling.engine.links import link_arrays, nic_can_bind
from morphling.engine.network import network_arrays
from morphling.errors import EngineError
from morphling.fleet import Fleet

__all__ = ["lane_of"]


def lane_of(
    fleet: Fleet, lane: str | None, *, peers: bool, batteries: bool, heat: Heat | None, compiled: bool | None
) -> ClosedLane | EventLane:
    """The closed lane where nothing is shared, else the event lane; ``lane`` forces one.

    Raises ``EngineError`` if the closed lane is asked for and cannot serve.
    """
    shares = nic_can_bind(fleet.links, fleet.coordinator)
    network = peers or fleet.links.cells is not None or fleet.links.tcp is not None
    needs_events = network or any(shares) or bool(fleet.links.half_duplex.any()) or batteries
    if lane == "closed" and needs_events:
        what = "batteries" if batteries else "links that share a capacity or a channel"
        raise EngineError(f"the closed lane cannot serve {what}")
    arrays = link_arrays(fleet.links)
    if not needs_events and lane != "events":
        return ClosedLane(arrays, fleet.size, heat=heat, compiled=compiled)
    out_bps = fleet.coordinator.uplink_bps if shares[0] and not network else None
    in_bps = fleet.coordinator.downlink_bps if shares[1] and not network else None
    net = network_arrays(fleet.links, fleet.coordinator) if network else None
    return EventLane(
        arrays, fleet.size, fleet.links.half_duplex, out_bps, in_bps, net=net, heat=heat, compiled=compiled
    )
