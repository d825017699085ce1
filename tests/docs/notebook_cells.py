"""Run the cells of a notebook in this process, one after another, and make what a cell ends with show itself.

Called as a program with a notebook: it works wherever Morphling is installed, without Jupyter.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import matplotlib as mpl


def run(notebook: Path) -> int:
    """Execute all code cells; returns how many.  An error in a cell comes through."""
    cells = [c for c in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
    names = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        tree = ast.parse("".join(cell["source"]), f"{notebook.name}, code cell {number}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{notebook.name}, code cell {number}", "exec"), names)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), f"{notebook.name}, code cell {number}", "eval"), names)
            page = getattr(shown, "_repr_html_", None)
            sys.stdout.write((page() if page else repr(shown)) + "\n")
    return len(cells)


if __name__ == "__main__":
    mpl.use("Agg")
    sys.stdout.write(f"{run(Path(sys.argv[1]))} cells\n")
