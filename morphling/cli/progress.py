"""Progress on stderr, for people at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from morphling.run.side_by_side import Progress

__all__ = ["side_by_side", "watched"]


@contextmanager
def watched(name: str) -> Iterator[Callable[[float, int], None]]:
    """Show virtual time and rows settled while a run goes on; yields what the engine calls."""
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    bar = Bars(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(f"{name}: planning")

        def show(virtual_s: float, rows: int) -> None:
            bar.update(task, description=f"{name}: virtual time {virtual_s:,.1f} s, {rows:,} rows")

        yield show


@contextmanager
def side_by_side(name: str) -> Iterator[Callable[[Progress], None]]:
    """A bar on stderr: runs finished of all, and which run now, how far in virtual time."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn(name),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
    )
    with bars:
        bar = bars.add_task("reading")

        def show(now: Progress) -> None:
            at = [f"{key} ({virtual_s:,.1f} s)" if virtual_s else key for key, virtual_s in now.running.items()]
            more = f" and {len(at) - 3} more" if len(at) > 3 else ""
            bars.update(bar, completed=now.done, total=now.total, description="; ".join(at[:3]) + more)

        yield show
