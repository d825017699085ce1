"""The house itself: rooms, names, what `import morphling` may load, and what no file may say."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "morphling"
MODULES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(m.relative_to(ROOT)) for m in MODULES]

HEAVY = ("torch", "matplotlib", "pandas", "numba", "pyarrow", "scipy", "pint")
NOT_USED = {"node", "worker", "client", "job", "manager", "handler", "helper", "util", "utils", "common", "misc"}
TEXT = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".cff", ".csv", ".cfg", ".ipynb", ".json", ""}


def tracked_files() -> list[Path]:
    """What git tracks or would add; the whole tree, less hidden folders, where there is no git."""
    git = shutil.which("git")
    if git and (ROOT / ".git").exists():
        command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]
    return [p for p in ROOT.rglob("*") if p.is_file() and not any(x.startswith(".") for x in p.relative_to(ROOT).parts)]


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_every_module_says_what_belongs_there(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{path.relative_to(ROOT)} has no docstring"


def test_every_folder_of_modules_is_a_package():
    folders = {p.parent for p in MODULES}
    assert [str(f.relative_to(ROOT)) for f in sorted(folders) if not (f / "__init__.py").is_file()] == []


def test_modules_bear_no_name_that_means_anything():
    bad = [str(p.relative_to(ROOT)) for p in MODULES if NOT_USED & set(re.split(r"[_.]", p.stem.lower()))]
    assert bad == []
    assert [p.name for p in PACKAGE.rglob("*") if p.is_dir() and p.name in NOT_USED] == []


def test_no_module_is_too_long_to_read():
    lines = {name: len(m.read_text(encoding="utf-8").splitlines()) for name, m in zip(NAMES, MODULES, strict=True)}
    assert {name: n for name, n in lines.items() if n > 450} == {}


def test_importing_morphling_is_light():
    code = f"import sys, morphling; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == []


def test_the_storeys_hold():
    code = "import sys; from importlinter.cli import lint_imports_command as c; sys.exit(c(['--no-cache']))"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_type_marker_ships():
    assert (PACKAGE / "py.typed").is_file()


def test_no_file_names_a_machine():
    # Put together here, so that this file does not find itself.
    places = "|".join("/" + place + "/" for place in ("work", "home", "root", "Users"))
    pattern = re.compile(rf"(?<![\w.:}}~-])({places})[\w.~-]")
    found = []
    for path in tracked_files():
        if path.suffix in TEXT:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if pattern.search(line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []


def test_versions_are_pinned_exactly():
    lines = [x for x in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if not x.startswith("#")]
    assert [x for x in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][\w.+!]*", x)] == []
    assert len({x.split("==")[0].lower() for x in lines}) == len(lines)


def test_every_direct_dependency_is_pinned():
    import tomllib

    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(x for extra in project["optional-dependencies"].values() for x in extra)]
    pinned = {plain(x.split("==")[0]) for x in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    assert [w for w in wanted if plain(re.split(r"[^\w.-]", w)[0]) not in pinned] == []


def test_entry_points_lead_somewhere():
    import importlib
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for group in (project["scripts"], *project["entry-points"].values()):
        for target in group.values():
            module, _, name = target.partition(":")
            assert hasattr(importlib.import_module(module), name), target


def test_the_version_is_the_same_everywhere():
    import tomllib

    import yaml

    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert all(a.get("name") or a["family-names"] for a in citation["authors"])
