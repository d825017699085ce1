"""scipy's least squares as the fits use it: on one thread, or an error that says what to install."""

from __future__ import annotations

from functools import cache
from typing import Any

from morphling.errors import RunError

__all__ = ["least_squares"]


def least_squares(*args: Any, **options: Any) -> Any:
    """`scipy.optimize.least_squares`, with BLAS on one thread.

    Problems here have a dozen unknowns: more threads make no solution faster, take three times as long together, and
    wait for each other where cores are shared.

    ``RunError`` if scipy is not installed.
    """
    solve, libraries = _scipy()
    with libraries.limit(limits=1, user_api="blas"):
        return solve(*args, **options)


@cache
def _scipy() -> tuple[Any, Any]:
    try:
        from scipy.optimize import least_squares as solve  # noqa: PLC0415 - an extra, and half a second
    except ImportError:
        raise RunError("fitting needs scipy: pip install 'morphling[calibrate]'") from None
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415 - reads every loaded library, scipy's BLAS too

    return solve, ThreadpoolController()
