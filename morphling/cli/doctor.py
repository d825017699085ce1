"""`morphling doctor`: what this machine offers."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

__all__ = ["doctor"]


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False) -> None:
    """Say what this machine offers: versions, cores, and which executors can run."""
    import os
    import platform

    from morphling.run import list_plugins

    facts: dict[str, object] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
    }
    for name in ("morphling", "numpy", "simpy", "numba", "pyarrow", "torch"):
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = "not installed" + (
                " (the live executor and morphling emulate need it)" if name == "torch" else ""
            )
    facts["executors"] = {p.name: p.cause or "ready" for p in list_plugins("executors")}
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for key, value in facts.items():
        text = ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else value
        print(f"{key:<12} {text}")
