"""`morphling profiles calibrate`, `import-samples`, `measuring-script`: profiles from measurements."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from morphling.run.measured_profiles import MeasuredProfile

__all__ = ["calibrate_command", "import_samples", "script"]

Folder = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for the profile.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Title = Annotated[str | None, typer.Option(help="Name for people.")]
DeviceClass = Annotated[str | None, typer.Option("--class", help="jetson, phone, laptop, server or board.")]


def calibrate_command(
    host: Annotated[str, typer.Option(help="What to measure: cpu. (cuda: says what it would need.)")] = "cpu",
    budget: Annotated[str, typer.Option(help="Time to measure, with its unit.")] = "120 s",
    dtype: Annotated[str, typer.Option(help="float32, or bfloat16 or float16 with torch.")] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; above 1, wall time is taken.")] = 1,
    backend: Annotated[str, typer.Option(help="auto (torch if installed, else numpy), torch or numpy.")] = "auto",
    name: Annotated[str, typer.Option(help="Name of the profile.")] = "this-host",
    out: Folder = Path(),
    shapes_of: Annotated[
        str | None, typer.Option("--shapes-of", metavar="SCENARIO", help="Also measure the shapes of a scenario.")
    ] = None,
    device_class: DeviceClass = None,
    title: Title = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted or disturbed calibration.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure GEMMs on this host, fit a latency model, and write a device profile.

    Writes NAME.yaml, NAME-samples.csv and NAME.png; samples are kept in NAME-samples.part on the way.
    """
    from morphling import units
    from morphling.run.calibrate import calibrate, host_facts
    from morphling.run.measured_profiles import write_profile

    budget_s = units.parse(budget, "time", zero=False)
    named = {k: v for k, v in {"device_class": device_class, "title": title}.items() if v is not None}
    with _watched(budget_s) as progress:
        profile, found, remarks = calibrate(
            name, out, host=host, budget_s=budget_s, dtype=dtype, threads=threads, backend=backend,
            shapes_of=shapes_of, resume=resume, facts=replace(host_facts(threads), **named), progress=progress,
        )  # fmt: skip
    written = write_profile(profile, out)
    (out / f"{name}-samples.part").unlink()
    extra = {"settled_share": found.settled, "cpu_share": found.cpu_share, "remarks": remarks}
    _print(profile, written, extra, as_json=as_json)


def import_samples(
    file: Annotated[Path, typer.Argument(help="CSV m,n,k,dtype,layout,ms; optional lda, ldb, batch, cpu_share.")],
    name: Annotated[str, typer.Option(help="Name of the profile.")],
    out: Folder = Path(),
    base: Annotated[str | None, typer.Option(help="Profile whose other numbers are kept.")] = None,
    device_class: DeviceClass = None,
    title: Title = None,
    memory: Annotated[str | None, typer.Option(help="Memory for training, such as '6 GB'.")] = None,
    memory_reserved: Annotated[str | None, typer.Option(help="What its system keeps of it.")] = None,
    memory_bandwidth: Annotated[str | None, typer.Option(help="Sustained; left out, as fitted.")] = None,
    peak: Annotated[str | None, typer.Option(help="Peak rate, such as '1.28 TFLOP/s'; left out, as fitted.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fit a latency model to GEMMs measured elsewhere, and write a device profile."""
    from morphling.run.measured_profiles import DeviceFacts, check_free, measured_profile, write_profile
    from morphling.scenario.files import read_text
    from morphling.scenario.gemm_samples import read_samples

    check_free(out, name)
    samples = read_samples(file)
    facts = DeviceFacts(
        device_class=device_class, title=title, memory=memory, memory_reserved=memory_reserved,
        memory_bandwidth=memory_bandwidth, peak=peak, base=base,
    )  # fmt: skip
    profile = measured_profile(name, samples, read_text(file), facts)
    _print(profile, write_profile(profile, out), {}, as_json=as_json)


def script() -> None:
    """Print the program that measures GEMMs on another device; it needs Python 3.8 and numpy or torch."""
    from morphling.run.calibrate import measuring_script

    print(measuring_script(), end="")


def _print(profile: MeasuredProfile, written: list[Path], extra: dict[str, Any], *, as_json: bool) -> None:
    from morphling import units
    from morphling.cli.listing import print_table

    report = profile.report()
    if as_json:
        print(json.dumps({**report, **extra, "written": [str(p) for p in written]}, indent=2, allow_nan=False))
        return
    for dtype, fit in report["fits"].items():
        rows = [
            [label, str(e["shapes"]), f"{e['median']:.1%}", f"{e['p90']:.1%}", f"{e['mae_ms']:.3g} ms"]
            for label, e in (("held out", fit["held_out"]), ("fitted", fit["fitted"]))
        ]
        best = units.format_compute(fit["best_flops_per_s"])
        title = f"{profile.name}, {dtype}: absolute error, predicted against measured; best sample {best}"
        print_table(title, ["shapes", "number", "median", "90 % below", "mean"], rows, right=(1, 2, 3, 4))
        worst = [
            [
                f"{w['m']} x {w['n']} x {w['k']}",
                str(w["batch"]),
                w["layout"],
                f"{w['measured_ms']:.4g}",
                f"{w['predicted_ms']:.4g}",
            ]
            for w in fit["worst"]
        ]
        print_table(
            "worst held-out shapes", ["m x n x k", "batch", "layout", "measured, ms", "predicted, ms"], worst, (1, 3, 4)
        )
        if fit["disturbed_shapes_left_out"]:
            print(f"left out: {fit['disturbed_shapes_left_out']} shapes whose rounds disagree")
    for remark in extra.get("remarks", []):
        print(f"note: {remark}")
    for path in written:
        print(path)


@contextmanager
def _watched(budget_s: float) -> Iterator[Callable[[float, int], None] | None]:
    """A bar of the budget, for people at a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"measuring for up to {budget_s:g} s", total=1.0)
        yield lambda share, _: bar.update(task, completed=share)
