"""Heat: two stores of heat in a row, a governor that lowers the clock, and how long computing takes under both.

Between two decisions of the governor power is constant, so temperatures are sums of exponentials and the instants at
which the case reaches its trip temperature, or has cooled down, are found in closed form.  The state of a device is
carried from row to row; while nothing computes it cools at idle power.

The governor acts at most once a second.  With clock steps it goes down or up by one; with any clock allowed it goes
down to the highest clock that the case can bear for ever, and up to the full one.
"""

from __future__ import annotations

from math import exp, floor, log

from morphling.engine.kernels.records import (
    ACTED_AT,
    ACTS_AT,
    AMBIENT,
    CASE,
    CASE_K_W,
    CLOCK,
    COOL_S,
    COOLED,
    DYNAMIC_W,
    EXPONENT,
    HOTTEST,
    IDLE_W,
    JOULES,
    JUNCTION,
    JUNCTION_K_W,
    JUNCTION_S,
    LOWEST,
    LOWEST_CLOCK,
    RUN_END,
    RUN_START,
    RUN_STRETCH,
    RUN_WORK,
    SINCE,
    SLOWS,
    STATES,
    STATIC_W,
    STEP,
    THROTTLED,
    TRIP,
    WARM_S,
    WATCH,
)

GOVERNOR_NS = 1_000_000_000.0  # at most one decision a second
NEAR = 1e-9  # kelvin


def time_to(target, case, level, tau):
    """Nanoseconds until a case on its way to ``target`` is at ``level``, which lies between; 0 if it is there."""
    if (target - level) * (level - case) <= 0.0:
        return 0.0
    return tau * log((target - case) / (target - level)) * 1e9


def power_at(h, d, clock):
    """Power while computing at a clock, W."""
    return h.law[d, STATIC_W] + h.law[d, DYNAMIC_W] * clock ** h.law[d, EXPONENT]


def bearable_clock(h, d, clock):
    """The highest clock, from the floor to ``clock``, at which the case settles at its trip temperature."""
    spare = (h.law[d, TRIP] - h.law[d, AMBIENT]) / h.law[d, CASE_K_W] - h.law[d, STATIC_W]
    if spare <= 0.0 or h.law[d, DYNAMIC_W] <= 0.0:
        return h.law[d, LOWEST_CLOCK]
    found = (spare / h.law[d, DYNAMIC_W]) ** (1.0 / h.law[d, EXPONENT])
    return min(max(found, h.law[d, LOWEST_CLOCK]), clock)


def decay(x):
    """``exp(-x)``; by its series, exact to 2e-15, where ``x`` is small, as it is for most rows."""
    if x < 0.01:
        return 1.0 - x * (1.0 - x / 2.0 * (1.0 - x / 3.0 * (1.0 - x / 4.0 * (1.0 - x / 5.0))))
    return exp(-x)


def relaxed_case(target, case, tau, ns):
    """Temperature of the case after ``ns``."""
    return target + (case - target) * decay(ns / 1e9 / tau)


def relaxed_junction(own, over, target, case, tau, junction, ns):
    """Temperature of the junction after ``ns`` in which the case went from ``case`` towards ``target``.

    ``own`` is the junction's time constant, s, and ``over`` how far above the case it settles, K.
    """
    if abs(tau - own) < 1e-6 * tau:
        own = own * (1.0 - 1e-6)
    slow = (case - target) * tau / (tau - own)
    fast = junction - target - over - slow
    return target + over + slow * decay(ns / 1e9 / tau) + fast * decay(ns / 1e9 / own)


def heat_note(h, d, now, clock, case, junction):
    """Write down a point of the curve of a watched device; thinned to every second point when the room is full."""
    place = h.clock[d, WATCH]
    if place < 0:
        return
    n = h.noted[place, 0]
    while n > 0 and h.note[place, n - 1, 0] > now:  # what was worked out before a withdrawal
        n -= 1
    if n > 0 and now - h.note[place, n - 1, 0] < h.noted[place, 1] and clock == h.note[place, n - 1, 1]:
        h.noted[place, 0] = n
        return
    if n == h.note.shape[1]:
        n = n // 2
        for i in range(n):
            for j in range(4):
                h.note[place, i, j] = h.note[place, 2 * i, j]
        h.noted[place, 1] = 2 * h.noted[place, 1] + 1_000_000
    h.note[place, n, 0] = now
    h.note[place, n, 1] = clock
    h.note[place, n, 2] = case
    h.note[place, n, 3] = junction
    h.noted[place, 0] = n + 1


def heat_idle(h, d, now):
    """Bring a device that does nothing to ``now``."""
    ns = float(now - h.clock[d, SINCE])
    if ns <= 0.0:
        return
    watts, case = h.law[d, IDLE_W], h.state[d, CASE]
    target = h.law[d, AMBIENT] + h.law[d, CASE_K_W] * watts
    tau = h.law[d, WARM_S] if target > case else h.law[d, COOL_S]
    clock = h.state[d, CLOCK]
    if clock < 1.0 and (case <= h.law[d, COOLED] or target < h.law[d, COOLED]):
        first = max(time_to(target, case, h.law[d, COOLED], tau), float(h.clock[d, ACTS_AT] - h.clock[d, SINCE]))
        if first <= ns:
            if h.law[d, STEP] > 0.0:
                steps = 1.0 + floor((ns - first) / GOVERNOR_NS)
                h.state[d, CLOCK] = min(1.0, clock + steps * h.law[d, STEP])
                h.clock[d, ACTS_AT] = h.clock[d, SINCE] + int(first + steps * GOVERNOR_NS)
            else:
                h.state[d, CLOCK] = 1.0
    h.state[d, JUNCTION] = relaxed_junction(
        h.law[d, JUNCTION_S], h.law[d, JUNCTION_K_W] * watts, target, case, tau, h.state[d, JUNCTION], ns
    )
    h.state[d, CASE] = relaxed_case(target, case, tau, ns)
    h.clock[d, SINCE] = now


def heat_run(h, d, start, work, stretch, limit, undo):
    """When ``work`` nanoseconds of computing at full clock, begun at ``start``, are over.

    ``stretch`` is the share of them that a lower clock stretches: at clock c they take ``max(1, stretch / c)`` times as
    long.  The device's state is brought to the end, but not beyond ``limit``, at which the row is cut.  With ``undo``
    the state before is kept, for `heat_cut`.
    """
    if h.law[d, SLOWS] == 0.0 or work == 0 or start >= limit:
        h.clock[d, RUN_END] = start + work
        return start + work
    heat_idle(h, d, start)
    if undo:
        for j in range(STATES):
            h.state[d, STATES + j] = h.state[d, j]
        h.clock[d, ACTED_AT] = h.clock[d, ACTS_AT]
        h.clock[d, RUN_START], h.clock[d, RUN_WORK] = start, work
        h.state[d, RUN_STRETCH] = stretch
    case, junction, clock = h.state[d, CASE], h.state[d, JUNCTION], h.state[d, CLOCK]
    if h.clock[d, WATCH] >= 0:
        heat_note(h, d, start, clock, case, junction)
    lowest, trip, release = h.law[d, LOWEST_CLOCK], h.law[d, TRIP], h.law[d, COOLED]
    own, r_junction = h.law[d, JUNCTION_S], h.law[d, JUNCTION_K_W]
    spent, left, hold = 0.0, float(work), float(h.clock[d, ACTS_AT] - start)
    cut = float(limit - start)
    kept = False
    while True:
        speed = min(1.0, clock / stretch) if stretch > 0.0 else 1.0
        watts = power_at(h, d, clock) if clock < 1.0 else h.law[d, STATIC_W] + h.law[d, DYNAMIC_W]
        target = h.law[d, AMBIENT] + h.law[d, CASE_K_W] * watts
        tau = h.law[d, WARM_S] if target > case else h.law[d, COOL_S]
        span, act = left / speed, 0
        # an exponential stays below its tangent: most rows are over long before the case can be too warm
        if clock > lowest and target > trip + NEAR and case + (target - case) * (span / 1e9 / tau) >= trip:
            due = max(time_to(target, case, trip, tau) if case < trip else 0.0, hold - spent)
            if due < span:
                span, act = due, -1
        elif clock < 1.0 and (case <= release + NEAR or target < release):
            due = max(time_to(target, case, release, tau) if case > release else 0.0, hold - spent)
            if due < span:
                span, act = due, 1
        part = span
        if not kept and spent + span > cut:
            part = cut - spent
        if not kept:
            h.state[d, JOULES] += (watts - h.law[d, IDLE_W]) * part / 1e9
            h.state[d, JUNCTION] = relaxed_junction(own, r_junction * watts, target, case, tau, junction, part)
            h.state[d, CASE] = relaxed_case(target, case, tau, part)
            h.state[d, CLOCK] = clock
            h.state[d, HOTTEST] = max(h.state[d, HOTTEST], h.state[d, CASE])
            if part > 0.0:
                h.state[d, LOWEST] = min(h.state[d, LOWEST], clock)
            if clock < 1.0:
                h.state[d, THROTTLED] += part
            h.clock[d, SINCE] = start + int(floor(spent + part + 0.5))  # noqa: RUF046 - compiled, floor gives a float
            h.clock[d, ACTS_AT] = start + int(hold)
            kept = part < span
        if not kept:  # as just written down
            junction, case = h.state[d, JUNCTION], h.state[d, CASE]
        else:
            junction = relaxed_junction(own, r_junction * watts, target, case, tau, junction, span)
            case = relaxed_case(target, case, tau, span)
        left -= span * speed
        spent += span
        if act == 0:
            break
        hold = spent + GOVERNOR_NS
        if act > 0:
            clock = min(1.0, clock + h.law[d, STEP]) if h.law[d, STEP] > 0.0 else 1.0
        elif h.law[d, STEP] > 0.0:
            clock = max(lowest, clock - h.law[d, STEP])
            if clock - lowest < NEAR:
                clock = lowest
        else:
            clock = bearable_clock(h, d, clock)
        if not kept:
            h.state[d, CLOCK] = clock
            h.clock[d, ACTS_AT] = start + int(hold)
            heat_note(h, d, start + int(spent), clock, case, junction)
    end = start + int(floor(spent + 0.5))  # noqa: RUF046
    if not kept and h.clock[d, WATCH] >= 0:
        heat_note(h, d, end, clock, case, junction)
    h.clock[d, RUN_END] = end
    return end


def heat_cut(h, d, now):
    """What a device computes is cut at ``now``: take it back, run it until now.  Returns the time not worked, ns."""
    if h.clock[d, RUN_END] <= now:
        return 0
    unworked = h.clock[d, RUN_END] - now
    if h.law[d, SLOWS] == 0.0:
        return unworked
    for j in range(STATES):
        h.state[d, j] = h.state[d, STATES + j]
    h.clock[d, ACTS_AT] = h.clock[d, ACTED_AT]
    h.clock[d, SINCE] = h.clock[d, RUN_START]
    if now > h.clock[d, RUN_START]:
        heat_run(h, d, h.clock[d, RUN_START], h.clock[d, RUN_WORK], h.state[d, RUN_STRETCH], now, False)
    h.clock[d, RUN_END] = now
    return unworked
