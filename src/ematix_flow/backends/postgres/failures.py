"""Translation of a driver's error to a FlowError that names the column or the line of SQL.

The class depends on the SQLSTATE, and on whether the user's SQL or generated SQL failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeGuard

from ematix_flow.backends.postgres.diagnosis import PostgresDiagnosis, diagnose
from ematix_flow.backends.sql_servers.failures import (
    FIX_DUPLICATE,
    FIX_LENGTH,
    FIX_NULL,
    FIX_RANGE,
    FIX_REFERENCE,
    FIX_ROW,
    UNCHANGED,
    commit_connection_lost,
    source_connection_lost,
    target_connection_lost,
)
from ematix_flow.errors import FlowError, RowRejected, SourceFailed, TargetFailed
from ematix_flow.spec.tables import TableSpec

_INVALID_TEXT = re.compile(r"invalid input syntax for type (json|uuid)\b")
_STAGED_AS_TEXT = {"json": ("json", "jsonb"), "uuid": ("uuid",)}
_LINE = 100


def source_failure(error: Exception, name: str, sql: str, statement: str | None = None) -> SourceFailed:
    """The error of the user's ``sql``, which ``statement`` contains unchanged."""
    found = diagnose(error)
    if found.connection_lost:
        return source_connection_lost(name, found.message)
    what = f"PostgreSQL refused the source SQL: {found.sentence}"
    position = _position_within(sql, statement, found.position)
    if position is not None:
        what += "\n" + caret_lines(sql, position)
    if found.state == "42501":
        step = f"GRANT SELECT on it to the user of connection {name!r}"
    else:
        step = found.hint or "correct the SQL and check it with  flow preview"
    return SourceFailed(what, next_step=step)


def target_failure(error: Exception, names: Mapping[str, str] | None = None) -> FlowError:
    """The error of a statement on the target. ``names`` maps a staging column to its real name."""
    found = diagnose(error)
    if found.connection_lost:
        return target_connection_lost(found.message)
    from ematix_flow.strategies.functions.base import find_rejection

    rejection = find_rejection(str(error))
    if rejection is not None:
        return RowRejected(rejection, state=UNCHANGED, next_step=FIX_ROW)
    if found.is_about_a_row:
        return _row_rejection(found, names or {})
    return TargetFailed(f"PostgreSQL: {found.sentence}", state=UNCHANGED, next_step=_target_advice(found))


def is_conflict(error: FlowError) -> bool:
    """Whether the error is a conflict with another session (serialization, deadlock, a creation race)."""
    return _is_driver_error(error.__cause__) and diagnose(error.__cause__).is_conflict


def _is_driver_error(cause: BaseException | None) -> TypeGuard[Exception]:
    return isinstance(cause, Exception) and hasattr(cause, "sqlstate")


def as_source_failure(error: FlowError) -> SourceFailed | None:
    """The failure of a same-database load as a SourceFailed, when the database refused the user's SQL."""
    if not _is_driver_error(error.__cause__):
        return None
    found = diagnose(error.__cause__)
    if not found.is_about_sql:
        return None
    return SourceFailed(
        f"PostgreSQL refused the source SQL: {found.sentence}",
        state=UNCHANGED,
        next_step=found.hint or "correct the SQL, or cast the column in it",
    )


def with_possible_columns(error: RowRejected, table: TableSpec) -> RowRejected:
    """PostgreSQL refuses an invalid JSON or UUID text without naming the column: name the possible ones."""
    found = _INVALID_TEXT.search(error.what)
    names = [repr(c.name) for c in table.columns if found and c.type.kind in _STAGED_AS_TEXT[found[1]]]
    if not names:
        return error
    return RowRejected(
        f"column {' or '.join(names)}: {error.what}", state=error.state, next_step=error.next_step
    )


def commit_failure(error: Exception) -> FlowError:
    """The error of a COMMIT. An unanswered one may have succeeded; deferred constraints fail here."""
    found = diagnose(error)
    if not found.connection_lost:
        return target_failure(error)
    return commit_connection_lost(found.message)


def caret_lines(sql: str, position: int) -> str:
    """The line of SQL at ``position`` (from 1), and a caret under that position."""
    index = min(max(position - 1, 0), len(sql))
    start = sql.rfind("\n", 0, index) + 1
    end = sql.find("\n", index)
    line = sql[start : end if end >= 0 else len(sql)]
    offset = index - start
    cut = max(0, offset - _LINE // 2)
    shown = line[cut : cut + _LINE]
    lead = f"  line {sql.count(chr(10), 0, index) + 1}: {'…' if cut else ''}"
    under = "".join("\t" if char == "\t" else " " for char in shown[: offset - cut])
    return f"{lead}{shown}\n{' ' * len(lead)}{under}^"


def _position_within(sql: str, statement: str | None, position: int | None) -> int | None:
    if position is None:
        return None
    start = 0 if statement is None else statement.find(sql)
    inside = position - start
    return inside if start >= 0 and 1 <= inside <= len(sql) + 1 else None


def _row_rejection(diagnosis: PostgresDiagnosis, names: Mapping[str, str]) -> RowRejected:
    what = diagnosis.sentence
    column = names.get(diagnosis.column, diagnosis.column) if diagnosis.column else None
    if column and column not in what:
        what = f"column {column!r}: {what}"
    elif diagnosis.constraint and diagnosis.constraint not in what:
        what = f"constraint {diagnosis.constraint!r}: {what}"
    steps = {
        "23505": FIX_DUPLICATE,
        "23503": FIX_REFERENCE,
        "23502": FIX_NULL,
        "22001": FIX_LENGTH,
        "22003": FIX_RANGE,
    }
    return RowRejected(what, state=UNCHANGED, next_step=steps.get(diagnosis.state, FIX_ROW))


def _target_advice(diagnosis: PostgresDiagnosis) -> str:
    if diagnosis.state == "42501":
        return "GRANT what is missing to the connection's user, or use another user"
    if diagnosis.state == "53100":
        return "free space on the server's disk, then run it again"
    if diagnosis.state == "25006":
        return "connect to the primary: this server takes no writes"
    if diagnosis.state == "57014":
        return "raise the user's statement_timeout if it stopped the statement"
    return diagnosis.hint or "check the server's log"
