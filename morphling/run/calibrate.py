"""Measuring this host: the shipped measuring program in a process of its own, and a profile of what it prints.

The program runs apart so that its thread count is set before BLAS is loaded, and so that what measures a phone is, to
the letter, what measures this host.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from morphling.errors import InputError, RunError
from morphling.executors import measure_gemm
from morphling.executors.analytic import Analytic
from morphling.executors.gemm_fit import LEAST_SHAPES, Quality, quality
from morphling.executors.listed import with_list
from morphling.interfaces.tasks import TaskTable
from morphling.run.build import build
from morphling.run.measured_profiles import DeviceFacts, MeasuredProfile, check_free, measured_profile
from morphling.run.run import replay
from morphling.scenario import load_scenario
from morphling.scenario.gemm_samples import parse_samples
from morphling.types import IntArray, Kind

__all__ = ["CUDA_HINT", "calibrate", "measuring_script", "scenario_shapes"]

CUDA_HINT = (
    "--host cuda would measure in a partition of a CUDA device, which is no device of its own; 'mode: live' executes "
    "sub-tasks there. To measure a Jetson or another GPU itself, run there what 'morphling profiles measuring-script' "
    "prints, with --device cuda, and read its output with 'morphling profiles import-samples'"
)
MOST_SCENARIO_SHAPES = 200
BUSY_SHARE = 0.9
"""Below this share of a core the measuring thread had to wait for others."""


def measuring_script() -> str:
    """The source of the measuring program."""
    return Path(measure_gemm.__file__).read_text(encoding="utf-8")


def calibrate(
    name: str,
    folder: Path,
    *,
    host: str = "cpu",
    budget_s: float = 120.0,
    dtype: str = "float32",
    threads: int = 1,
    backend: str = "auto",
    shapes_of: str | None = None,
    resume: bool = False,
    facts: DeviceFacts | None = None,
    progress: Callable[[float, int], None] | None = None,
) -> tuple[MeasuredProfile, Quality, list[str]]:
    """Measure this host and fit a profile; nothing but the work file of samples is written here.

    ``progress`` is called with (share of the budget, lines).  Returns the profile, how far the samples can be trusted,
    and remarks.

    Raises
    ------
    InputError
        ``host: cuda``; a work file of an earlier, interrupted calibration is there and ``resume`` is not set.
    RunError
        The program failed, or the machine was too busy; the work file stays for ``resume``.
    """
    if host != "cpu":
        raise InputError(CUDA_HINT if host == "cuda" else f"--host {host}: cpu or cuda")
    check_free(folder, name)
    work = folder / f"{name}-samples.part"
    if work.exists() and not resume:
        raise InputError(f"{work}: of an interrupted calibration; go on with --resume, or delete it")
    listed, remarks = scenario_shapes(shapes_of) if shapes_of else ([], [])
    arguments = ["--budget", f"{budget_s:g}", "--dtype", dtype, "--threads", str(threads), "--backend", backend]
    folder.mkdir(exist_ok=True)
    with _listed(listed) as shapes:
        arguments += ["--shapes", str(shapes)] if listed else []
        _measure(arguments, work, budget_s, progress)
    text = work.read_text(encoding="utf-8")
    shapes_seen = len({line.rsplit(",", 2)[0] for line in text.splitlines() if line[:1].isdigit()})
    if shapes_seen < LEAST_SHAPES:
        raise RunError(
            f"{shapes_seen} shapes were measured in {budget_s:g} s, and a fit needs {LEAST_SHAPES}; "
            f"measure on with --resume and a longer --budget ({work} is kept)"
        )
    samples = parse_samples(text, str(work))
    try:
        profile = measured_profile(name, samples, text, facts or host_facts(threads))
    except RunError as error:
        raise RunError(f"{error}; {work} is kept: --resume adds rounds to it") from None
    return profile, quality(samples), [*remarks, *_busy(quality(samples))]


def _busy(found: Quality) -> list[str]:
    if found.cpu_share < BUSY_SHARE:
        told = (
            f"the machine was busy: the measuring thread had {found.cpu_share:.0%} of a core. Times are CPU time and "
        )
        told += "the shortest rounds, but neighbours also slow caches and memory: better measure when it is quiet"
        return [told]
    return []


def _measure(arguments: list[str], work: Path, budget_s: float, progress: Callable[[float, int], None] | None) -> None:
    """Run the program and append what it prints to the work file, a line at a time."""
    begun = work.exists()
    if begun:
        arguments = [*arguments, "--resume", str(work)]
    command = [sys.executable, "-P", measure_gemm.__file__, *arguments]
    started = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as complaints,
        work.open("a", encoding="utf-8") as out,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True) as program,  # noqa: S603
    ):
        if not begun:
            out.write(f"# date: {datetime.now(UTC):%Y-%m-%d}\n")
        try:
            for lines, line in enumerate(program.stdout or ()):
                if not (begun and not line[0].isdigit()):
                    out.write(line)
                if progress is not None:
                    progress(min(1.0, (time.monotonic() - started) / budget_s), lines)
        except BaseException:
            program.terminate()
            raise
        if program.wait() != 0:
            complaints.seek(0)
            last = (complaints.read().strip().splitlines() or ["it said nothing"])[-1]
            raise RunError(f"measuring failed: {last}")


@contextmanager
def _listed(shapes: list[tuple[Any, ...]]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shapes.csv"
        path.write_text("".join(",".join(map(str, s)) + "\n" for s in shapes), encoding="utf-8")
        yield path


def host_facts(threads: int = 1) -> DeviceFacts:
    """Memory of this host as its system reports it; what is in use now counts as reserved."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        found = None
    used = 0 if found is None else total - 1024 * int(found[1])
    return DeviceFacts(
        device_class="laptop",
        title=f"This host, {threads} CPU thread{'s' * (threads > 1)}",
        memory=f"{total} B",
        memory_reserved=f"{used} B" if 0 < used < total else None,
        source="the system's own report when calibrated (reserved: what was in use)",
        kind="measured",
    )


def scenario_shapes(scenario: str) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Shapes of the GEMMs that devices get in a scenario, those of most FLOPs first, and remarks."""
    built = build(load_scenario(scenario, {"execution": {"mode": "analytic"}}))
    watched = _Watching(built.executor)
    object.__setattr__(built, "executor", watched)
    replay(built)
    shapes, weight = np.unique(np.concatenate(watched.shapes), axis=0, return_inverse=True)
    flops = np.bincount(weight.ravel(), weights=np.concatenate(watched.flops))
    order = np.argsort(-flops, kind="stable")[:MOST_SCENARIO_SHAPES]
    remarks = []
    if len(shapes) > MOST_SCENARIO_SHAPES:
        covered = flops[order].sum() / flops.sum()
        remarks.append(
            f"{scenario}: the {MOST_SCENARIO_SHAPES} of its {len(shapes):,} shapes with most FLOPs are measured "
            f"({covered:.0%} of them)"
        )
    return [measure_gemm.shape_of(m, n, k) for m, n, k in shapes[order].tolist()], remarks


class _Watching(Analytic):
    """The analytic executor, remembering the shapes it was asked for."""

    def __init__(self, inner: Any) -> None:
        super().__init__(fleet=inner.fleet)
        self.shapes: list[IntArray] = [np.zeros((0, 3), np.int64)]
        self.flops: list[Any] = [np.zeros(0)]

    def durations(self, tasks: TaskTable, start_ns: int) -> IntArray:
        """As analytic."""
        here = tasks.device < self.fleet.size
        for number, count in enumerate(np.bincount(tasks.products[here & with_list(tasks)]).tolist()):
            for product in tasks.product_lists[number].entries if count else ():
                self.shapes.append(np.array([product[:3]], np.int64))
                self.flops.append(np.array([product.flops * count]))
        mine = (tasks.kind == Kind.GEMM) & here & (tasks.m * tasks.n * tasks.k > 0)
        self.shapes.append(np.stack([tasks.m[mine], tasks.n[mine], tasks.k[mine]], axis=1))
        self.flops.append(tasks.flops[mine])
        return super().durations(tasks, start_ns)
