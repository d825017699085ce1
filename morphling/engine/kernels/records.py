"""What the kernels work on: named tuples of arrays, and the names of their columns.

Plain numbers only, since every name here is a constant of the compiled code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

GIGA = 1_000_000_000
MILLIBITS = 8_000  # of a byte
FAR = 1 << 62
REPEAT, HOLD, ERROR = 0, 1, 2
NEVER = FAR  # a transfer that never ends
MAX_LAPS = 1_000_000_000


TRACE, OFFSET, LATENCY = range(3)
FIRST, LAST, PERIOD, PAST_END = range(4)  # then the totals of one period: down (two columns), a gap, up (two columns)
START, DOWN_RATE, DOWN_SERVED, DOWN_NANO, UP_RATE, UP_SERVED, UP_NANO = range(7)


class LinkArrays(NamedTuple):
    """Links as int64 tables (columns named above).

    ``device[D + 1, 3]``; ``trace[T, 10]``; ``step[S, 7]``: start (ns), then for each direction the rate (millibit/s)
    and the
    service before the step as (millibits, billionths of one).
    """

    device: Any
    trace: Any
    step: Any


class Devices(NamedTuple):
    """Per device (the coordinator is the last): when each stage is next free, and when the session ends."""

    free_down: Any
    free_compute: Any
    free_up: Any
    off: Any


class ClosedRows(NamedTuple):
    """The columns of a task table that the closed lane reads."""

    device: Any
    bytes_in: Any
    bytes_out: Any
    overlap: Any
    release: Any
    dep_ptr: Any
    dep_idx: Any
    duration: Any
    clocked: Any


class Times(NamedTuple):
    """The seven time columns of the events table, in its order, the lost flag, and the time worked (with heat)."""

    down_start: Any
    down_end: Any
    comp_start: Any
    comp_end: Any
    up_start: Any
    up_end: Any
    settled: Any
    lost: Any
    worked: Any


# columns of Heat.law, Heat.state (each state column again, as it was before the running row), Heat.clock
(AMBIENT, CASE_K_W, WARM_S, COOL_S, JUNCTION_K_W, JUNCTION_S, TRIP, COOLED) = range(8)
(LOWEST_CLOCK, STEP, EXPONENT, STATIC_W, DYNAMIC_W, IDLE_W, SLOWS) = range(8, 15)
CASE, JUNCTION, CLOCK, JOULES, HOTTEST, LOWEST, THROTTLED = range(7)
STATES = 7
RUN_STRETCH = 2 * STATES
SINCE, ACTS_AT, ACTED_AT, RUN_START, RUN_WORK, RUN_END, WATCH = range(7)
LAWS, STATE_COLUMNS, CLOCK_COLUMNS = SLOWS + 1, RUN_STRETCH + 1, WATCH + 1


class Heat(NamedTuple):
    """Heat of the D devices and the coordinator, which has none (`heat`)."""

    law: Any  # float64[D + 1, 15]: constants; COOLED = trip less hysteresis; STEP of the clock, 0 = any; SLOWS: warms
    state: Any  # float64[D + 1, 15]: degC, share of the full clock, J above idle, extremes, ns below full clock
    clock: Any  # int64[D + 1, 7]: time of the state, when the governor may act, the running row; place in note or -1
    note: Any  # float64[·, ·, 4]: time (ns), clock, case and junction of watched devices
    noted: Any  # int64[·, 2]: points of each; least ns between two


# columns of Net.state, Net.link, Net.spare, Net.flow, Net.real, Net.tcp
CELLS, AT, DIRTY_LINKS, DIRTY_FLOWS, STAMP = range(5)
CAPACITY, FLOWS, DEMAND, FIRST_ON, NEXT_AT, DIRTY_LINK, SEEN_LINK, TIGHT, HUNGRY, HELD_BACK, PEAK = range(11)
REMAINS, LEVEL = range(2)
(ACTIVE, BOUND, MOMENT, RTT, DOUBLINGS, LAST_END, WIDEN_AT, MATHIS, DIRTY_FLOW, SEEN, PATH) = range(11)
AFTER, BEFORE = PATH + 4, PATH + 8
LINK_COLUMNS, FLOW_COLUMNS = PEAK + 1, BEFORE + 4
RATE, REST, ENDS, SHARE = range(4)
SEGMENT, INITIAL = range(2)
MOST_RATE = 1 << 50  # millibit/s


class Net(NamedTuple):
    """Resources and flows where several links are shared (`network`).

    Resources: downlinks of the D devices, their uplinks, downlinks of the C cells, their uplinks, out of the
    coordinator, into it.  Flow ``side · D + device`` is the one transfer a device can have on a side.
    """

    state: Any  # int64[5], columns named above
    cell: Any  # int64[D]: the cell of each device, -1 = none
    cells: LinkArrays  # links of the cells
    link: Any  # int64[R, 11]; CAPACITY in millibit/s, -1 = unlimited; FIRST_ON: 4 flow + place in its path, -1 = none
    spare: Any  # float64[R, 2]: while filling
    flow: Any  # int64[2 D, 23]; PATH four resources, AFTER and BEFORE the neighbours in the list of each
    real: Any  # float64[2 D, 4]: rate (millibit/s), millibits left at MOMENT, end (ns), rate while filling
    near: Any  # float64[·, 2]: first end of 64 flows; whether it has to be found again
    far: Any  # float64[·]: first end of 64 times 64 flows
    dirty: Any  # int64[·, 2]: resources, flows
    listed: Any  # int64[·, 3]: flows, resources, flows without a rate
    binding: Any  # int64[2 D, 5]: the resources that bind each listed flow, ended by -1
    tcp: Any  # int64[D, 2]: segment (millibits; 0 = no TCP), segments of the initial window
    loss: Any  # float64[D]


# columns of Shared.slot, Shared.real
AT_LEVEL, U_FIN, U_FIN_AT, U_CAP, U_CAP_AT, K_FIN, K_FIN_AT, K_CAP, K_CAP_AT, NEXT_STEP = range(10)
FINISH, CAP, LEFT = range(3)


class Shared(NamedTuple):
    """Two shared capacities (0: out of the coordinator, 1: into it) and the flows on them.

    Slot ``side · D + device`` is the one flow a device can have on a side.  Four indexed heaps of a side hold slots:
    U_*
    flows at the level, K_* flows at their own cap, each by finish and by cap; *_AT is a slot's place in its heap.
    """

    capacity: Any  # int64[2], millibit/s; -1 = unlimited
    count: Any  # int64[4]: flows at the level, flows at their cap; per side
    cap_sum: Any  # int64[2]: sum of the caps of flows at their cap
    level: Any  # float64[2], millibit/s; -1 = every flow runs at its cap
    virtual: Any  # float64[2]: V, millibits
    moment: Any  # int64[2]: time of V
    slot: Any  # int64[2 D, 10]; NEXT_STEP: next trace step of the slot's flow, -1 = no flow
    real: Any  # float64[2 D, 3]: FINISH virtual (millibits) at the level, else real (ns); CAP; LEFT if the cap is 0


# columns of Pool.row, Pool.dev, Pool.disp, Pool.heap
(
    ON_DEVICE,
    BITS_IN,
    BITS_OUT,
    TILES,
    DURATION,
    OF_DISPATCH,
    FOLLOWS,
    WAITS,
    READY,
    OUT_PTR,
    OUT_LEN,
    SENT_DOWN,
    GOT_DOWN,
    COMPUTED,
    SENT_UP,
    GOT_UP,
    STATE,
    DOWN_START,
    DOWN_END,
    COMP_START,
    COMP_END,
    UP_START,
    UP_END,
    SETTLED,
    ASKED_UP,
    PEER,
    CLOCKED,
    WORKED,
    LOG,
    STACK,
) = range(30)
(
    Q_DOWN,
    Q_COMP,
    Q_UP,
    Q_TAIL,
    Q_HEAD,
    BUSY_DOWN,
    BUSY_COMP,
    BUSY_UP,
    HALF_DUPLEX,
    PICKING,
    EPOCH,
) = range(11)
DEV_COLUMNS = EPOCH + 3
ROW_COLUMNS = STACK + 1
D_NOTIFY, D_LEFT, D_DONE, D_FLAG = range(4)
HEAP_TIME, HEAP_SERIAL, HEAP_WHAT, HEAP_ID, HEAP_TAG = range(5)


class Pool(NamedTuple):
    """Rows in flight, their queues, and the event heap (int64 tables, columns named above).

    ``row[R, ·]``: a sub-task; FOLLOWS is the next row of its device, WAITS the dependencies not yet done plus one until
    it is
    released, READY since when it may start (-1: it may not), OUT_PTR and OUT_LEN frame ``edge``, the rows that wait for
    it;
    sent, got and computed count tiles.  LOG and STACK are no part of a row: they lend their columns as lists.
    ``dev[D + 1, ·]``: the row at the front of each stage's queue, the last queued, the oldest unsettled; whether the
    stage is
    at work; the epoch of each stage (an event of an older epoch is stale).
    ``disp[·, 4]``: dispatches in flight.  ``heap[·, 5]``: pending events by (time, serial of the event).
    ``counter``: 0 events pending, 1 serial of the next event, 2 rows, 3 settled rows in LOG, 4 rows not settled,
    5 dispatches with something to tell, 6 room to keep free in the heap.
    """

    row: Any
    dev: Any
    disp: Any
    heap: Any
    edge: Any
    counter: Any


WAITING, DONE, LOST = 0, 1, 2
RELEASE, ARRIVE_DOWN, ARRIVE_UP, OVER_COMP, OVER_DOWN, OVER_UP, STEP_DOWN, STEP_UP, PICK, NOTHING, STEP_LINK, WIDEN = (
    range(12)
)
AFTER_ALL = 1 << 60
REACHED, NOTICE, GROW, STUCK = 0, 1, 2, 3
NOTIFY_ALL, NOTIFY_EACH = -1, 0  # a positive number is a quorum


# columns of Order.state; what Order.place says of a row whose device is not idle; why an order stops, beside the above
(
    IDLE,
    UNDER_WAY,
    AT_ONCE,
    STARTED,
    DONE_EVER,
    DONE_NEW,
    LOST_NEW,
    DRAWS,
    AGENDA_AT,
    HEARD,
    MOMENT_NOW,
    REPLACED,
    FILLING,
    TROUBLE,
) = range(14)
ORDER_STATES = TROUBLE + 1
IS_AWAY, IS_BUSY = -1, -2
DRAW = 4


class Order(NamedTuple):
    """A standing order over n rows of different devices (`orders`); of C at once, S rows have been started.

    ``state``: how many are idle, under way, to be under way at once, started; done ever and since the last notice, lost
    since then; random numbers left; how far the agenda is carried out and heard of; the instant; the row that is to be
    replaced (-1: none), whether places are to be filled; what `run_closed` said of a row that never settles.
    """

    state: Any  # int64[14]
    row_of: Any  # int64[D]: the row of each device, -1 = none
    idle: Any  # int64[n]: rows whose device is idle, in any order
    place: Any  # int64[n]: where in idle each row is, or IS_AWAY, or IS_BUSY
    due: Any  # int64[C + 1, 2]: heap of (when it settles, number of the start)
    row: Any  # int64[≥ S]: the row of each start
    after: Any  # int64[≥ S]: how many had been done by then
    done: Any  # int64[every]: starts that were done since the last notice
    lost: Any  # int64[·]: starts that were lost since then
    number: Any  # float64[·]: random numbers in [0, 1), taken from the end
    online: Any  # uint8[D]
    agenda_time: Any  # int64[A], with the next two: who leaves (until -1) or joins when, and until when
    agenda_who: Any
    agenda_until: Any
    warm: Any  # float64[n, 7]: `Heat.state` of each row's device before its last start; no rows without heat
    warm_at: Any  # int64[n, 2]: likewise the time of that state, and when the governor may act
