"""`morphling doctor`: what this machine offers."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

__all__ = ["doctor"]


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False) -> None:
    """Say what this machine offers: versions, cores, which executors can run, and where sub-tasks can be executed."""
    import os
    import platform

    from morphling.executors.live import offers
    from morphling.executors.live.cache import cache_folder
    from morphling.run import list_plugins

    facts: dict[str, object] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
    }
    for name in ("morphling", "numpy", "simpy", "numba", "pyarrow", "threadpoolctl", "torch", "cuda-bindings"):
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = "not installed" + (f" ({OPTIONAL[name]})" if name in OPTIONAL else "")
    facts["executors"] = {p.name: p.cause or "ready" for p in list_plugins("executors")}
    facts["live_cache"] = str(cache_folder())
    live = offers()
    if as_json:
        print(json.dumps({**facts, "live": live}, indent=2))
        return
    for key, value in facts.items():
        text = ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else value
        print(f"{key:<14} {text}")
    print("\nmode: live")
    for name, offer in live.items():
        print(f"  {name:<12} {_told(offer)}")


OPTIONAL = {
    "torch": "emulating scripts and the cuda back end of the live executor need it: pip install 'morphling[live]'",
    "cuda-bindings": "the cuda back end of the live executor needs it; a CUDA build of torch brings it",
}


def _told(offer: dict[str, Any]) -> str:
    """A back end in a few lines: what it has, or why it is not there."""
    if not offer["ready"]:
        return f"not here: {offer['why']}"
    lines = [f"ready; {', '.join(offer['partitions'])}; {', '.join(offer['dtypes'])}; timed by {offer['clock']}"]
    lines.append("; ".join(f"{k} {v}" for k, v in offer["fingerprint"].items() if k != "back_end"))
    known = ("ready", "partitions", "dtypes", "clock", "limiting", "fingerprint")
    lines.append(f"limiting: {' or '.join(offer['limiting'])}")
    lines += [f"{k} {v}" for k, v in offer.items() if k not in known]
    return f"\n{'':15}".join(lines)
