"""One source, two ways to run it: interpreted for tiny runs, compiled by numba once there is enough work to pay for
it.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

from morphling.engine import kernels as source

__all__ = ["Kernels", "is_loaded", "kernels"]

_compiled: Kernels | None = None


class Kernels:
    """The kernels as attributes; ``compiled`` tells which way they run."""

    def __init__(self, *, compiled: bool) -> None:
        self.compiled = compiled
        space: dict[str, Any] = dict(vars(source))
        if compiled:
            import numba  # noqa: PLC0415 - 200 ms that a tiny run must not pay

            jit = numba.njit(cache=_can_cache(), nogil=True, error_model="numpy")
            for name, value in vars(source).items():
                if isinstance(value, types.FunctionType) and value.__module__ == source.__name__:
                    # the same code over a namespace whose functions are the compiled ones
                    twin = types.FunctionType(value.__code__, space, name, value.__defaults__)
                    twin.__module__ = source.__name__
                    twin.__qualname__ = value.__qualname__
                    space[name] = jit(twin)
        for name in source.__all__:
            setattr(self, name, space[name])

    run_closed: Callable[..., int]
    submit: Callable[..., int]
    advance: Callable[..., None]
    drop_device: Callable[..., None]
    withdraw: Callable[..., bool]
    transfer_end: Callable[..., int]


def _can_cache() -> bool:
    """Whether numba finds a folder for its cache; without one it compiles anew in each process, and we say so."""
    import numba  # noqa: PLC0415

    try:
        numba.njit(cache=True)(types.FunctionType(source.product.__code__, {}, "probe"))
    except RuntimeError:
        warnings.warn(
            "no folder for numba's cache is writable: kernels are compiled anew; set NUMBA_CACHE_DIR", stacklevel=2
        )
        return False
    return True


_interpreted = Kernels(compiled=False)


def is_loaded() -> bool:
    """Whether this process has paid for the compiled kernels already."""
    return _compiled is not None


def kernels(*, compiled: bool) -> Kernels:
    """The kernels, compiled or not.  The first compiled call of an installation takes seconds; then a disk cache
    serves.
    """
    global _compiled  # noqa: PLW0603 - one compiled set per process
    if not compiled:
        return _interpreted
    if _compiled is None:
        _compiled = Kernels(compiled=True)
    return _compiled
