"""Every error that this package raises on purpose.

::

    FlowError                          1   base class; something failed
    ├── DeclarationError               2   a decorator or a spec is wrong; points at the line
    │   ├── DuplicateName
    │   ├── UnknownName                    with similar names
    │   └── DependencyCycle
    ├── ConfigError                    2   a connection, variable or setting is missing or wrong
    │   ├── UnknownConnection
    │   └── MissingSecret                  an unset variable, an unknown ``${prefix:…}``
    ├── UsageError                     2   the command line is wrong
    ├── OutputFailed                   1   stdout cannot be written; what the command did stays done
    ├── ModuleLoadError                1   the user's module raised while it was imported
    ├── EngineError                    1   Spark, Java or a jar
    │   ├── JavaNotFound
    │   ├── JavaUnsupported
    │   ├── JarsUnavailable
    │   └── SparkFailed                    a Java stack trace, reduced to its cause
    ├── PlanError                      1   the load cannot be done as declared; nothing was touched
    │   ├── SchemaMismatch                 source, declaration and live table disagree
    │   │   └── NameRefused            2   the target does not allow a declared name
    │   ├── SqlRefused                 2   the source SQL is not a single query
    │   ├── Unsupported                    this backend or path cannot do that
    │   └── GuaranteeRefused
    ├── LoadError                      1   the load failed; the target is unchanged
    │   ├── SourceFailed                   the source's query or file
    │   │   ├── UnreadableMessages         a stream with on_error="fail" received some
    │   │   ├── DataLost                   messages or files were deleted before they were read
    │   │   └── SourceMissing              no such topic, queue, subscription, stream, folder or table
    │   ├── RowRejected                    a value too long, out of range, null, not castable
    │   ├── TargetFailed
    │   │   └── TargetMissing              no such topic, queue, exchange or stream to send to
    │   ├── PostTransformFailed            the load itself is committed
    │   ├── ShrinkRefused                  a refresh would lose more rows than allowed
    │   └── ExpectationFailed              rows fail an expectation, or a probe before the load fails
    ├── PipelineLocked                 4   the same pipeline is running
    ├── CannotConnect                  5
    │   └── DatabaseMissing                no database file at the path
    └── Interrupted                  130   Ctrl-C

The number is the exit code of the command line. An error says what happened, where in the user's file,
what state remains and what to run next. Secrets are masked in all parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ematix_flow.spec.location import SourceLocation, TableLocation
from ematix_probe.redaction import mask

_CHECK_COMMAND = re.compile(r"flow connections check (\S+?)(?:,|\s|$)")
_CONNECTION_NAME = re.compile(r"connection '([^']+)'")


class FlowError(Exception):
    """The base of all errors: ``what`` happened, ``where``, the ``state`` that remains, the ``next_step``."""

    exit_code = 1
    attempts = 1  # attempts of the run; this is the error of the last one
    target: str | None = None  # label of the target that cannot be planned, if it is only one

    def __init__(
        self,
        what: str,
        *,
        where: SourceLocation | None = None,
        state: str | None = None,
        next_step: str | None = None,
    ) -> None:
        self.what = mask(what)
        self.where = where
        self.state = mask(state) if state else None
        self.next_step = mask(next_step) if next_step else None
        super().__init__(self.what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where is not None:
            lines.append(f"  where: {self.where}")
        if self.state:
            lines.append(f"  state: {self.state}")
        if self.next_step:
            lines.append(f"  next:  {self.next_step}")
        return "\n".join(lines)

    def with_location(self, where: SourceLocation | None) -> FlowError:
        """The same error, with this location if it has none yet.

        If the declaration contains inline connections, the error points at the connection that it names.
        """
        if self.where is None:
            self.where = where
            if isinstance(where, TableLocation):
                self._point_at_connection(where)
        return self

    def _point_at_connection(self, where: TableLocation) -> None:
        checked = _CHECK_COMMAND.match(self.next_step or "")
        named = [checked[1]] if checked else _CONNECTION_NAME.findall(f"{self.what} {self.next_step or ''}")
        name = next((name for name in named if name in where.locations), None)
        if name is None:
            return
        self.where = where.location_of(name)
        if checked:  # `flow connections check` cannot check an inline connection
            self.next_step = f"fix {name!r} at {self.where}, and run it again"

    @property
    def advice(self) -> str | None:
        """What to do next: the error's own step, else to fix the declaration at its location."""
        if self.next_step or self.where is None or self.exit_code != 2:
            return self.next_step
        return "fix it there, and run the same command again"

    def to_json(self) -> dict[str, object]:
        """The error for ``--output json`` and the run log."""
        return {
            "type": type(self).__name__,
            "what": self.what,
            "where": str(self.where) if self.where else None,
            "state": self.state,
            "next": self.advice,
            "exit_code": self.exit_code,
        }


class DeclarationError(FlowError, TypeError, ValueError):
    """A decorator or a spec is wrong. Also a TypeError and a ValueError, as Python users expect."""

    exit_code = 2


class DuplicateName(DeclarationError):
    pass


class UnknownName(DeclarationError):
    pass


class DependencyCycle(DeclarationError):
    pass


class ConfigError(FlowError):
    exit_code = 2


class UnknownConnection(ConfigError, KeyError, LookupError):
    __str__ = FlowError.__str__


class MissingSecret(ConfigError, KeyError):
    """A ``${…}`` reference has no value: the variable is unset, or the secret store does not have it."""

    __str__ = FlowError.__str__


class UsageError(FlowError):
    exit_code = 2


class OutputFailed(FlowError):
    pass


class ModuleLoadError(FlowError):
    pass


class EngineError(FlowError):
    pass


class JavaNotFound(EngineError):
    pass


class JavaUnsupported(EngineError):
    pass


class JarsUnavailable(EngineError):
    pass


class SparkFailed(EngineError):
    pass


class PlanError(FlowError):
    pass


class SchemaMismatch(PlanError):
    pass


class NameRefused(SchemaMismatch):
    exit_code = 2


class SqlRefused(PlanError):
    exit_code = 2


class Unsupported(PlanError):
    pass


class GuaranteeRefused(PlanError):
    pass


class LoadError(FlowError):
    pass


class SourceFailed(LoadError):
    pass


class UnreadableMessages(SourceFailed):
    pass


class DataLost(SourceFailed):
    pass


class SourceMissing(SourceFailed):
    pass


class RowRejected(LoadError):
    pass


class TargetFailed(LoadError):
    pass


class TargetMissing(TargetFailed):
    pass


class PostTransformFailed(LoadError):
    pass


class ShrinkRefused(LoadError):
    pass


class ExpectationFailed(LoadError):
    """Nothing was loaded. ``results`` holds what each expectation found, as values with ``to_json``."""

    results: Sequence[Any] = ()

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "expectations": [each.to_json() for each in self.results]}


class PipelineLocked(FlowError):
    exit_code = 4


class CannotConnect(FlowError):
    exit_code = 5


class DatabaseMissing(CannotConnect):
    connection = ""
    created_by: str | None = None  # the upstream of the pipeline whose first run creates the database


class Interrupted(FlowError):
    exit_code = 130


class RunStopped(Interrupted):
    """A run was stopped on request, by ``flow stop``. Other runs of the process go on."""


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name with the fewest typos: up to one in a short name, three in a long one; else None."""
    wanted = name.lower()
    allowed = 1 if len(wanted) < 5 else 2 if len(wanted) < 9 else 3
    best: tuple[int, str] | None = None
    for each in sorted(known):
        spelled = each.lower()
        if spelled == wanted:
            return each
        if abs(len(spelled) - len(wanted)) <= allowed:
            slips = _edit_distance(wanted, spelled, allowed)
        elif len(wanted) >= 4 and (spelled.startswith(wanted) or wanted.startswith(spelled)):
            slips = allowed  # a prefix, such as cross for cross_db
        else:
            continue
        if slips <= min(allowed, len(spelled) // 2) and (best is None or slips < best[0]):
            best = (slips, each)
    return best[1] if best else None


def _edit_distance(one: str, other: str, most: int) -> int:
    """The number of changed, missing, extra and swapped letters; ``most + 1`` if it is more than ``most``."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        earlier, before, row = before, row, [i]
        for j, against in enumerate(other, start=1):
            least = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != against))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == against:
                least = min(least, earlier[j - 2] + 1)
            row.append(least)
        if min(row) > most and (not before or min(before) > most):
            return most + 1
    return row[-1]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?``; without a close name the known names; empty when there are none."""
    known = sorted(known)
    close = closest_name(name, known)
    if close is not None:
        return f" Did you mean '{close}'?"
    if known:
        shown = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
        return f" Known: {shown}."
    return ""
