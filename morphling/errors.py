"""The exception tree.  Everything Morphling raises on purpose is one of these.

MorphlingError
├── InputError            the input is wrong (exit code 2)
│   ├── UnitError         a quantity without a unit, an unknown or an ambiguous unit
│   ├── ScenarioError     a scenario file: all its faults at once, each as file:line:col: field: reason
│   ├── ProfileError      a device profile
│   ├── TraceError        a link or availability trace
│   └── WorkloadError     an unknown model, an unreadable config.json
└── RunError              the run failed (exit code 1)
    ├── PlanError         a strategy cannot serve this fleet and workload; says what would
    │   └── Infeasible    no plan exists at all (memory, layers, heads)
    └── EngineError       the engine stopped: rows pending with nothing left to happen, a clock that stands still
        └── Deserted      an EngineError and Infeasible: all devices left for good before the work was done
"""

from __future__ import annotations

__all__ = [
    "Deserted",
    "EngineError",
    "Infeasible",
    "InputError",
    "MorphlingError",
    "PlanError",
    "ProfileError",
    "RunError",
    "ScenarioError",
    "TraceError",
    "UnitError",
    "WorkloadError",
]


class MorphlingError(Exception):
    """Base of every error that Morphling raises on purpose."""

    exit_code = 1


class InputError(MorphlingError):
    """The input is wrong; nothing was run."""

    exit_code = 2


class UnitError(InputError):
    """A quantity that cannot be read without guessing."""


class ScenarioError(InputError):
    """One or more faults in a scenario; ``problems`` holds one line for each."""

    def __init__(self, problems: str | list[str] | tuple[str, ...]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class ProfileError(InputError):
    """A device profile that cannot be used."""


class TraceError(InputError):
    """A link or availability trace that cannot be used."""


class WorkloadError(InputError):
    """A model or training set-up that cannot be used."""


class RunError(MorphlingError):
    """The run was started and failed."""


class PlanError(RunError):
    """A strategy cannot serve this fleet and workload; the message says what would."""


class Infeasible(PlanError):  # noqa: N818 - the field's word, used as a noun in comparisons
    """No plan exists for this fleet and workload under this strategy."""


class EngineError(RunError):
    """The engine stopped because going on would give a wrong number."""


class Deserted(Infeasible, EngineError):  # noqa: N818 - as Infeasible
    """All devices left for good before the work was done: this fleet cannot be served, whatever a strategy does."""
