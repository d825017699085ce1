"""Heat, radio and battery sections of profiles: read in base units, refused with place and field."""

from __future__ import annotations

import pytest

from morphling.errors import ProfileError
from morphling.scenario import data_folder, json_schema, list_profiles, load_profile
from morphling.scenario.profiles import parse_profile

PHONE = (data_folder("device_profiles") / "galaxy-s24-ultra.yaml").read_text(encoding="utf-8")
BATTERY = """\
battery:
  capacity: {value: 18.5 Wh, source: a meter reading, kind: measured}
  reserve: {value: 0.2, source: a choice of ours, kind: assumed}
  charger: {value: 10 W, source: a choice of ours, kind: assumed}
  resume: {value: 0.4, source: a choice of ours, kind: assumed}
  initial: {value: 0.9, source: a choice of ours, kind: assumed}
"""


def test_heat_and_radio_of_a_phone():
    phone = load_profile("galaxy-s24-ultra")
    heat = phone.thermal
    assert (heat.ambient.value, heat.ambient_to_case.value, heat.trip.value, heat.hysteresis.value) == (25, 6, 42, 2)
    assert (heat.case_time.value, heat.case_cooling_time.value, heat.junction_time.value) == (200, 600, 3)
    assert (heat.junction_to_case.value, heat.clock_floor.value) == (2.1, 0.55)
    assert (heat.power_exponent.value, heat.static_share.value, heat.clock_steps) == (2, 0.28, None)
    assert phone.power.radio_up.value == pytest.approx(130e-9)
    assert phone.sources["thermal.clock_floor"].startswith("measured: PhoneArena")
    assert phone.sources["thermal.hysteresis"].startswith("assumed: ")
    # A steady 5 W ends above the trip, and gets there in 167 s: throttling was seen to begin near 150 s.
    assert heat.ambient.value + heat.ambient_to_case.value * phone.max_w == 55


def test_every_phone_has_heat_and_radio_and_nothing_else_has():
    for name in list_profiles():
        record = load_profile(name)
        phone = record.device_class == "phone"
        assert (record.thermal is not None) == phone, name
        assert (record.power.radio_up is not None) == phone, name
        assert record.battery is None, name


@pytest.mark.parametrize(
    ("name", "floor"),  # worst loop over best
    [
        ("galaxy-s24-ultra", 2710 / 4960),
        ("galaxy-s23-ultra", 1951 / 3828),
        ("tensor-g3", 1622 / 2382),
        ("apple-a17-pro", 2681 / 3608),
    ],
)
def test_clock_floors_are_the_measured_loops(name, floor):
    assert load_profile(name).thermal.clock_floor.value == pytest.approx(floor, abs=0.005)


def test_a_battery():
    phone = parse_profile(PHONE + BATTERY, "p.yaml")
    assert phone.battery.capacity.value == 18.5 * 3600
    assert phone.battery.reserve.value == 0.2
    assert phone.battery.numbers == (18.5 * 3600, 0.2, 10.0, 0.4, 0.9)
    bare = parse_profile(PHONE + BATTERY[: BATTERY.index("  charger")], "p.yaml")
    assert bare.battery.numbers == (18.5 * 3600, 0.2, 0.0, 0.5, 1.0)
    shown = {number.field: number.value for number in phone.numbers}
    assert shown["battery.capacity"] == "18.5 Wh"
    assert shown["thermal.ambient_to_case"] == "6 K/W"
    assert shown["power.radio_up"] == "130 nJ/bit"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"value: 0.4": "value: 0.2"},
            "battery: resume, 0.2, is not above the reserve of 0.2: a device would come back",
        ),
        ({"  resume": "#", "value: 0.2": "value: 0.6"}, "battery: resume, 0.5 if left out, is not above the reserve"),
        ({"  charger": "#"}, "battery: resume is given without charger: a device that left would never be charged"),
        (
            {"  charger": "#", "  resume": "#", "value: 0.9": "value: 0.1"},
            "battery: initial, 0.1, is not above the reserve of 0.2, and there is no charger: the device would never",
        ),
    ],
)
def test_batteries_that_cannot_work(changes, message):
    battery = BATTERY
    for old, new in changes.items():
        assert battery.count(old) == 1
        battery = battery.replace(old, new)
    with pytest.raises(ProfileError) as caught:
        parse_profile(PHONE + battery, "p.yaml")
    line = PHONE.count("\n") + 2  # of the section's first key
    assert f"p.yaml:{line}:" in str(caught.value)
    assert message in str(caught.value)


def test_a_battery_needs_power():
    start = PHONE.index("power:")
    rest = PHONE[start:].split("\n", 1)[1].splitlines(keepends=True)
    after = next(i for i, x in enumerate(rest) if x[:1] not in {" ", "#", "\n"})
    with pytest.raises(ProfileError, match=r"a battery needs power: .idle, max., or nothing would drain it"):
        parse_profile(PHONE[:start] + "".join(rest[after:]) + BATTERY, "p.yaml")


def test_an_ambient_below_zero():
    assert parse_profile(PHONE.replace("25 degC", "-10 °C"), "p.yaml").thermal.ambient.value == -10


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value: 6 K/W", "value: 6", "thermal.ambient_to_case.value: 6: a thermal resistance needs a unit: 6 K/W?"),
        ("value: 6 K/W", "value: 0 K/W", "thermal.ambient_to_case.value: '0 K/W': a thermal resistance of zero"),
        (
            "value: 6 K/W",
            "value: -6 K/W",
            "thermal.ambient_to_case.value: '-6 K/W': a thermal resistance cannot be neg",
        ),
        ("value: 6 K/W", "value: .nan", "thermal.ambient_to_case.value: nan: a thermal resistance must be a finite"),
        ("value: 200 s", "value: 0 s", "thermal.case_time.value: '0 s': a time of zero"),
        ("value: 200 s", "value: 200 K", "thermal.case_time.value: '200 K' is a difference of temperatures; a time is"),
        ("value: 42 degC", "value: 25 degC", "thermal.trip: trip of 25 degC is not above the ambient of 25 degC"),
        (
            "value: 42 degC",
            "value: 315 K",
            "thermal.trip.value: '315 K' is a difference of temperatures; a temperature",
        ),
        ("value: 2 K", "value: 17 K", "thermal.hysteresis: the clock would never rise again: 42 degC less 17 K"),
        ("value: 2 K", "value: 2 degC", "thermal.hysteresis.value: '2 degC' is a temperature; a difference of"),
        ("{value: 0.55", "{value: 1.1", "thermal.clock_floor.value: must be at most 1.0, found 1.1"),
        ("{value: 0.55", "{value: 0", "thermal.clock_floor.value: must be above 0.0, found 0"),
        ("{value: 0.55", "{value: true", "thermal.clock_floor.value: a number is needed, found true"),
        (
            "power_exponent: {value: 2,",
            "power_exponent: {value: 4,",
            "thermal.power_exponent.value: must be at most 3.0",
        ),
        ("{value: 0.28", "{value: 1", "thermal.static_share.value: must be below 1.0, found 1"),
        ("hysteresis:", "hysteresys:", "thermal.hysteresys: unknown key, did you mean 'hysteresis'?"),
        (
            "radio_up: {value: 130 nJ/bit",
            "radio_up: {value: 130 nJ",
            "power.radio_up.value: '130 nJ': unknown unit 'nJ'",
        ),
        ("radio_up: {value: 130 nJ/bit", "radio_up: {value: 130 J", "power.radio_up.value: '130 J' is an energy"),
        ("{value: 18.5 Wh", "{value: 0 Wh", "battery.capacity.value: '0 Wh': an energy of zero is not allowed here"),
        ("{value: 18.5 Wh", "{value: 5000", "battery.capacity.value: 5000: an energy needs a unit: 5000 Wh"),
        ("reserve: {value: 0.2", "reserve: {value: 1", "battery.reserve.value: must be below 1.0, found 1"),
        (", source: a meter reading", "", "battery.capacity: missing key 'source'"),
        (
            "charger: {value: 10 W",
            "charger: {value: 0 W",
            "battery.charger.value: '0 W': a power of zero is not allowed",
        ),
        ("charger: {value: 10 W", "charger: {value: 10 Wh", "battery.charger.value: '10 Wh' is an energy; a power is"),
        ("{value: 0.4", "{value: 1.4", "battery.resume.value: must be at most 1.0, found 1.4"),
        ("{value: 0.9", "{value: 0", "battery.initial.value: must be above 0.0, found 0"),
        ("initial:", "inital:", "battery.inital: unknown key, did you mean 'initial'?"),
        ("source: a meter reading", "source: ' '", "battery.capacity.source: must not be blank"),
    ],
)
def test_wrong_sections_name_line_and_field(old, new, message):
    text = PHONE + BATTERY
    assert old in text
    line = text[: text.index(old)].count("\n") + 1
    with pytest.raises(ProfileError) as caught:
        parse_profile(text.replace(old, new, 1), "p.yaml")
    found = [row for row in str(caught.value).splitlines() if row.startswith(f"p.yaml:{line}:")]
    assert len(found) == 1
    assert message in found[0]


def without(text: str, section: str) -> str:
    lines, kept, inside = text.splitlines(keepends=True), [], False
    for line in lines:
        inside = line.startswith(f"{section}:") or (inside and line[:1] in " #")
        kept += [] if inside else [line]
    return "".join(kept)


STEPS = "  clock_steps: {value: %d, source: ours, kind: assumed}\n"
IDLE = "idle: {value: 0.5 W"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (without(PHONE, "power"), "heat follows from power: 'power' with idle and max is needed too"),
        # 25 degC + 6 K/W x 3 W = 43 degC
        (
            PHONE.replace(IDLE, "idle: {value: 3 W"),
            "the clock would be at its floor for ever: 3 W of idling through 6 K/W keep the case at 43 degC, and",
        ),
        # 5 W x (0.28 + 0.72 x 0.01) = 1.436 W
        (
            PHONE.replace("{value: 0.55", "{value: 0.1").replace(IDLE, "idle: {value: 1.5 W"),
            "computing at clock_floor would take 1.44 W, less than idling, 1.5 W",
        ),
    ],
)
def test_heat_that_does_not_fit_the_power_is_refused(text, message):
    line = text[: text.index("\nthermal:")].count("\n") + 3  # of the section's first key
    with pytest.raises(ProfileError) as caught:
        parse_profile(text, "p.yaml")
    assert f"p.yaml:{line}:" in str(caught.value)
    assert f"thermal: {message}" in str(caught.value)


def test_steps_of_the_clock_are_few_enough_to_count():
    assert parse_profile(PHONE + STEPS % 1000, "p.yaml").thermal.clock_steps.value == 1000
    for steps in (1001, 2**70):
        with pytest.raises(ProfileError, match=r"thermal\.clock_steps\.value: must be at most 1000, found"):
            parse_profile(PHONE + STEPS % steps, "p.yaml")


def test_a_device_that_takes_no_power_is_refused():
    nothing = (
        without(PHONE, "thermal").replace(IDLE, "idle: {value: 0 W").replace("max: {value: 5 W", "max: {value: 0 W")
    )
    with pytest.raises(ProfileError, match="power: max is 0 W"):
        parse_profile(nothing, "p.yaml")


def test_an_unknown_key_is_told_the_keys_as_they_are_written():
    with pytest.raises(ProfileError, match=r"wat: unknown key, known: battery, class, compute, efficiency"):
        parse_profile(PHONE + "wat: 1\n", "p.yaml")


def test_the_json_schema_knows_the_sections():
    schema = json_schema("profile")
    assert {"thermal", "battery", "power_modes"} <= schema["properties"].keys()
    assert "trip" in schema["$defs"]["Thermal"]["required"]
    assert "clock_steps" not in schema["$defs"]["Thermal"]["required"]
