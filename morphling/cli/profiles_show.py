"""`morphling profiles list` and `show`: the catalogue of devices, every number with where it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["list_command", "show_command"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def list_command(
    device_class: Annotated[
        str | None, typer.Option("--class", metavar="CLASS", help="Only jetson, phone, laptop, server or board.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the shipped device profiles: achieved rates, usable memory and power modes."""
    from morphling.cli.listing import print_table
    from morphling.scenario import list_profiles, load_profile

    classes = _classes()
    records = [load_profile(name) for name in list_profiles()]
    if device_class is not None:
        if device_class not in classes:
            from morphling.errors import InputError
            from morphling.scenario.data import suggestion

            near = suggestion(device_class, classes, all_known=False) or f"known: {', '.join(classes)}"
            raise InputError(f"--class: there is no class '{device_class}', {near}")
        records = [r for r in records if r.device_class == device_class]
    records.sort(key=lambda r: classes.index(r.device_class))
    if as_json:
        print(json.dumps([_plain(r) for r in records], indent=2))
        return
    columns = [
        "profile", "class", "float32\nTFLOP/s", "float16\nTFLOP/s", "memory\nGB", "memory\nGB/s", "power modes",
    ]  # fmt: skip
    title = "what large GEMMs achieve, usable memory and its rate"
    print_table(title, columns, [_row(r) for r in records], (2, 3, 4, 5), tight=True)
    if any(r.power_modes for r in records):
        print("A mode is named as profile@mode; * is the one whose numbers are shown.")


def _classes() -> list[str]:
    from typing import get_args

    from morphling.scenario import ProfileRecord

    return list(get_args(ProfileRecord.model_fields["device_class"].annotation))


def _row(record: Any) -> list[str]:
    from morphling.units import format_number

    rate = record.achieved_flops
    modes = [f"{m}*" if m == record.power_modes.reference else m for m in record.mode_names]
    return [
        record.name,
        record.device_class,
        *(format_number(rate[d] / 1e12) if d in rate else "-" for d in ("float32", "float16")),
        format_number(record.usable_memory / 1e9),
        format_number(record.sustained_bandwidth / 1e9),
        " ".join(modes) or "-",
    ]


def show_command(
    names: Annotated[list[str], typer.Argument(help="Names or paths, either with @mode.", metavar="PROFILE…")],
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the rooflines into this file, for example r.png.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of tables: an object, or a list of several.")
    ] = False,
) -> None:
    """Show device profiles: each number with unit, kind and source, the ridge points, the power modes."""
    from morphling.scenario import load_profile

    records = [load_profile(name) for name in names]
    if figure is not None:
        from morphling.figures.roofline import Roof, draw_rooflines

        roofs = []
        for r in records:
            rates = {d: (r.peak_flops[d], r.achieved_flops[d]) for d in r.peak_flops}
            roofs.append(Roof(r.name, r.memory_bandwidth.value, r.sustained_bandwidth, rates))
        draw_rooflines(roofs, figure)
    if as_json:
        facts = [_plain(r) for r in records]
        print(json.dumps(facts[0] if len(facts) == 1 else facts, indent=2))
        return
    for record in records:
        _print(record)
    if figure is not None:
        print(f"figure: {figure}")


def _print(record: Any) -> None:
    from morphling import units
    from morphling.cli.listing import print_table

    rows = [list(number) for number in record.numbers]
    print_table(f"{record.name}: {record.title}", ["field", "value", "kind", "source"], rows, (1,))
    reach = [
        [
            dtype,
            units.format_compute(peak),
            units.format_compute(record.achieved_flops[dtype]),
            units.format_number(peak / record.memory_bandwidth.value),
            units.format_number(record.ridge[dtype]),
        ]
        for dtype, peak in record.peak_flops.items()
    ]
    columns = ["dtype", "peak", "achieved", "ridge of peaks\nFLOP/B", "ridge achieved\nFLOP/B"]
    print_table("roofline: below its ridge a GEMM waits for memory", columns, reach, (1, 2, 3, 4))
    if record.power_modes is not None:
        modes = [
            [
                name + "*" * (name == record.power_modes.reference),
                str(mode.sm),
                units.format_number(mode.gpu_clock / 1e6, 4),
                "-" if mode.memory_clock is None else units.format_number(mode.memory_clock / 1e6, 4),
                units.format_number(mode.power),
                mode.kind,
                mode.source,
            ]
            for name, mode in record.power_modes.modes.items()
        ]
        columns = ["mode", "SM", "GPU\nMHz", "memory\nMHz", "power\nW", "kind", "source"]
        print_table("power modes, named as profile@mode; * is that of the profile itself", columns, modes, (1, 2, 3, 4))


def _plain(record: Any) -> dict[str, Any]:
    modes = record.power_modes
    return {
        "name": record.name,
        "title": record.title,
        "class": record.device_class,
        "peak_flops": record.peak_flops,
        "efficiency": record.achieved_share,
        "achieved_flops": record.achieved_flops,
        "ridge_flop_per_byte": record.ridge,
        "usable_memory_bytes": record.usable_memory,
        "sustained_bandwidth_bytes_per_s": record.sustained_bandwidth,
        "launch_s": record.launch_s,
        "idle_w": None if record.power is None else record.idle_w,
        "max_w": None if record.power is None else record.max_w,
        "gemm_model": {}
        if record.gemm_model is None
        else {d: f.model_dump(mode="json") for d, f in record.gemm_model.fits.items()},
        "sources": record.sources,
        "numbers": [number._asdict() for number in record.numbers],
        "power_modes": None
        if modes is None
        else {
            "reference": modes.reference,
            "modes": {
                name: {
                    "sm": mode.sm,
                    "gpu_clock_hz": mode.gpu_clock,
                    "memory_clock_hz": mode.memory_clock,
                    "power_w": mode.power,
                    "kind": mode.kind,
                    "source": mode.source,
                }
                for name, mode in modes.modes.items()
            },
        },
    }
