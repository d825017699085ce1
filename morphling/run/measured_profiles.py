"""From measured products to a device profile: fit, document, files."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from morphling import units
from morphling.errors import InputError
from morphling.executors.gemm_fit import Fitted, fit_samples
from morphling.fleet.gemm import GemmSamples
from morphling.scenario.gemm_profiles import fit_plain
from morphling.scenario.profiles import parse_profile, profile_document
from morphling.scenario.yaml12 import dump
from morphling.types import DType

__all__ = ["DeviceFacts", "MeasuredProfile", "check_free", "measured_profile", "write_profile"]


@dataclass(frozen=True)
class DeviceFacts:
    """What samples do not tell; numbers as text with units, each with where it comes from.

    device_class, title, memory, memory_reserved, memory_bandwidth, peak : replace what ``base`` says, or what is fitted
    base : name or path of a profile whose numbers are kept where nothing else is given
    stated : source of the numbers given here, and its kind
    """

    device_class: str | None = None
    title: str | None = None
    memory: str | None = None
    memory_reserved: str | None = None
    memory_bandwidth: str | None = None
    peak: str | None = None
    base: str | None = None
    source: str = "given when the samples were imported"
    kind: str = "assumed"


@dataclass(frozen=True, eq=False)
class MeasuredProfile:
    """A profile made of samples: its name, its YAML as plain values, the fits, and the text of the samples' file."""

    name: str
    document: Mapping[str, Any]
    fits: Mapping[DType, Fitted]
    samples_text: str

    def report(self) -> dict[str, Any]:
        """Errors on held-out shapes by dtype, and the shapes that are predicted worst; plain values."""
        out: dict[str, Any] = {"profile": self.name, "fits": {}}
        for dtype, f in self.fits.items():
            layouts = f.used.layouts()
            worst = [
                {
                    **{c: int(getattr(f.used, c)[i]) for c in ("m", "n", "k", "batch", "lda", "ldb")},
                    "layout": layouts[i],
                    "measured_ms": float(f.used.seconds[i] * 1e3),
                    "predicted_ms": float(f.predicted[i] * 1e3),
                }
                for i in f.worst()
            ]
            out["fits"][dtype.label] = {
                "held_out": asdict(f.errors),
                "fitted": asdict(f.errors_seen),
                "disturbed_shapes_left_out": f.dropped,
                "best_flops_per_s": float(np.max(f.used.flops / f.used.seconds)),
                "worst": worst,
            }
        return out


def measured_profile(name: str, samples: GemmSamples, text: str, facts: DeviceFacts, seed: int = 0) -> MeasuredProfile:
    """Fit every dtype among the samples and put a profile together.

    ``InputError`` if something that the profile needs is neither given nor in the base, or if the samples are faster
    than the stated peak; ``RunError`` as `fit_samples`.
    """
    base = {} if facts.base is None else profile_document(facts.base)
    lacking = [
        f"--{k.replace('_', '-')}" for k in ("memory", "memory_bandwidth") if not (getattr(facts, k) or k in base)
    ]
    if lacking and facts.base is None and facts.memory is None:
        raise InputError(f"a profile needs {' and '.join(lacking)}; give it, or --base with a profile that has it")
    source = _source(samples)
    dtypes = [d for d in DType if (samples.dtype == d).any()]
    peaks = {d: _stated_peak(d, base, facts) for d in dtypes}
    for d, peak in peaks.items():
        _check_peak(d, samples, peak, facts)
    fits = {d: fit_samples(samples, d, source=source, seed=seed, most_flops=peaks[d]) for d in dtypes}
    document = _document(name, base, facts, fits, source)
    document["gemm_model"] = {
        "samples": {"path": f"{name}-samples.csv", "sha256": hashlib.sha256(text.encode()).hexdigest()},
        "fits": {d.label: fit_plain(f.fit) for d, f in fits.items()},
    }
    return MeasuredProfile(name, document, fits, text)


def _source(samples: GemmSamples) -> str:
    said = samples.facts
    parts = [said.get(key) for key in ("host", "backend")]
    parts += [f"{said['threads']} thread{'s' * (said['threads'] != '1')}"] if "threads" in said else []
    parts += [said.get("clock"), f"operands {said['operands']}" if "operands" in said else None]
    parts += [said.get("date"), f"{len(samples)} shapes"]
    return "; ".join(p for p in parts if p)


def _stated_peak(dtype: DType, base: Mapping[str, Any], facts: DeviceFacts) -> float | None:
    if facts.peak is not None:
        return units.parse(facts.peak, "compute", zero=False)
    number = base.get("compute", {}).get(dtype.label)
    return None if number is None else units.parse(number["value"], "compute", zero=False)


def _check_peak(dtype: DType, samples: GemmSamples, peak: float | None, facts: DeviceFacts) -> None:
    mine = samples.take(samples.dtype == dtype)
    rate = mine.flops / mine.seconds
    i = int(np.argmax(rate))
    if peak is not None and rate[i] > peak:
        where = "--peak" if facts.peak is not None else f"compute.{dtype.label} of {facts.base}"
        shape = f"{mine.m[i]} x {mine.n[i]} x {mine.k[i]}"
        raise InputError(
            f"{shape} in {mine.seconds[i] * 1e3:.4g} ms is {units.format_compute(rate[i])}, above the peak of "
            f"{units.format_compute(peak)} ({where}): the samples are of another device or power mode, or their times "
            "are in another unit; if the peak is wrong, give --peak"
        )


def _document(
    name: str, base: dict[str, Any], facts: DeviceFacts, fits: Mapping[DType, Fitted], source: str
) -> dict[str, Any]:
    first = next(iter(fits.values())).fit.parameters

    def measured(value: Any, what: str) -> dict[str, Any]:
        return {"value": value, "source": f"{what}; {source}", "kind": "measured"}

    def stated(value: str) -> dict[str, Any]:
        return {"value": value, "source": facts.source, "kind": facts.kind}

    out: dict[str, Any] = {
        "name": name,
        "title": facts.title or base.get("title", name),
        "class": facts.device_class or base.get("class", "board"),
        "compute": dict(base.get("compute", {})),
        "efficiency": dict(base.get("efficiency", {})),
    }
    for d, f in fits.items():
        best = float(np.max(f.used.flops / f.used.seconds))
        p = f.fit.parameters
        if facts.peak is not None:
            out["compute"][d.label] = stated(facts.peak)
        elif d.label not in out["compute"]:
            most = float(f"{max(best, p.peak, p.small_peak) * 1.0001:.4g}")
            most = max(most, p.peak, p.small_peak, best)
            out["compute"][d.label] = measured(
                units.exact_text(most, "compute"), "limit that the fitted model tends to"
            )
        peak = units.parse(out["compute"][d.label]["value"], "compute")
        out["efficiency"][d.label] = measured(float(f"{min(1.0, best / peak):.4g}"), "best sample by compute")
    for key in ("memory", "memory_reserved"):
        value = getattr(facts, key)
        if value is not None:
            out[key] = stated(value)
        elif key in base:
            out[key] = base[key]
    if facts.memory_bandwidth is not None:
        out["memory_bandwidth"] = stated(facts.memory_bandwidth)
        out["memory_efficiency"] = {"value": 1.0, "source": "the bandwidth is a sustained one", "kind": facts.kind}
    elif "memory_bandwidth" in base:
        out |= {key: base[key] for key in ("memory_bandwidth", "memory_efficiency")}
    else:
        far = max(first.memory_bandwidth, first.vector_memory_bandwidth)
        out["memory_bandwidth"] = measured(
            units.exact_text(far, "bandwidth"), "limit of the fitted model for large operands"
        )
        out["memory_efficiency"] = measured(1.0, "the bandwidth above is what products reach")
    out["launch"] = measured(units.exact_text(first.launch, "time"), "fitted cost of a call")
    return out | {key: base[key] for key in ("power", "battery", "thermal") if key in base}


def check_free(folder: Path, name: str) -> None:
    """``InputError`` if the folder cannot be made or the files of that profile are there already."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; a folder is needed")
    if not folder.absolute().parent.is_dir():
        raise InputError(f"{folder.parent}: no such folder")
    if not name or any(c in name for c in "/\\\n") or name.startswith("."):
        raise InputError(f"--name {name!r}: a name of letters, digits, '.', '_' and '-' is needed")
    for path in (folder / f"{name}.yaml", folder / f"{name}-samples.csv"):
        if path.exists():
            raise InputError(f"{path}: exists already; nothing was written")


def write_profile(profile: MeasuredProfile, folder: Path) -> list[Path]:
    """Write the profile, its samples and a drawing; all of them or nothing.  The files, in that order."""
    check_free(folder, profile.name)
    folder.mkdir(exist_ok=True)
    shelter = Path(tempfile.mkdtemp(prefix=f".{profile.name}-", dir=folder))
    try:
        samples = shelter / f"{profile.name}-samples.csv"
        samples.write_text(profile.samples_text, encoding="utf-8", newline="\n")
        head = (
            f"# Made of {samples.name} by morphling on {datetime.now(UTC):%Y-%m-%d}.\n"
            "# Use it as fleet: [{profile: ./" + profile.name + ".yaml, …}] with execution: {mode: profiled}.\n"
        )
        sheet = shelter / f"{profile.name}.yaml"
        sheet.write_text(head + dump(dict(profile.document)), encoding="utf-8", newline="\n")
        parse_profile(sheet.read_text(encoding="utf-8"), str(sheet))  # what is written can be read
        drawing = _draw(profile, shelter / f"{profile.name}.png")
        return [path.rename(folder / path.name) for path in (sheet, samples, drawing)]
    finally:
        shutil.rmtree(shelter, ignore_errors=True)


def _draw(profile: MeasuredProfile, path: Path) -> Path:
    from morphling.figures import draw_gemm_fit  # noqa: PLC0415 - matplotlib costs a third of a second

    series = {d.label: (f.used.seconds, f.predicted, f.held, f.used.flops) for d, f in profile.fits.items()}
    return draw_gemm_fit(profile.name, series, path)
