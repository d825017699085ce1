"""Where files are: the data shipped with the package, and names and paths written in a scenario."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal, TypeAlias

from morphling.errors import InputError

__all__ = ["DataKind", "data_folder", "find_file", "full_path", "is_path", "plugin_file", "shipped_names", "suggestion"]

DataKind: TypeAlias = Literal["device_profiles", "network_traces", "scenarios"]

_SUFFIX: Final = {"device_profiles": ".yaml", "network_traces": ".csv", "scenarios": ".yaml"}
_NOUN: Final = {"device_profiles": "device profile", "network_traces": "network trace", "scenarios": "scenario"}
_PATH_SUFFIXES: Final = (".yaml", ".yml", ".json", ".csv")


def data_folder(kind: DataKind) -> Path:
    """The folder of shipped ``kind``: inside the package if installed, else at the root of the repository."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "data" / kind
    return installed if installed.is_dir() else package.parent / kind


def shipped_names(kind: DataKind) -> list[str]:
    """Names of the shipped files, sorted; those in sub-folders as ``folder/name``."""
    folder = data_folder(kind)
    suffix = _SUFFIX[kind]
    return sorted(p.relative_to(folder).as_posix().removesuffix(suffix) for p in folder.rglob(f"*{suffix}"))


def is_path(reference: str) -> bool:
    """Whether ``reference`` is a path rather than the name of something shipped: it has a slash or a file's suffix."""
    return "/" in reference or "\\" in reference or reference.endswith(_PATH_SUFFIXES)


def plugin_file(target: str) -> tuple[str, str] | None:
    """``("folder/mine.py", "Mine")`` of a plug-in written ``folder/mine.py:Mine``; None for ``package.module:Class``.

    ``InputError`` if the class is left out.
    """
    file, _, name = target.rpartition(":")
    if target.endswith(".py"):
        raise InputError(f"'{target}' names no class; write it as {target}:Class")
    return (file, name) if file.endswith(".py") else None


def suggestion(word: str, known: list[str], *, all_known: bool = True) -> str:
    """``did you mean 'count'?``, or else what is known, or nothing."""
    near = get_close_matches(word, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"known: {', '.join(known)}" if known and all_known else ""


def full_path(reference: str, folder: Path | None = None) -> Path:
    """The absolute path that ``reference`` (relative to ``folder``; ``~`` is a home) means, without links.

    ``InputError`` for what no path can be: too long, an unknown home, a character that the system cannot write.
    """
    try:
        path = ((folder or Path.cwd()) / Path(reference).expanduser()).resolve()
        path.is_file()  # some of these faults show only when the system is asked
    except (OSError, RuntimeError, ValueError) as error:
        shown = reference if len(reference) <= 100 else reference[:100] + "…"
        raise InputError(f"'{shown}' cannot be a path: {error}") from None
    return path


def find_file(kind: DataKind, reference: str, folder: Path | None = None) -> Path:
    """The file that a name (of something shipped) or a path (relative to ``folder``) means.

    Raises
    ------
    InputError
        There is no such file; names the nearest shipped name.
    """
    shipped = data_folder(kind) / f"{reference}{_SUFFIX[kind]}"
    names = shipped_names(kind)
    if reference in names:
        return shipped
    if is_path(reference):
        path = full_path(reference, folder)
        if path.is_file():
            return path
        raise InputError(f"no such file: {path}")
    hint = suggestion(reference, names) or "none are shipped; give a path that ends in " + _SUFFIX[kind]
    raise InputError(f"unknown {_NOUN[kind]} '{reference}', {hint}")
