"""Named random streams.  Everything random in a run draws from one of these, so that no draw disturbs another.

The recipe, complete enough to repeat elsewhere: take SHA-256 of the name in UTF-8, read its first 16 bytes as four
big-endian unsigned 32-bit words, and seed ``PCG64`` with ``SeedSequence(seed, spawn_key=those four words)``.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np

from morphling.errors import InputError

__all__ = ["stream"]


def stream(seed: int, name: str) -> np.random.Generator:
    """A fresh generator for ``name``: the same seed and name give the same numbers, in any process and any order.

    Parameters
    ----------
    seed
        The scenario's seed, a whole number >= 0 (0 is a seed like any other).
    name
        What is drawn, for example ``fleet.2.link.uplink``; not empty.

    Raises
    ------
    InputError
        If the seed is not a whole number >= 0, or the name is empty.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed: {seed!r} is not a whole number >= 0")
    if not name:
        raise InputError("a random stream needs a name")
    # PCG64 by name: numpy reserves the right to change what default_rng returns.
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int(seed), spawn_key=_words(name))))


def _words(name: str) -> tuple[int, int, int, int]:
    digest = hashlib.sha256(name.encode("utf-8")).digest()
    first, second, third, fourth = struct.unpack(">4I", digest[:16])
    return first, second, third, fourth
