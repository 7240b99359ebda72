"""Finds the line of the user's file that declares something, for errors and reports."""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGE = str(Path(__file__).parent)


def caller_location() -> str | None:
    """``file:line`` of the nearest caller outside this package."""
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None
