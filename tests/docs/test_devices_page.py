"""The tables of docs/devices.md are what the profiles say.

Run as a program, it writes them into the page.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from morphling.scenario import list_profiles, load_profile
from morphling.units import format_bandwidth, format_bytes, format_compute, format_number, format_power

PAGE = Path(__file__).resolve().parents[2] / "docs" / "devices.md"
TABLE = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(?=\n<!-- end -->)", re.DOTALL)
CLASSES = {
    "jetson": "Jetson boards",
    "phone": "Phones",
    "laptop": "Laptops",
    "server": "Servers",
    "board": "Other boards",
}
MARK = {"vendor": "v", "derived": "d", "measured": "m", "assumed": "a"}


def rate(record, dtype: str) -> str:
    if dtype not in record.compute:
        return "–"
    peak, share = record.compute[dtype], record.efficiency[dtype]
    return f"{format_compute(peak.value, 4)} {MARK[peak.kind]} × {share.value:g} {MARK[share.kind]}"


def memory_rate(peak, share) -> str:
    return f"{format_bandwidth(peak.value, 4)} {MARK[peak.kind]} × {share.value:g} {MARK[share.kind]}"


def devices(records) -> list[list[str]]:
    rows = [["profile", "device", "float32", "float16", "memory", "reserved", "memory rate", "max. power"]]
    for r in records:
        reserve, watts = r.memory_reserved, r.power.max
        rows.append(
            [
                f"`{r.name}`",
                r.title,
                rate(r, "float32"),
                rate(r, "float16"),
                f"{format_bytes(r.memory.value)} {MARK[r.memory.kind]}",
                f"{format_bytes(reserve.value)} {MARK[reserve.kind]}",
                memory_rate(r.memory_bandwidth, r.memory_efficiency),
                f"{format_power(watts.value)} {MARK[watts.kind]}",
            ]
        )
    return rows


def modes(records) -> list[list[str]]:
    rows = [["name in a scenario", "SM", "GPU", "float32", "memory rate", "power"]]
    for r in records:
        for name in r.mode_names:
            mode, scaled = r.power_modes.modes[name], r.in_mode(name)
            itself = f" (= `{r.name}`)" if name == r.power_modes.reference else ""
            rows.append(
                [
                    f"`{scaled.name}`{itself}",
                    str(mode.sm),
                    f"{format_number(mode.gpu_clock / 1e6, 4)} MHz",
                    format_compute(scaled.peak_flops["float32"]),
                    format_bandwidth(scaled.memory_bandwidth.value, 4),
                    format_power(mode.power),
                ]
            )
    return rows


def heat(records) -> list[list[str]]:
    phones = [r for r in records if r.thermal is not None]
    fields = [f for f in phones[0].numbers if f.field.startswith(("thermal.", "power.radio"))]
    rows = [["field", "value", "kind", "source"]]
    for number in fields:
        others = {f.value for r in phones for f in r.numbers if f.field == number.field}
        if number.field != "thermal.clock_floor":
            assert len(others) == 1, f"{number.field} differs between phones: the page needs a table of it"
            rows.append([f"`{number.field}`", number.value, number.kind, number.source])
    return rows


def floors(records) -> list[list[str]]:
    rows = [["profile", "clock_floor", "kind", "source"]]
    for r in records:
        if r.thermal is not None:
            floor = r.thermal.clock_floor
            rows.append([f"`{r.name}`", f"{floor.value:g}", floor.kind, floor.source])
    return rows


def tables() -> dict[str, str]:
    records = [load_profile(name) for name in list_profiles()]
    made = {c: devices([r for r in records if r.device_class == c]) for c in CLASSES}
    made |= {"modes": modes(records), "heat": heat(records), "floors": floors(records)}
    return {
        name: "\n".join(line(row) for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]])
        for name, rows in made.items()
    }


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def written() -> str:
    made = tables()
    return TABLE.sub(lambda found: found[1] + made[found[2]], PAGE.read_text(encoding="utf-8"))


def test_the_page_is_what_the_profiles_say():
    assert PAGE.read_text(encoding="utf-8") == written(), "python tests/docs/test_devices_page.py writes it anew"


def test_the_page_has_every_table_and_every_profile():
    text = PAGE.read_text(encoding="utf-8")
    assert [found[1] for found in TABLE.finditer(text)] != []
    assert {found[2] for found in TABLE.finditer(text)} == set(tables())
    assert [n for n in list_profiles() if f"`{n}`" not in text] == []


@pytest.mark.parametrize(("name", "cell"), [("apple-m1", "2.617 TFLOP/s d × 0.77 a"), ("raspberry-pi-4", " – ")])
def test_a_row_says_how_far_its_numbers_can_be_trusted(name, cell):
    row = next(x for x in PAGE.read_text(encoding="utf-8").splitlines() if x.startswith(f"| `{name}`"))
    assert cell in row


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
