"""`morphling traces generate`: traces drawn from a named population."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["generate"]


def generate(
    population: Annotated[
        str,
        typer.Argument(
            help="home-wifi-ndt, cleave-2-10x, fedscale-like, lte, 5g, driving-lte: each device draws its own means; "
            "or mobiperf-lte, mobiperf-wifi, mobiperf-5g: one median link each, as shipped."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="CSV file; with --count above 1, a folder of one CSV a device.")
    ],
    seed: Annotated[int, typer.Option(help="Seed, 0 or more. The same seed gives the same bytes.")] = 0,
    count: Annotated[int, typer.Option(min=1, max=99_999, help="How many devices.")] = 1,
    duration: Annotated[str, typer.Option(help="Length of each trace, with its unit.")] = "600 s",
    step: Annotated[str, typer.Option(help="Time between changes of the rates, with its unit.")] = "1 s",
) -> None:
    """Draw synthetic link traces from a population with published statistics."""
    from morphling import units
    from morphling.errors import InputError

    if out.is_dir() and count > 1 and not any(out.iterdir()):
        out.rmdir()
    if out.exists():
        raise InputError(f"{out}: exists already; nothing was written")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder")
    texts = _texts(population, seed, count, units.parse(duration, "time"), units.parse(step, "time"))
    # Written beside its place and moved there whole, so that a fault on the way leaves nothing behind.
    shelter = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        whole = shelter / "traces"
        whole.mkdir()
        for name, text in texts:
            (whole / f"{name}.csv").write_text(text, encoding="utf-8", newline="\n")
        (whole if count > 1 else next(whole.iterdir())).rename(out)
    finally:
        shutil.rmtree(shelter)
    print(f"{out}: {count} trace{'s' if count > 1 else ''} of {population}, seed {seed}, {duration} in steps of {step}")


def _texts(population: str, seed: int, count: int, duration_s: float, step_s: float) -> Iterator[tuple[str, str]]:
    """Name and text of each file, one at a time."""
    from morphling.errors import TraceError
    from morphling.fleet import generate as single
    from morphling.fleet import populations as many

    if population in many.LINK_POPULATIONS:
        means = zip(*many.link_means(population, seed, count), strict=True)
        traces = many.device_traces(population, seed, count, duration_s, step_s)
        for device, (trace, (down, up)) in enumerate(zip(traces, means, strict=True)):
            yield trace.name, single.to_csv(trace, many.population_header(population, seed, device, down, up))
    elif population in single.POPULATIONS:
        if count > 1:
            raise TraceError(
                f"{population} is one median link, not a population of devices: --count must be 1 (other seeds vary it "
                f"in time); device populations are {', '.join(many.LINK_POPULATIONS)}"
            )
        trace = single.generate(population, seed, duration_s, step_s)
        yield population, single.to_csv(trace, single.recipe_header(population, seed))
    else:
        known = ", ".join([*many.LINK_POPULATIONS, *single.POPULATIONS])
        raise TraceError(f"no population is called {population!r}; there are {known}")
