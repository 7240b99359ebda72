"""Writes a report's file: whole, or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from ematix_probe.errors import ReportNotWritten


def write_file(path: str | Path, text: str) -> None:
    """Replace the file's content; a reader sees the old one or the new one. Missing folders are made."""
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
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
    except OSError as error:
        raise ReportNotWritten(
            f"the report {target} cannot be written: {error.strerror or error}",
            next_step="name a file in a folder that is writable",
        ) from error
