"""A class from a file of Python code that no distribution installed."""

from __future__ import annotations

import ast
import hashlib
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from morphling.errors import InputError
from morphling.run.plugins import Kind, unfit

__all__ = ["class_in_file", "line_raised", "own_line"]


def class_in_file(kind: Kind, path: Path, name: str, sha256: str) -> Any:
    """Run the file at ``path`` and return its strategy or executor called ``name``.

    The file stands alone: it may import what is installed, not its neighbours, so that its SHA-256 says what was run.
    It is run once in a process as long as its bytes stay the same.

    Raises ``InputError``, as ``file:line: cause``, where the code fails, there is no such class, or the class cannot be
    used; and if the bytes no longer have the SHA-256 that they had when the scenario was read.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if hashlib.sha256(source).hexdigest() != sha256:
        raise InputError(f"{path}: changed since the scenario was read; load the scenario again")
    module = _module(path, source)
    found = getattr(module, name, None)
    if found is None:
        raise InputError(f"{path}: has no {name!r}{_hint(kind, module, name)}")
    if cause := unfit(kind, found):
        raise InputError(f"{path}:{_line_of(source, name)}: {name} {cause}")
    return found


def line_raised(error: BaseException, path: Path) -> str:
    """``file:line`` of the last line of the file that an error passed through; the file alone if there is none."""
    if isinstance(error, SyntaxError) and error.filename == str(path) and error.lineno:
        return f"{path}:{error.lineno}"
    lines, trace = [], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return f"{path}:{lines[-1]}" if lines else str(path)


def own_line(error: BaseException, cls: type) -> str | None:
    """``file:line`` of the last line that an error passed through of the code that ``cls`` is made of.

    That is the modules, or the distributed packages, of the class and of what it is derived from, without Morphling's
    own; of a class of Morphling's, its own.  None if the error passed through none of them.
    """
    roots = {base.__module__.partition(".")[0] for base in cls.__mro__ if base.__module__ not in ("builtins", "abc")}
    roots = roots - {"morphling"} or roots
    found, trace = None, error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if str(frame.f_globals.get("__name__")).partition(".")[0] in roots:
            found = f"{frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _module(path: Path, source: bytes) -> ModuleType:
    """The file as a module; dataclasses and pickles look it up by its name, so it stays where modules are kept."""
    mark = hashlib.sha256(str(path).encode() + b"\0" + source).hexdigest()[:16]
    name = f"morphling_plugin_{path.stem}_{mark}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - allowed by the caller
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception | SystemExit):
            said = error.msg if isinstance(error, SyntaxError) else str(error)
            raise InputError(f"{line_raised(error, path)}: {type(error).__name__}: {said}") from error
        raise
    return module


def _hint(kind: Kind, module: ModuleType, name: str) -> str:
    here = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    fit = [key for key in here if unfit(kind, getattr(module, key)) is None]
    near = get_close_matches(name, fit, 1)
    return f", did you mean {near[0]!r}?" if near else f"; {kind} in it: {', '.join(fit) or 'none'}"


def _line_of(source: bytes, name: str) -> int:
    """The line on which the file gives something that name; 1 if it comes from elsewhere (``import *``)."""
    for statement in ast.parse(source).body:
        names = [getattr(statement, "name", None)]
        names += [target.id for target in getattr(statement, "targets", ()) if isinstance(target, ast.Name)]
        if isinstance(statement, ast.Import | ast.ImportFrom):
            names += [alias.asname or alias.name for alias in statement.names]
        if name in names:
            return statement.lineno
    return 1
