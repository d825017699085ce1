"""A progress line on stderr, for people at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["watched"]


@contextmanager
def watched(name: str) -> Iterator[Callable[[float, int], None]]:
    """Show virtual time and rows settled while a run goes on; yields what the engine calls."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    bar = Progress(
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
