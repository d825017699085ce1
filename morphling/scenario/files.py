"""Reading whole text files, with the errors that a file can have before anybody looks inside."""

from __future__ import annotations

import hashlib
from pathlib import Path

from morphling.errors import InputError

__all__ = ["file_digest", "read_text"]


def read_text(path: Path) -> str:
    """The file as text, without a byte-order mark.  Raises `InputError` if it cannot be read or is not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start})") from None


def file_digest(path: Path) -> str:
    """SHA-256 of the file's bytes, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
