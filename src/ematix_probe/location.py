"""Finds the line of the user's file that declares something, for errors and reports."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

_PACKAGE = str(Path(__file__).parent)


def caller_location() -> str | None:
    """``file:line`` of the nearest caller outside this package."""
    frame = _calling_frame()
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def calling_module_body() -> CodeType | None:
    """The code of the module that calls this package while it is imported; None for a caller in a function.

    An import that is repeated runs another code object, also of a file that did not change.
    """
    frame = _calling_frame()
    return frame.f_code if frame is not None and frame.f_code.co_name == "<module>" else None


def _calling_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        generated = file == "<string>" and function == "__init__"  # that of a dataclass of this package
        if not generated and not file.startswith(_PACKAGE):
            return frame
        frame = frame.f_back
    return None
