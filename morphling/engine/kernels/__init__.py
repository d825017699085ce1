"""The compiled loops: links in exact integers, the closed lane, the event lane, fair sharing.

Everything here is plain Python over flat arrays, so that one source runs both interpreted (over memoryviews, no import
cost) and compiled by numba (`morphling.engine.compiled`), with bit-identical results.  These files call nothing outside
this folder and keep their state in named tuples of arrays.  A name is defined once in the whole folder: compiled, the
files share one namespace.

Exact links.  A trace is a step function of whole millibits per second over whole nanoseconds.  The service it has given
since its start is kept as a pair (millibits, billionths of one), so that products of a rate and a time are exact: a
transfer ends at the first nanosecond at which the integral of the rate has reached its size, with no floating point
involved.  Rates stay below 2^50 millibit/s (1.1 Tbit/s) and one period of a trace below 2^61 millibits
(`morphling.engine.links` checks both).

Two lanes.  `closed` resolves a whole dispatch row by row when no capacity is shared.  `lane` is an event loop over
device queues for everything else: the coordinator's link shared max-min fairly (`water`: virtual-time water-filling,
O(log n) a change), half-duplex links, and cells, transfers between devices and TCP (`network`: progressive filling in
the components that a change touches).

`orders` carries out a standing order over the closed lane: which row starts next, and who comes and goes meanwhile.

Heat.  Computing takes longer at a lower clock, and the clock goes by the heat that a device carries from row to row
(`heat`); without heat that is left out when the kernels are compiled.

Fair sharing.  Flows above the water level share one rate, so they are ordered by *virtual* finish (V = the integral of
the level); flows below it run at their own cap and are ordered by real finish.  Rates are reals, so the shared lane
works in float64 and rounds each completion to the nanosecond.
"""

from __future__ import annotations

from morphling.engine.kernels import closed, filling, heap, heat, lane, links, network, orders, records, stages, water

__all__ = ["ENTRIES", "SOURCES"]

SOURCES = (records, links, heat, closed, orders, water, filling, network, heap, stages, lane)
ENTRIES = (
    closed.run_closed,
    orders.order_run,
    lane.submit,
    lane.advance,
    lane.drop_device,
    lane.withdraw,
    links.transfer_end,
)
