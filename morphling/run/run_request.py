"""One run among many: what to replay, and how it ended, as records that travel between processes."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from morphling.errors import InputError, MorphlingError, PlanError
from morphling.run.build import strategy_class_of
from morphling.run.plugin_files import own_line
from morphling.run.run import run
from morphling.scenario import LoadedScenario, load_scenario

__all__ = ["RunEnd", "RunRequest", "State", "replay_request"]

State = Literal["done", "infeasible", "failed"]


@dataclass(frozen=True)
class RunRequest:
    """A run to make.

    key : what it is called in progress and messages
    source, overrides : as `morphling.load_scenario` takes them; relative paths start where the caller stands
    out : run folder (new or empty)
    figures : draw its overview
    inputs : SHA-256 by path of the files as they were checked; a run that reads others is refused.  None: no check.
    """

    key: str
    source: str | Path | Mapping[str, Any]
    overrides: Iterable[str | tuple[str, Any]]
    out: Path
    figures: bool = False
    allow_plugins: bool = False
    inputs: Mapping[str, str] | None = None


@dataclass(frozen=True)
class RunEnd:
    """How a run ended.

    state : ``done`` (``folder`` holds it), ``infeasible`` (a `PlanError`: no number exists) or ``failed``
    reason : the message of the error; of one that Morphling does not raise on purpose with its class before it, and
        behind its first line the ``file:line`` at which the strategy's own code raised it, or called what did
    error : name of its class
    traceback : where it was raised, of errors that Morphling does not raise on purpose
    """

    key: str
    state: State
    folder: Path | None = None
    reason: str | None = None
    error: str | None = None
    traceback: str | None = None


def replay_request(request: RunRequest, progress: Callable[[float, int], None] | None = None) -> RunEnd:
    """Make the run in this process; errors become its end, so that other runs go on.

    What strategies print goes to stderr: stdout belongs to the table of all runs.
    """
    loaded = None
    try:
        with contextlib.redirect_stdout(sys.stderr):
            loaded = load_scenario(request.source, request.overrides)
            _check_inputs(loaded, request.inputs)
            results = run(
                loaded,
                out=request.out,
                figures=request.figures,
                progress=progress,
                allow_plugins=request.allow_plugins,
            )
    except PlanError as error:
        return RunEnd(request.key, "infeasible", reason=str(error), error=type(error).__name__)
    except MorphlingError as error:
        return RunEnd(request.key, "failed", reason=str(error), error=type(error).__name__)
    except BrokenPipeError:  # raised by ``progress``: nobody is waiting for this run any more
        raise
    except Exception as error:  # noqa: BLE001 - a stranger's strategy may raise anything; the other runs go on
        name = type(error).__name__
        said, lines, more = f"{name}: {error}".partition("\n")
        reason = said + _place_of(error, loaded, request.allow_plugins) + lines + more
        return RunEnd(request.key, "failed", reason=reason, error=name, traceback="".join(_lines_of(error)))
    return RunEnd(request.key, "done", folder=results.folder)


def _place_of(error: Exception, loaded: LoadedScenario | None, allow_plugins: bool) -> str:
    """`` (file:line)`` of the strategy's own code, or nothing."""
    if loaded is None:
        return ""
    try:
        place = own_line(error, strategy_class_of(loaded, allow_plugins=allow_plugins))
    except MorphlingError:  # the error came before the strategy did
        return ""
    return f" ({place})" if place else ""


def _lines_of(error: BaseException) -> list[str]:
    return traceback.format_exception(type(error), error, error.__traceback__)


def _check_inputs(loaded: LoadedScenario, expected: Mapping[str, str] | None) -> None:
    """Runs that stand side by side must have read the same bytes, and code only as it was allowed."""
    if expected is None:
        return
    changed = [path for path, digest in loaded.inputs.items() if expected.get(path) != digest]
    if changed:
        raise InputError(f"{', '.join(changed)}: changed since the first of these runs was prepared; start again")
