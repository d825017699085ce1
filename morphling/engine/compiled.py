"""One source, two ways to run it: interpreted for tiny runs, compiled by numba once there is enough work to pay for
it.
"""

from __future__ import annotations

import hashlib
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from morphling.engine.kernels import ENTRIES, SOURCES, links

__all__ = ["Kernels", "is_loaded", "kernels"]

_compiled: Kernels | None = None


class Kernels:
    """The kernels as attributes; ``compiled`` tells which way they run."""

    def __init__(self, *, compiled: bool) -> None:
        self.compiled = compiled
        found = {entry.__name__: entry for entry in ENTRIES}
        if compiled:
            space = _compile()
            found = {name: space[name] for name in found}
        for name, entry in found.items():
            setattr(self, name, entry)

    run_closed: Callable[..., int]
    order_run: Callable[..., int]
    submit: Callable[..., int]
    advance: Callable[..., None]
    drop_device: Callable[..., None]
    withdraw: Callable[..., bool]
    transfer_end: Callable[..., int]


def _compile() -> dict[str, Any]:
    """All kernels compiled, over one namespace in which each calls the compiled others."""
    import numba  # noqa: PLC0415 - 200 ms that a tiny run must not pay

    space: dict[str, Any] = {}
    for source in SOURCES:
        space.update(vars(source))
    # numba looks at one file when it asks whether its cache is stale, but a kernel takes in kernels of other files
    print_of_all = hashlib.sha256(b"".join(Path(str(x.__file__)).read_bytes() for x in SOURCES)).hexdigest()[:12]
    jit = numba.njit(cache=_can_cache(), nogil=True, error_model="numpy")
    names = {source.__name__ for source in SOURCES}
    for name, value in list(space.items()):
        if isinstance(value, types.FunctionType) and value.__module__ in names:
            twin = types.FunctionType(value.__code__, space, name, value.__defaults__)
            twin.__module__ = value.__module__
            twin.__qualname__ = f"{value.__qualname__}-{print_of_all}"
            space[name] = jit(twin)
    return space


def _can_cache() -> bool:
    """Whether numba finds a folder for its cache; without one it compiles anew in each process, and we say so."""
    import numba  # noqa: PLC0415

    try:
        numba.njit(cache=True)(types.FunctionType(links.product.__code__, {}, "probe"))
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
