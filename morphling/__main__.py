"""`python -m morphling` is the command line."""

from __future__ import annotations

from morphling.cli import main

main()
