"""Finds the line of the user's file that declares something, for errors and reports."""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGE = str(Path(__file__).parent)


def caller_location() -> str | None:
    """``file:line`` of the nearest caller outside this package."""
    frame = sys._getframe(1)
    while frame is not None:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        generated = file == "<string>" and function == "__init__"  # that of a dataclass of this package
        if not generated and not file.startswith(_PACKAGE):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None
