"""Exact links: a transfer ends at the first nanosecond at which the integral of its rate has reached its size."""

from __future__ import annotations

from morphling.engine.kernels.records import (
    DOWN_RATE,
    ERROR,
    FAR,
    FIRST,
    GIGA,
    HOLD,
    LAST,
    MAX_LAPS,
    NEVER,
    OFFSET,
    PAST_END,
    PERIOD,
    REPEAT,
    START,
    TRACE,
    UP_RATE,
)


def product(rate, ns):
    """``rate`` (< 2^50) times ``ns`` (<= 2·10^9) as (millibits, billionths of one), exactly."""
    high = (rate >> 25) * ns
    q = high // GIGA
    low = ((high - q * GIGA) << 25) + (rate & 0x1FFFFFF) * ns
    r = low // GIGA
    return (q << 25) + r, low - r * GIGA


def service(rate, ns):
    """``rate`` times any ``ns`` as (bits, nanobits), exactly."""
    seconds = ns // GIGA
    bits, nano = product(rate, ns - seconds * GIGA)
    return rate * seconds + bits, nano


def time_for(bits, nano, rate):
    """Fewest whole nanoseconds in which ``rate`` > 0 delivers (bits, nanobits)."""
    seconds, rest = 0, bits
    if bits >= rate:
        seconds = bits // rate
        rest = bits - seconds * rate
    ns = int((float(rest) * 1e9 + float(nano)) / float(rate)) - 1  # within one of the truth; then made exact
    if ns < 0:
        ns = 0
    while True:
        got_bits, got_nano = product(rate, ns)
        if got_bits > rest or (got_bits == rest and got_nano >= nano):
            return seconds * GIGA + ns
        ns += 1


def step_at(step, first, last, period, x):
    """Index of the last of the steps ``first:last`` that begins at or before ``x``."""
    lo, hi = first, last
    guess = last - 1
    if x < period:  # right at once where steps are equally long
        guess = min(guess, first + int(float(x) / float(period) * (last - first)))
    if step[guess, START] <= x:
        lo = guess
        if guess + 1 < last and step[guess + 1, START] > x:
            return guess
    else:
        hi = guess
    while hi - lo > 1:
        mid = (lo + hi) >> 1
        if step[mid, START] <= x:
            lo = mid
        else:
            hi = mid
    return lo


def transfer_end(k, device, upward, begin, bits):
    """First nanosecond at which ``bits`` have left a link that has served this transfer alone since ``begin``.

    ``NEVER`` if the link never delivers them, ``-1`` if the trace has ended before.
    """
    if bits == 0 or begin >= FAR:
        return begin
    t = k.device[device, TRACE]
    first, last, mode = k.trace[t, FIRST], k.trace[t, LAST], k.trace[t, PAST_END]
    rate_col = UP_RATE if upward else DOWN_RATE
    if last - first == 1 and mode != ERROR:
        rate = k.step[first, rate_col]
        if rate == 0:
            return NEVER
        return begin + time_for(bits, 0, rate)
    period = k.trace[t, PERIOD]
    offset = k.device[device, OFFSET]
    x = begin + offset
    laps = 0
    if mode == REPEAT:
        if x >= period:
            laps = x // period
            x -= laps * period
    elif mode == ERROR and x >= period:
        return -1
    j = step_at(k.step, first, last, period, x)
    if mode == HOLD and j == last - 1:
        if k.step[j, rate_col] == 0:
            return NEVER
        return begin + time_for(bits, 0, k.step[j, rate_col])
    rate = k.step[j, rate_col]
    span = (k.step[j + 1, START] if j + 1 < last else period) - x
    if float(bits) * 1e9 <= float(rate) * float(span):  # most transfers are over before the next step
        ns = time_for(bits, 0, rate)
        if ns <= span:
            return begin + ns
    got_bits, got_nano = service(rate, x - k.step[j, START])
    want_bits = k.step[j, rate_col + 1] + got_bits + bits
    want_nano = k.step[j, rate_col + 2] + got_nano
    if want_nano >= GIGA:
        want_nano -= GIGA
        want_bits += 1
    over = False  # whether the target lies in a later period
    if mode == REPEAT:
        all_bits, all_nano = k.trace[t, PAST_END + rate_col], k.trace[t, PAST_END + rate_col + 1]
        if all_bits == 0 and all_nano == 0:
            return NEVER
        q = 0 if want_bits < all_bits else want_bits // all_bits if all_bits > 0 else MAX_LAPS
        if q >= MAX_LAPS:
            return NEVER
        while q > 0:  # the largest q with q periods strictly below the target
            n = q * all_nano
            c = n // GIGA
            b = q * all_bits + c
            n -= c * GIGA
            if b < want_bits or (b == want_bits and n < want_nano):
                want_bits -= b
                want_nano -= n
                if want_nano < 0:
                    want_nano += GIGA
                    want_bits -= 1
                over = True
                break
            q -= 1
        laps += q
    lo, hi = (first, last) if over else (j, last)
    near = min(lo + 8, last)
    mid = lo + 1
    while hi - lo > 1:  # last step before which less than the target has been served: near by, or by halving
        served = k.step[mid, rate_col + 1]
        if served < want_bits or (served == want_bits and k.step[mid, rate_col + 2] < want_nano):
            lo = mid
        else:
            hi = mid
        mid = lo + 1 if mid < near else (lo + hi) >> 1
    want_bits -= k.step[lo, rate_col + 1]
    want_nano -= k.step[lo, rate_col + 2]
    if want_nano < 0:
        want_nano += GIGA
        want_bits -= 1
    if k.step[lo, rate_col] == 0:
        return NEVER if mode == HOLD else -1
    end = k.step[lo, START] + time_for(want_bits, want_nano, k.step[lo, rate_col])
    if mode == ERROR and end > period:
        return -1
    return laps * period + end - offset


def rate_at(k, device, upward, now):
    """Rate (bit/s) at ``now`` and the time of the next step (FAR if none; -1 as a rate: the trace has ended)."""
    t = k.device[device, TRACE]
    first, last, mode = k.trace[t, FIRST], k.trace[t, LAST], k.trace[t, PAST_END]
    rate_col = UP_RATE if upward else DOWN_RATE
    if last - first == 1 and mode != ERROR:
        return k.step[first, rate_col], FAR
    x = now + k.device[device, OFFSET]
    period = k.trace[t, PERIOD]
    laps = 0
    if mode == REPEAT:
        laps = x // period
        x -= laps * period
    elif mode == ERROR and x >= period:
        return -1, FAR
    j = step_at(k.step, first, last, period, x)
    if j < last - 1:
        following = k.step[j + 1, START]
    elif mode == HOLD:
        return k.step[j, rate_col], FAR
    else:
        following = period
    return k.step[j, rate_col], laps * period + following - k.device[device, OFFSET]
