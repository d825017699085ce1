"""The matrix products of a script or of a model, into a file that a scenario can name as its workload."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from morphling.emulate import need_torch
from morphling.errors import InputError, RunError
from morphling.workload.traced import TracedGemms

__all__ = ["trace"]


def trace(
    script: str | Path | None,
    args: Sequence[str] = (),
    *,
    out: str | Path,
    model: str | None = None,
    config: str | Path | None = None,
    batch_size: int = 8,
    sequence_length: int = 1024,
    dtype: str = "float32",
    real: bool = False,
    note: Callable[[str], object] = str,
) -> TracedGemms:
    """Trace one training step of ``script``, or of ``model`` (``module:Class``) made of the JSON file ``config``.

    Its numbers are not computed, unless the step of a script is to be executed (``real``); ``note`` is told what the
    script sees otherwise than alone.  The products go into ``out``, a new file.  ``InputError`` if the input is wrong,
    or the script needs numbers; `RunError` if there is no product, or the file cannot be written.
    """
    need_torch()
    target = Path(out)
    if target.exists():
        raise InputError(f"{target}: is there already; results are never written over others")
    if (script is None) == (model is None):
        raise InputError(
            "either a script or --model is traced, not both" if script else "a script or --model is needed"
        )
    if model and real:
        raise InputError("--real executes a step of a script; a model is traced without weights")
    from morphling.emulate.tracing import trace_model, trace_script  # noqa: PLC0415 - torch takes a second

    if model is None:
        traced = trace_script(Path(script or ""), args, real=real, note=note)
    else:
        for name, value in (("batch-size", batch_size), ("sequence-length", sequence_length)):
            if value < 1:
                raise InputError(f"--{name}: at least 1, not {value}")
        traced = trace_model(model, _config(config), batch_size, sequence_length, dtype=dtype)
    try:
        target.write_text(traced.to_json(), encoding="utf-8")
    except OSError as error:
        raise RunError(f"{target}: cannot be written: {error.strerror}") from error
    return traced


def _config(path: str | Path | None) -> dict[str, object]:
    """What the model is made of; nothing but its defaults without a file."""
    if path is None:
        return {}
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds no JSON object")
    return value
