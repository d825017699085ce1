"""REAL TENSORS: an unmodified PyTorch script trained on an emulated fleet.

`interception` sees every matrix product of a script, `clock` replays it on the fleet in virtual time, `products`
executes it as the rows that got done there, and `script` runs the script around them.  torch is imported on use; only
`products`, `interception`, `watchdog`, `script` and `tracing` need it.
"""

from __future__ import annotations

from morphling.errors import InputError

__all__ = ["need_torch"]


def need_torch() -> str:
    """The version of torch; ``InputError`` that says how to install it where it is missing."""
    try:
        import torch  # noqa: PLC0415 - only who emulates needs it
    except ImportError as error:
        raise InputError(
            f"emulating a script needs PyTorch, which cannot be imported ({error}): pip install 'morphling[live]'"
        ) from error
    return str(torch.__version__)
