"""Every error that this package raises on purpose.

::

    ProbeError                       1   base class; something failed
    ├── DeclarationError             2   a probe is declared wrongly; points at the line
    ├── ModuleLoadError              2   the user's file is missing or raised while it was imported
    ├── MissingDependency            1   an optional library is not installed; tells what to install
    ├── CannotConnect                1   a source, a target or the history cannot be reached
    ├── SourceFailed                 1   the source refused a query or a file cannot be read
    ├── AssertionRefused             1   the source has no such column, or its type does not fit
    ├── HostNotAllowed               2   a load probe would send to a host that nobody allowed
    ├── HistoryError                 1   the history cannot be read or written
    ├── ReportNotWritten             1   the file of a report cannot be written
    └── UsageError                   2   the command line is wrong

The number is the exit code of the command line. An error says what happened, where in the user's file, what
state remains and what to run next. Passwords in URLs are masked in all parts.
"""

from __future__ import annotations

from ematix_probe.redaction import mask


class ProbeError(Exception):
    """The base of all errors: ``what`` happened, ``where``, the ``state`` that remains, the ``next_step``."""

    exit_code = 1

    def __init__(
        self, what: str, *, where: str | None = None, state: str | None = None, next_step: str | None = None
    ) -> None:
        self.what = mask(what)
        self.where = where
        self.state = mask(state) if state else None
        self.next_step = mask(next_step) if next_step else None
        super().__init__(self.what)

    def __str__(self) -> str:
        parts = (("where", self.where), ("state", self.state), ("next", self.next_step))
        return "\n".join([self.what, *(f"  {name}: {text}" for name, text in parts if text)])


class DeclarationError(ProbeError, ValueError):
    exit_code = 2


class ModuleLoadError(ProbeError):
    exit_code = 2


class MissingDependency(ProbeError):
    pass


class CannotConnect(ProbeError):
    pass


class SourceFailed(ProbeError):
    pass


class AssertionRefused(ProbeError):
    pass


class HostNotAllowed(ProbeError):
    exit_code = 2


class HistoryError(ProbeError):
    pass


class ReportNotWritten(ProbeError):
    pass


class UsageError(ProbeError):
    exit_code = 2
