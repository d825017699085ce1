"""The only conversions: text with a unit → a number in base units, and back to text for people.

Bits and FLOPS are decimal (k = 1000); binary only when written Ki, Mi, Gi, Ti; ``b`` is bit and ``B`` is byte.
Spellings that two readers would read differently (``mbps``, ``KB``, ``8 Gb`` of memory, a bare number) are refused with
both readings shown; ``kbps``, ``Mbps``, ``Gbps`` and ``Tbps`` have one reading (bits) and are accepted.
No case folding, no plural forms.  Units in common use are looked up in a table; compounds such as ``600 Mbit/min`` go
to a small pint registry, imported only then (pint alone costs more than all the rest of a start).
Numbers are read as exact decimals, so that ``0.1 ms`` is the float nearest to 1e-4 s and nothing is rounded twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache
from math import isfinite
from typing import Any, Final, Literal, TypeAlias

from morphling.errors import UnitError

__all__ = [
    "BASE_UNITS",
    "Dimension",
    "exact_text",
    "format_bandwidth",
    "format_bytes",
    "format_compute",
    "format_energy",
    "format_energy_per_bit",
    "format_frequency",
    "format_number",
    "format_power",
    "format_quantity",
    "format_rate",
    "format_time",
    "parse",
    "parse_exact",
]

Dimension: TypeAlias = Literal[
    "rate", "compute", "bytes", "bandwidth", "time", "power", "frequency",
    "temperature", "warming", "thermal_resistance", "energy", "energy_per_bit",
]  # fmt: skip
"""``rate`` is of a link (bit/s); ``bandwidth`` is of a memory (B/s); ``compute`` is FLOP/s; ``warming`` is a difference
of temperatures (K), ``temperature`` is a point on the Celsius scale and may be negative."""

BASE_UNITS: Final[dict[str, str]] = {
    "rate": "bit/s",
    "compute": "FLOP/s",
    "bytes": "B",
    "bandwidth": "B/s",
    "time": "s",
    "power": "W",
    "frequency": "Hz",
    "temperature": "degC",
    "warming": "K",
    "thermal_resistance": "K/W",
    "energy": "J",
    "energy_per_bit": "J/bit",
}
"""The unit that `parse` returns for each dimension."""


@dataclass(frozen=True)
class _Sort:
    """What a dimension is called, an example to show, how its base unit relates to the table's (bits), its bottom."""

    noun: str
    example: str
    physical: str
    scale: Fraction = Fraction(1)
    lowest: Fraction = Fraction(0)


_SORTS: Final[dict[str, _Sort]] = {
    "rate": _Sort("a rate", "10 Mbit/s", "data rate"),
    "compute": _Sort("a compute rate", "5 TFLOP/s", "compute rate"),
    "bytes": _Sort("a size", "8 GB", "size", Fraction(1, 8)),
    "bandwidth": _Sort("a memory bandwidth", "68 GB/s", "data rate", Fraction(1, 8)),
    "time": _Sort("a time", "35 ms", "time"),
    "power": _Sort("a power", "15 W", "power"),
    "frequency": _Sort("a frequency", "625 MHz", "frequency"),
    "temperature": _Sort("a temperature", "42 degC", "temperature", lowest=Fraction(-27315, 100)),
    "warming": _Sort("a difference of temperatures", "2 K", "difference of temperatures"),
    "thermal_resistance": _Sort("a thermal resistance", "6 K/W", "thermal resistance"),
    "energy": _Sort("an energy", "15 Wh", "energy"),
    "energy_per_bit": _Sort("an energy per bit", "130 nJ/bit", "energy per bit"),
}

_DECIMAL: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def _table() -> dict[str, tuple[str, Fraction]]:
    """Unit → (physical kind, factor in bit, bit/s, FLOP/s, s, W, Hz, degC, K, K/W, J or J/bit)."""
    table: dict[str, tuple[str, Fraction]] = {}
    for prefix, size in {**_DECIMAL, **_BINARY}.items():
        for root, bits in (("bit", 1), ("b", 1), ("B", 8)):
            table[prefix + root] = ("size", Fraction(size * bits))
            table[f"{prefix}{root}/s"] = ("data rate", Fraction(size * bits))
    for prefix, size in _DECIMAL.items():
        table[f"{prefix}bps"] = ("data rate", Fraction(size))
        table[f"{prefix}FLOP/s"] = table[f"{prefix}FLOPS"] = ("compute rate", Fraction(size))
    for unit, seconds in (("s", 1), ("min", 60), ("h", 3600)):
        table[unit] = ("time", Fraction(seconds))
    for unit, parts in (("ms", 10**3), ("us", 10**6), ("µs", 10**6), ("μs", 10**6), ("ns", 10**9)):
        table[unit] = ("time", Fraction(1, parts))
    for unit, watts in (("mW", Fraction(1, 1000)), ("W", Fraction(1)), ("kW", Fraction(1000))):
        table[unit] = ("power", watts)
    for prefix, size in _DECIMAL.items():
        table[f"{prefix}Hz"] = ("frequency", Fraction(size))
    table["degC"] = table["°C"] = ("temperature", Fraction(1))
    table["K"] = ("difference of temperatures", Fraction(1))
    table["K/W"] = table["degC/W"] = table["°C/W"] = ("thermal resistance", Fraction(1))
    for prefix, joules in {"m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(1000)}.items():
        table[f"{prefix}J"] = ("energy", joules)
        table[f"{prefix}Wh"] = ("energy", 3600 * joules)
    for prefix, parts in {"": 0, "m": 3, "u": 6, "µ": 6, "μ": 6, "n": 9, "p": 12}.items():
        table[f"{prefix}J/bit"] = ("energy per bit", Fraction(1, 10**parts))
    return table


_TABLE: Final = _table()
_QUANTITY = re.compile(r"\s*(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(?P<unit>\S.*?)?\s*")
_NOT_FINITE = re.compile(r"\s*[+-]?\.?(nan|inf|infinity)\b.*", re.IGNORECASE)
_COMPOUND = re.compile(r"[A-Za-zµμ]+(?:[*/][A-Za-zµμ]+)+")
_DATA = re.compile(r"(?P<prefix>[kmgtpe]?)(?P<binary>i?)(?P<root>bytes|byte|bits|bit|b)(?P<per>ps|/s|/sec|/second)?")
_LONG_TIMES: Final = {"sec": "s", "second": "s", "seconds": "s", "hour": "h", "hours": "h", "minutes": "min"}
_LARGEST_EXPONENT = 30


def parse(text: object, dimension: Dimension, *, zero: bool = True) -> float:
    """The quantity in the base unit of ``dimension``, as the nearest float.

    Parameters
    ----------
    text : a string such as ``"80 Mbit/s"``; anything else is refused
    dimension : which kind of quantity is expected
    zero : whether 0 is a right value

    Raises
    ------
    UnitError
        No unit, an unknown or ambiguous one, one of another dimension; a number that is negative or not finite;
        zero where it is not allowed.
    """
    return float(parse_exact(text, dimension, zero=zero))


def parse_exact(text: object, dimension: Dimension, *, zero: bool = True) -> Fraction:
    """As `parse`, without rounding."""
    sort = _SORTS[dimension]
    if not isinstance(text, str):
        raise UnitError(_not_text(text, dimension))
    match = _QUANTITY.fullmatch(text)
    if match is None:
        if _NOT_FINITE.fullmatch(text):
            raise UnitError(f"'{text}': {sort.noun} must be a finite number")
        raise UnitError(f"'{text}' is not {sort.noun}; write a number and a unit, such as '{sort.example}'")
    number, unit = match["number"], match["unit"]
    if unit is None:
        raise UnitError(_bare(number, dimension))
    value = _number(text, number) * _factor(text, number, unit, dimension)
    if value < sort.lowest:
        low = "negative" if sort.lowest == 0 else f"below {float(sort.lowest):g} {BASE_UNITS[dimension]}"
        raise UnitError(f"'{text}': {sort.noun} cannot be {low}")
    if value == 0 and not zero:
        raise UnitError(f"'{text}': {sort.noun} of zero is not allowed here")
    return value


def _number(text: str, number: str) -> Fraction:
    try:
        value = Decimal(number)
    except InvalidOperation:  # an exponent beyond what decimal can hold
        raise UnitError(f"'{text}': the number is out of range") from None
    # A fraction of 1e999999999 would fill the memory before anything could refuse it.
    if value and abs(value.adjusted()) > _LARGEST_EXPONENT:
        raise UnitError(f"'{text}': the number is out of range (1e-{_LARGEST_EXPONENT} to 1e{_LARGEST_EXPONENT})")
    return Fraction(value) if value else Fraction(0)


def _factor(text: str, number: str, unit: str, dimension: Dimension) -> Fraction:
    """How many base units one ``unit`` is."""
    sort = _SORTS[dimension]
    known = _TABLE.get(unit) or _compound(unit)
    if known is None:
        raise UnitError(_unknown(text, number, unit, dimension))
    physical, factor = known
    if physical != sort.physical:
        article = "an" if physical[0] in "aeiou" else "a"
        raise UnitError(f"'{text}' is {article} {physical}; {sort.noun} is needed, such as '{sort.example}'")
    # Memory is never sold in bits, and 'Gb' for gigabytes is a common slip: the short form is refused, 'Gbit' is not.
    if sort.scale != 1 and unit.partition("/")[0].endswith("b"):
        bits, octets = (re.sub(r"b(?=/|$)", root, unit) for root in ("bit", "B"))
        raise UnitError(_ambiguous(text, number, (bits, octets), dimension))
    return factor * sort.scale


def _not_text(value: object, dimension: Dimension) -> str:
    sort = _SORTS[dimension]
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not isfinite(value):
            return f"{value}: {sort.noun} must be a finite number with a unit, such as '{sort.example}'"
        return _bare(str(value), dimension)
    found = {type(None): "nothing", bool: "true or false", list: "a list", tuple: "a list", dict: "a mapping"}
    return f"{sort.noun} such as '{sort.example}' is needed, found {found.get(type(value), type(value).__name__)}"


def _bare(number: str, dimension: Dimension) -> str:
    sort = _SORTS[dimension]
    units = {"rate": ("Mbit/s", "MB/s"), "bytes": ("GB", "GiB"), "time": ("s", "ms")}.get(
        dimension, (sort.example.split()[1],)
    )
    return f"{number}: {sort.noun} needs a unit: {_readings(number, units, dimension)}?"


def _ambiguous(text: str, number: str, units: tuple[str, ...], dimension: Dimension) -> str:
    return f"'{text}' is ambiguous: {_readings(number, units, dimension)}?"


def _readings(number: str, units: tuple[str, ...], dimension: Dimension) -> str:
    """``10 Mbit/s (10 000 000 bit/s) or 10 MB/s (80 000 000 bit/s)``."""
    out = []
    for unit in units:
        value = _number(number, number) * _TABLE[unit][1] * _SORTS[dimension].scale
        whole = value.denominator == 1 and abs(value) < 10**16
        echo = f"{int(value):,}".replace(",", " ") if whole else format_number(float(value))
        base = BASE_UNITS[dimension]
        out.append(f"{number} {unit}" if unit == base else f"{number} {unit} ({echo} {base})")
    return " or ".join(out)


def _unknown(text: str, number: str, unit: str, dimension: Dimension) -> str:
    sort = _SORTS[dimension]
    if unit[0] in ",'_" or unit[0].isdigit():
        return f"'{text}': write the number with a decimal point and without separators, such as '{sort.example}'"
    units = tuple(u for u in _nearest(unit) if _TABLE[u][0] == sort.physical)
    if len(units) > 1:
        return _ambiguous(text, number, units, dimension)
    if units:
        return f"'{text}': unknown unit '{unit}', did you mean '{number} {units[0]}'?"
    return f"'{text}': unknown unit '{unit}'; {sort.noun} looks like '{sort.example}'"


def _nearest(unit: str) -> tuple[str, ...]:
    """The units that a careless writer of ``unit`` may have meant, in the order in which to show them."""
    match = _DATA.fullmatch(unit.lower())
    if match is None:
        folded = unit.lower().replace("flops/s", "flop/s").replace(" ", "")
        folded = _LONG_TIMES.get(folded, folded)
        near = [u for u in _TABLE if u.lower() == folded and _TABLE[u][0] not in {"size", "data rate"}]
        return tuple(u.replace("FLOPS", "FLOP/s") for u in near[:1]) if folded != "m" else ("min", "ms")
    per = "/s" if match["per"] else ""
    letter = match["prefix"]
    prefix = letter if letter in {"", "k"} and not match["binary"] else letter.upper()
    prefix += match["binary"]
    root = match["root"]
    one_case = unit in {unit.lower(), unit.upper()} and not unit.startswith("K")
    if root == "b" and (one_case or "PS" in unit):
        return tuple(u for u in (f"{prefix}bit{per}", f"{prefix}B{per}") if u in _TABLE)
    meant = ("bit" if root.startswith("bit") else "B") if root != "b" else ("B" if "B" in unit else "bit")
    both: tuple[str, ...] = (f"{prefix}{meant}{per}",)
    if unit.startswith("K") and not match["binary"]:
        both = (f"k{meant}{per}", f"Ki{meant}{per}")
    return tuple(u for u in both if u in _TABLE)


@cache
def _compound(unit: str) -> tuple[str, Fraction] | None:
    """Products and quotients that the table does not list, by pint; None if pint does not know them either."""
    if not _COMPOUND.fullmatch(unit) or _nearest(unit):
        return None
    registry = _registry()
    import pint  # noqa: PLC0415 - see the module's docstring

    try:
        quantity = registry.Quantity(Fraction(1), unit).to_root_units()
    except (pint.PintError, AttributeError):
        return None
    physical = {
        "bit": "size",
        "bit / second": "data rate",
        "FLOP / second": "compute rate",
        "second": "time",
        "watt": "power",
        "1 / second": "frequency",
    }.get(str(quantity.units))
    return None if physical is None else (physical, Fraction(quantity.magnitude))


@cache
def _registry() -> Any:
    """A pint registry of these units alone: the default one reads ``mb`` as millibit and ``PB`` as petabit or byte."""
    import pint  # noqa: PLC0415 - see the module's docstring

    registry: Any = pint.UnitRegistry(None, non_int_type=Fraction, cache_folder=None)
    names = {"k": "kilo", "M": "mega", "G": "giga", "T": "tera", "P": "peta", "E": "exa"}
    binary = {"Ki": "kibi", "Mi": "mebi", "Gi": "gibi", "Ti": "tebi"}
    for symbol, name in {**names, **binary}.items():
        registry.define(f"{name}- = {({**_DECIMAL, **_BINARY})[symbol]} = {symbol}-")
    for line in (
        "bit = [information] = b",
        "byte = 8 * bit = B",
        "FLOP = [operation]",
        "second = [time] = s",
        "millisecond = 1 / 1000 * second = ms",
        "microsecond = 1 / 1000000 * second = us = µs = μs",
        "nanosecond = 1 / 1000000000 * second = ns",
        "minute = 60 * second = min",
        "hour = 3600 * second = h",
        "watt = [power] = W",
        "milliwatt = 1 / 1000 * watt = mW",
        "hertz = 1 / second = Hz",
    ):
        registry.define(line)
    return registry


def exact_text(value: float, dimension: Dimension) -> str:
    """``80000000 bit/s``: text in the base unit that `parse` reads back to the very same number."""
    number = str(int(value)) if value == int(value) and abs(value) < 2**63 else repr(float(value))
    return f"{number} {BASE_UNITS[dimension]}"


def format_number(value: float, digits: int = 3) -> str:
    """``digits`` significant digits without trailing zeros; whole numbers are not cut (``1234``, not ``1.23e+03``)."""
    if not isfinite(value):
        return str(value)
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits}g}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    text = f"{Decimal(f'{value:.{digits}g}'):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float, steps: tuple[tuple[float, str], ...], digits: int) -> str:
    """In the largest unit of ``steps`` (falling) that leaves at least 1 before the point after rounding."""
    size = abs(value)
    for factor, unit in steps:
        if float(f"{size:.{digits}g}") >= factor:
            return f"{format_number(value / factor, digits)} {unit}"
    factor, unit = steps[-1] if value else next((s for s in steps if s[0] == 1), steps[-1])
    return f"{format_number(value / factor, digits)} {unit}"


def _decimal_steps(unit: str) -> tuple[tuple[float, str], ...]:
    return tuple((float(size), prefix + unit) for prefix, size in reversed(_DECIMAL.items()))


_BINARY_STEPS: Final = (*((float(size), f"{p}B") for p, size in reversed(_BINARY.items())), (1.0, "B"))
_TIME_STEPS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def format_rate(bits_per_s: float, digits: int = 3) -> str:
    """``24.6 Mbit/s``."""
    return _scaled(bits_per_s, _decimal_steps("bit/s"), digits)


def format_compute(flops: float, digits: int = 3) -> str:
    """``5.2 TFLOP/s``."""
    return _scaled(flops, _decimal_steps("FLOP/s"), digits)


def format_bytes(size: float, digits: int = 3, *, binary: bool = False) -> str:
    """``3.41 GB``, or ``3.18 GiB`` if ``binary``."""
    return _scaled(size, _BINARY_STEPS if binary else _decimal_steps("B"), digits)


def format_bandwidth(bytes_per_s: float, digits: int = 3) -> str:
    """``68 GB/s``."""
    return _scaled(bytes_per_s, _decimal_steps("B/s"), digits)


def format_time(seconds: float, digits: int = 3) -> str:
    """``35 ms``, ``612 s``; ``2 h 05 min`` from two hours on."""
    if abs(seconds) >= 7200 and isfinite(seconds):
        minutes = round(abs(seconds) / 60)
        return f"{'-' if seconds < 0 else ''}{minutes // 60} h {minutes % 60:02d} min"
    return _scaled(seconds, _TIME_STEPS, digits)


def format_power(watts: float, digits: int = 3) -> str:
    """``15 W``."""
    return _scaled(watts, ((1e3, "kW"), (1.0, "W"), (1e-3, "mW")), digits)


def format_frequency(hertz: float, digits: int = 3) -> str:
    """``625 MHz``."""
    return _scaled(hertz, _decimal_steps("Hz"), digits)


def format_energy(joules: float, digits: int = 3) -> str:
    """``15 Wh``; below that ``80 J``."""
    return _scaled(joules, ((3.6e6, "kWh"), (3600.0, "Wh"), (1.0, "J"), (1e-3, "mJ")), digits)


def format_energy_per_bit(joules: float, digits: int = 3) -> str:
    """``130 nJ/bit``."""
    parts = ((1.0, "J/bit"), (1e-3, "mJ/bit"), (1e-6, "uJ/bit"), (1e-9, "nJ/bit"), (1e-12, "pJ/bit"))
    return _scaled(joules, parts, digits)


def format_quantity(value: float, dimension: Dimension, digits: int = 3) -> str:
    """For people: the fitting prefix and ``digits`` significant digits.  `exact_text` is for files."""
    how = {
        "rate": format_rate,
        "compute": format_compute,
        "bytes": format_bytes,
        "bandwidth": format_bandwidth,
        "time": format_time,
        "power": format_power,
        "frequency": format_frequency,
        "energy": format_energy,
        "energy_per_bit": format_energy_per_bit,
    }.get(dimension)
    return f"{format_number(value, digits)} {BASE_UNITS[dimension]}" if how is None else how(value, digits)
