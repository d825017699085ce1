"""What devices lack for a plan, in one wording: how many cannot hold it, who comes nearest, what is needed, what helps.

``has`` is always a device's memory and ``needed`` what it would have to hold, with units; if the two look the same,
whole bytes stand behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from morphling.errors import Infeasible
from morphling.interfaces.view import View
from morphling.planning.training_memory import DeviceMemory
from morphling.types import DType, IntArray
from morphling.units import format_bytes

__all__ = ["has_and_needed", "require_fit", "too_little_memory", "with_rate"]

SMALLER = "a smaller micro-batch, recompute: full or shorter sequences need less"
LEANER = "the states alone are more: a smaller model or an optimizer with fewer states needs less"


def with_rate(view: View, here: IntArray) -> IntArray:
    """Those of ``here`` that compute in the workload's dtype; ``Infeasible`` if none does."""
    wanted, fleet = view.workload.dtype, view.fleet
    able = here[~np.isnan(fleet.compute_flops(wanted)[here])]
    if len(able):
        return able
    others = [d.label for d in DType if len(here) and not np.isnan(fleet.compute_flops(d)[here]).all()]
    known = f"; workload.dtype: {' or '.join(others)} would do" if others else ""
    raise Infeasible(f"no device of {len(here)} has a {wanted.label} rate{known}")


def has_and_needed(has: float, needed: float, whose: str) -> str:
    """``<whose> has 6 GB, needed 13.6 GB``, both in bytes."""
    texts = [format_bytes(x) for x in (has, needed)]
    if texts[0] == texts[1]:
        texts = [f"{text} ({x:.0f} bytes)" for text, x in zip(texts, (has, needed), strict=True)]
    return f"{whose} has {texts[0]}, needed {texts[1]}"


def too_little_memory(
    what: str, need: DeviceMemory, capacity_bytes: ArrayLike, names: Sequence[str], *, wanted: int = 1, also: str = ""
) -> Infeasible:
    """Fewer than ``wanted`` devices can hold ``what``; the error names the largest of those that cannot.

    capacity_bytes : int[n], memory of the devices that are asked, whose names are ``names``
    also : what else would help
    """
    capacity = np.asarray(capacity_bytes)
    enough = capacity >= need.total
    i = int(np.argmax(np.where(enough, -1, capacity)))
    if enough.any():
        begins = f"{int(enough.sum())} of {len(capacity)} devices can hold {what}, {wanted} have to"
        whose = f"the largest of the others, {names[i]},"
    else:
        begins = f"no device can hold {what}"
        whose = f"the largest of {len(capacity)}, {names[i]}," if len(capacity) > 1 else f"the only one, {names[i]},"
    told = f"{has_and_needed(float(capacity[i]), need.total, whose)} ({_parts(need)})"
    return Infeasible("; ".join([f"{begins}: {told}", _change(need, float(capacity[i])), *([also] if also else [])]))


def require_fit(
    needs: Sequence[DeviceMemory],
    capacity_bytes: ArrayLike,
    *,
    what: str = "stage",
    names: Sequence[str] | None = None,
) -> None:
    """Raise ``Infeasible`` for the one of ``needs`` that is furthest over its capacity (int[n], bytes).

    ``names`` : what each is called (None: by its number)
    """
    total = np.array([x.total for x in needs], np.int64)
    capacity = np.asarray(capacity_bytes)
    if capacity.shape != total.shape:
        raise ValueError(f"capacity_bytes: {len(total)} are needed, not shape {capacity.shape}")
    over = total - capacity
    if len(over) and over.max() > 0:
        i = int(over.argmax())
        has, need = float(capacity[i]), needs[i]
        told = has_and_needed(has, need.total, f"{what} {i if names is None else names[i]}")
        raise Infeasible(
            f"{int((over > 0).sum())} of {len(over)} {what}s of the plan do not fit: {told} ({_parts(need)});"
            f" {_change(need, has)}"
        )


def _parts(need: DeviceMemory) -> str:
    named = (("states", need.states), ("activations", need.activations), ("other", need.other))
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in named if size)


def _change(need: DeviceMemory, has: float) -> str:
    return LEANER if need.states > has else SMALLER
