"""Locations of declarations in the user's files."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


@dataclass(frozen=True)
class SourceLocation:
    """A file and a line; prints as ``file:line``, relative to the working directory when below it."""

    file: str
    line: int

    def __str__(self) -> str:
        try:
            shown = os.path.relpath(self.file)
        except (ValueError, OSError):  # another drive on Windows, or a deleted working directory
            shown = self.file
        return f"{self.file if shown.startswith('..') else shown}:{self.line}"


@dataclass(frozen=True, eq=False)
class TableLocation(SourceLocation):
    """A table of a file, with the locations of the named things inside it."""

    locations: Mapping[str, SourceLocation] = field(default_factory=dict, repr=False)

    def location_of(self, name: str) -> SourceLocation:
        """The location of a named thing inside the table, or of the table itself."""
        return self.locations.get(name, self)


@dataclass(frozen=True)
class NamedLocation(SourceLocation):
    """A location that is not a line of a file: an option of the command, or a variable."""

    def __str__(self) -> str:
        return self.file

    @classmethod
    def of(cls, name: str) -> NamedLocation:
        return cls(name, 0)


@functools.lru_cache(maxsize=1024)
def is_package_file(file: str) -> bool:
    """Whether it is a file of this package. Cached, because every declaration asks for the same files."""
    return not file.startswith("<") and os.path.realpath(file).startswith(_PACKAGE)


def is_package_frame(frame: FrameType) -> bool:
    """Whether it runs code of this package. The ``__init__`` of a dataclass has a module but no file."""
    module = str(frame.f_globals.get("__name__", ""))
    return is_package_file(frame.f_code.co_filename) or module.partition(".")[0] == __name__.partition(".")[0]


def caller_location() -> SourceLocation | None:
    """The nearest line outside this package: where the user's file called it."""
    frame = inspect.currentframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_package_frame(frame) and not file.startswith("<frozen"):
            return SourceLocation(file, frame.f_lineno)
        frame = frame.f_back
    return None


def object_location(obj: object) -> SourceLocation | None:
    """Where a class or function is defined; None if Python does not know it (a notebook, ``exec``)."""
    try:
        file = inspect.getsourcefile(obj)  # type: ignore[arg-type]  # TypeError is handled below
        _, line = inspect.getsourcelines(obj)  # type: ignore[arg-type]
    except (TypeError, OSError):
        return None
    return SourceLocation(file, line) if file else None
