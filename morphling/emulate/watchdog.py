"""Counts matrix products that the interception never saw.

They come from threads of other libraries, or from a backward pass that somebody else's thread runs: the mode is not
active there.  Below it, on the CPU, the plain kernels of four operations are wrapped; tiles use their ``.out`` variants
and never meet the wrapping.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, Self

import torch

from morphling.emulate.interception import Interception

__all__ = ["Watchdog"]

WATCHED = ("mm", "addmm", "bmm", "baddbmm")


class Watchdog:
    """While it is entered, products that reach a CPU kernel without ``mode`` count as escaped.

    ``cause`` says why it cannot watch, where it cannot (an older torch); empty where it does.
    """

    def __init__(self, mode: Interception) -> None:
        self.mode = mode
        self.library: Any = None
        self.cause = ""

    def __enter__(self) -> Self:
        if not hasattr(torch.library, "get_kernel"):
            self.cause = f"torch {torch.__version__} cannot hand out its kernels; 2.11 can"
            return self
        self.library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that an operator of torch is overridden
            for name in WATCHED:
                kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
                self.library.impl(name, self._watching(name, kernel), "CPU", with_keyset=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self.library is not None:
            self.library._destroy()  # noqa: SLF001 - the only way to take a kernel back
            self.library = None

    def _watching(self, name: str, kernel: Any) -> Any:
        mode = self.mode

        def watched(keys: Any, *args: Any, **kwargs: Any) -> Any:
            if not mode.busy and os.getpid() == mode.owner:
                a, b = args[-2:] if name in {"mm", "bmm"} else args[1:3]
                if not mode.coverage.calls["escaped"]:
                    mode.warn(
                        f"{name} was computed where no product can be seen: inside another operation, or in another"
                        " library's thread"
                    )
                mode.coverage.add("escaped", name, 2 * a.numel() * b.shape[-1])
            return kernel.call_boxed(keys, *args, **kwargs)

        return watched
