"""Units: every accepted spelling gives the exact base value, every ambiguous one is refused with its readings."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import pytest

from morphling import units
from morphling.errors import UnitError


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 Mbit/s", "rate", 80e6),
        ("80Mb/s", "rate", 80e6),
        ("80 Mbps", "rate", 80e6),
        ("10 MB/s", "rate", 80e6),
        ("10 MiB/s", "rate", 10 * 2**20 * 8),
        ("3 kbit/s", "rate", 3000),
        ("3 Kibit/s", "rate", 3072),
        ("100 Gbit/s", "rate", 100e9),
        ("5 bit/s", "rate", 5),
        ("600 Mbit/min", "rate", 10e6),
        ("5 TFLOP/s", "compute", 5e12),
        ("5 TFLOPS", "compute", 5e12),
        ("5 GFLOP/s", "compute", 5e9),
        ("5e9 FLOP/s", "compute", 5e9),
        ("5e9FLOP/s", "compute", 5e9),
        ("5 GFLOP/ms", "compute", 5e12),
        ("8 GB", "bytes", 8e9),
        ("8 GiB", "bytes", 8 * 2**30),
        ("0.5 kB", "bytes", 500),
        ("8 Gbit", "bytes", 1e9),
        ("7 B", "bytes", 7),
        ("68 GB/s", "bandwidth", 68e9),
        ("68 Gbit/s", "bandwidth", 8.5e9),
        ("35 ms", "time", 0.035),
        ("10 us", "time", 1e-5),
        ("10 µs", "time", 1e-5),
        ("10 μs", "time", 1e-5),
        ("7 ns", "time", 7e-9),
        ("0.1 ms", "time", 1e-4),
        ("1.5 min", "time", 90),
        ("2 h", "time", 7200),
        ("0 s", "time", 0),
        (" .5  s ", "time", 0.5),
        ("15 W", "power", 15),
        ("500 mW", "power", 0.5),
        ("1.3 kW", "power", 1300),
        ("625 MHz", "frequency", 625e6),
    ],
)
def test_accepted_spellings(text: str, dimension: units.Dimension, value: float) -> None:
    assert units.parse(text, dimension) == value


@pytest.mark.parametrize(
    ("text", "dimension", "message"),
    [
        ("10 mbps", "rate", "'10 mbps' is ambiguous: 10 Mbit/s (10 000 000 bit/s) or 10 MB/s (80 000 000 bit/s)?"),
        ("10 MBPS", "rate", "'10 MBPS' is ambiguous: 10 Mbit/s (10 000 000 bit/s) or 10 MB/s (80 000 000 bit/s)?"),
        ("5 mb/s", "rate", "'5 mb/s' is ambiguous: 5 Mbit/s (5 000 000 bit/s) or 5 MB/s (40 000 000 bit/s)?"),
        ("8 KB", "bytes", "'8 KB' is ambiguous: 8 kB (8 000 B) or 8 KiB (8 192 B)?"),
        ("8 gb", "bytes", "'8 gb' is ambiguous: 8 Gbit (1 000 000 000 B) or 8 GB (8 000 000 000 B)?"),
        ("8 Gb", "bytes", "'8 Gb' is ambiguous: 8 Gbit (1 000 000 000 B) or 8 GB (8 000 000 000 B)?"),
        (
            "68 Gb/s",
            "bandwidth",
            "'68 Gb/s' is ambiguous: 68 Gbit/s (8 500 000 000 B/s) or 68 GB/s (68 000 000 000 B/s)?",
        ),
        ("5 Kb/s", "rate", "'5 Kb/s' is ambiguous: 5 kbit/s (5 000 bit/s) or 5 Kibit/s (5 120 bit/s)?"),
        ("5 m", "time", "'5 m' is ambiguous: 5 min (300 s) or 5 ms (0.005 s)?"),
        ("10", "rate", "10: a rate needs a unit: 10 Mbit/s (10 000 000 bit/s) or 10 MB/s (80 000 000 bit/s)?"),
        (10, "rate", "10: a rate needs a unit: 10 Mbit/s (10 000 000 bit/s) or 10 MB/s (80 000 000 bit/s)?"),
        (2.5, "bytes", "2.5: a size needs a unit: 2.5 GB (2 500 000 000 B) or 2.5 GiB (2 684 354 560 B)?"),
        ("5", "compute", "5: a compute rate needs a unit: 5 TFLOP/s (5 000 000 000 000 FLOP/s)?"),
        ("8 GB", "rate", "'8 GB' is a size; a rate is needed, such as '10 Mbit/s'"),
        ("35 ms", "rate", "'35 ms' is a time; a rate is needed, such as '10 Mbit/s'"),
        ("5 mbit/s", "rate", "'5 mbit/s': unknown unit 'mbit/s', did you mean '5 Mbit/s'?"),
        ("5 GBps", "rate", "'5 GBps': unknown unit 'GBps', did you mean '5 GB/s'?"),
        ("1 tflops", "compute", "'1 tflops': unknown unit 'tflops', did you mean '1 TFLOP/s'?"),
        ("1 TFLOPs", "compute", "'1 TFLOPs': unknown unit 'TFLOPs', did you mean '1 TFLOP/s'?"),
        ("5 sec", "time", "'5 sec': unknown unit 'sec', did you mean '5 s'?"),
        ("5 foo", "rate", "'5 foo': unknown unit 'foo'; a rate looks like '10 Mbit/s'"),
        ("5 mb/min", "rate", "'5 mb/min': unknown unit 'mb/min'; a rate looks like '10 Mbit/s'"),
        ("5,7 s", "time", "'5,7 s': write the number with a decimal point and without separators, such as '35 ms'"),
        ("1_000 s", "time", "'1_000 s': write the number with a decimal point and without separators, such as '35 ms'"),
        ("1 000 s", "time", "'1 000 s': write the number with a decimal point and without separators, such as '35 ms'"),
        ("fast", "rate", "'fast' is not a rate; write a number and a unit, such as '10 Mbit/s'"),
        ("", "time", "'' is not a time; write a number and a unit, such as '35 ms'"),
        ("nan s", "time", "'nan s': a time must be a finite number"),
        (".inf W", "power", "'.inf W': a power must be a finite number"),
        (float("nan"), "power", "nan: a power must be a finite number with a unit, such as '15 W'"),
        ("-1 s", "time", "'-1 s': a time cannot be negative"),
        ("-300 degC", "temperature", "'-300 degC': a temperature cannot be below -273.15 degC"),
        ("42 K", "temperature", "'42 K' is a difference of temperatures; a temperature is needed, such as '42 degC'"),
        ("42 C", "temperature", "'42 C': unknown unit 'C'; a temperature looks like '42 degC'"),
        ("6", "thermal_resistance", "6: a thermal resistance needs a unit: 6 K/W?"),
        ("15 wh", "energy", "'15 wh': unknown unit 'wh', did you mean '15 Wh'?"),
        ("130 nJ", "energy_per_bit", "'130 nJ': unknown unit 'nJ'; an energy per bit looks like '130 nJ/bit'"),
        ("1e31 s", "time", "'1e31 s': the number is out of range (1e-30 to 1e30)"),
        ("1e-31 s", "time", "'1e-31 s': the number is out of range (1e-30 to 1e30)"),
        ("1e99999999999999999999 s", "time", "'1e99999999999999999999 s': the number is out of range"),
        (True, "rate", "a rate such as '10 Mbit/s' is needed, found true or false"),
        (None, "rate", "a rate such as '10 Mbit/s' is needed, found nothing"),
        ([1], "rate", "a rate such as '10 Mbit/s' is needed, found a list"),
    ],
)
def test_refused_with_the_readings(text: object, dimension: units.Dimension, message: str) -> None:
    with pytest.raises(UnitError) as caught:
        units.parse(text, dimension)
    assert str(caught.value) == message


def test_zero_is_refused_where_the_field_says_so() -> None:
    assert units.parse("0 bit/s", "rate") == 0
    with pytest.raises(UnitError, match="'0 bit/s': a rate of zero is not allowed here"):
        units.parse("0 bit/s", "rate", zero=False)


def test_nothing_is_rounded_twice() -> None:
    assert units.parse_exact("0.1 ms", "time") == Fraction(1, 10_000)
    assert units.parse("33.333333333333333 ms", "time") == 0.033333333333333333


def test_the_table_agrees_with_pint() -> None:
    registry = units._registry()
    alone = {"temperature", "difference of temperatures", "thermal resistance", "energy", "energy per bit"}
    spelled = [u for u, (kind, _) in units._TABLE.items() if not u.endswith(("bps", "FLOPS")) and kind not in alone]
    assert len(spelled) > 60
    for unit in spelled:
        assert registry.Quantity(Fraction(1), unit).to_root_units().magnitude == units._TABLE[unit][1], unit


def test_pint_is_not_imported_for_usual_units() -> None:
    code = "import sys; from morphling import units; units.parse('80 Mbit/s', 'rate'); sys.exit('pint' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("dimension", list(units.BASE_UNITS))
@pytest.mark.parametrize("value", [1.0, 0.1, 1e-9, 5e12, 1 / 3, 2.0**62, 123456789.125])
def test_exact_text_reads_back(dimension: units.Dimension, value: float) -> None:
    assert units.parse(units.exact_text(value, dimension), dimension) == value


def test_exact_text() -> None:
    assert units.exact_text(80_000_000, "rate") == "80000000 bit/s"
    assert units.exact_text(0.035, "time") == "0.035 s"


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (24_600_000, "rate", "24.6 Mbit/s"),
        (24_649_999, "rate", "24.6 Mbit/s"),
        (999_999, "rate", "1 Mbit/s"),
        (0, "rate", "0 bit/s"),
        (5.2e12, "compute", "5.2 TFLOP/s"),
        (3.4123e9, "bytes", "3.41 GB"),
        (68e9, "bandwidth", "68 GB/s"),
        (0.035, "time", "35 ms"),
        (0, "time", "0 s"),
        (612.345, "time", "612 s"),
        (1234.5, "time", "1234 s"),
        (7500, "time", "2 h 05 min"),
        (2.5e-6, "time", "2.5 us"),
        (float("inf"), "time", "inf s"),
        (15, "power", "15 W"),
        (1300, "power", "1.3 kW"),
        (0.25, "power", "250 mW"),
        (625e6, "frequency", "625 MHz"),
        (-5, "temperature", "-5 degC"),
        (54000, "energy", "15 Wh"),
        (1.3e-7, "energy_per_bit", "130 nJ/bit"),
        (6, "thermal_resistance", "6 K/W"),
    ],
)
def test_for_people(value: float, dimension: units.Dimension, text: str) -> None:
    assert units.format_quantity(value, dimension) == text


def test_binary_sizes_and_plain_numbers() -> None:
    assert units.format_bytes(3.41 * 2**30, binary=True) == "3.41 GiB"
    assert units.format_number(0.1 + 0.2) == "0.3"
    assert units.format_number(1 / 3, digits=4) == "0.3333"
    assert units.format_number(12345.6) == "12346"
    assert units.format_number(1.2345e-7) == "1.23e-07"
    assert units.format_number(float("nan")) == "nan"
