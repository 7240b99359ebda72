"""Writes a report's file: whole, or not at all. Checks before a run that it can be written."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

from ematix_probe.errors import ReportNotWritten


def check_file(path: str | Path) -> None:
    """Make the missing folders and try to write there; the file itself stays as it is."""
    target = Path(path)
    try:
        _refuse_folder(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            if not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        unfinished = _unfinished(target)
        unfinished.touch(exist_ok=False)
        unfinished.unlink()
    except (OSError, ValueError) as error:
        raise _not_written(path, error, state="no probe was run") from error


def write_file(path: str | Path, text: str) -> None:
    """Replace the file's content; a reader sees the old one or the new one. Missing folders are made."""
    target = Path(path)
    try:
        _refuse_folder(target)
        unfinished = _unfinished(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():  # a device such as /dev/stdout
            target.write_text(text, encoding="utf-8", errors="backslashreplace")
            return
        try:
            unfinished.write_text(text, encoding="utf-8", errors="backslashreplace")
            os.replace(unfinished, target)
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise _not_written(path, error) from error


def _refuse_folder(target: Path) -> None:
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def _unfinished(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}")


def _not_written(path: str | Path, error: OSError | ValueError, state: str | None = None) -> ReportNotWritten:
    return ReportNotWritten(
        f"the report {path} cannot be written: {getattr(error, 'strerror', None) or error}",
        state=state,
        next_step="make room there, or name a file on another disk"
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        else "name a file in a folder that is writable",
    )
