"""A driver's error turned into one of ours, with the column or the line of SQL it is about.

psycopg and ADBC report the same diagnostics in different shapes; `Diagnosis` is both. Which error
class it becomes depends on the SQLSTATE and on whose SQL failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import adbc_driver_manager
import psycopg

from ematix_flow.backends.relational import CONTROL_SCHEMA
from ematix_flow.errors import FlowError, RowRejected, SourceFailed, TargetFailed
from ematix_flow.strategies.functions.base import rejection_in

ADBC_ERRORS = (adbc_driver_manager.Error,)
DRIVER_ERRORS = (psycopg.Error, adbc_driver_manager.Error)

UNCHANGED = "the target is unchanged: its transaction was rolled back"
_MEND = "mend the row in the source, filter it in the source SQL, or change the column's type"
_SHOWN = 200
_SEVERITY = re.compile(r"\b(ERROR|FATAL|PANIC):\s+(.+)")
_LINE = 100


@dataclass(frozen=True)
class Diagnosis:
    """What the server said. Without a ``state`` the connection itself broke."""

    state: str
    message: str
    detail: str | None = None
    hint: str | None = None
    schema: str | None = None
    table: str | None = None
    column: str | None = None
    constraint: str | None = None
    position: int | None = None  # counted in characters, from 1

    @property
    def lost(self) -> bool:
        """The connection is gone, and with it every open transaction."""
        return not self.state or self.state[:2] == "08" or self.state in ("57P01", "57P02", "57P03")

    @property
    def is_conflict(self) -> bool:
        """Another session got in the way, and trying again helps."""
        if self.state in ("40001", "40P01", "55P03", "42P06", "42P07", "42701", "42710"):
            return True
        # CREATE … IF NOT EXISTS that loses a race trips over the catalog's own unique indexes, and two
        # sessions that write one ledger key trip over the ledger's
        return self.state in ("23505", "XX000") and (
            self.schema in ("pg_catalog", CONTROL_SCHEMA) or "concurrently" in self.message
        )

    @property
    def is_about_sql(self) -> bool:
        """Unknown names, wrong syntax or types, arithmetic: the statement is at fault, not the target."""
        return (self.state[:2] == "42" and self.state != "42501") or self.state in ("22012", "21000")

    @property
    def sentence(self) -> str:
        detail = f" ({_shortened(self.detail)})" if self.detail else ""
        return f"{self.message}{detail}"


def diagnose(error: Exception) -> Diagnosis:
    if isinstance(error, psycopg.Error):
        diag = error.diag
        position = diag.statement_position
        return Diagnosis(
            state=error.sqlstate or "",
            message=diag.message_primary or _first_line(error),
            detail=diag.message_detail,
            hint=diag.message_hint,
            schema=diag.schema_name,
            table=diag.table_name,
            column=diag.column_name,
            constraint=diag.constraint_name,
            position=int(position) if position else None,
        )
    if not isinstance(error, adbc_driver_manager.Error):  # a stream that broke is told by Arrow, as text
        told = _SEVERITY.search(str(error))
        # "P0000" stands for the state that was not passed on
        return Diagnosis(
            "P0000" if told and told[1] == "ERROR" else "", told[2] if told else _first_line(error)
        )
    details = {_decoded(key): _decoded(value) for key, value in getattr(error, "details", None) or ()}

    def text(name: str) -> str | None:
        return details.get(f"PG_DIAG_{name}")

    at = text("STATEMENT_POSITION")
    return Diagnosis(
        state=getattr(error, "sqlstate", None) or "",
        message=text("MESSAGE_PRIMARY") or _first_line(error),
        detail=text("MESSAGE_DETAIL"),
        hint=text("MESSAGE_HINT"),
        schema=text("SCHEMA_NAME"),
        table=text("TABLE_NAME"),
        column=text("COLUMN_NAME") or _copied_column(text("CONTEXT")),
        constraint=text("CONSTRAINT_NAME"),
        position=int(at) if at else None,
    )


def source_failure(error: Exception, name: str, sql: str, statement: str | None = None) -> SourceFailed:
    """What went wrong with the user's ``sql``, which ``statement`` holds as it stands."""
    found = diagnose(error)
    if found.lost:
        return SourceFailed(
            f"the connection {name!r} broke while rows were read: {found.message}",
            next_step=f"flow connections check {name}, then run it again",
        )
    what = f"PostgreSQL refused the source SQL: {found.sentence}"
    position = _position_within(sql, statement, found.position)
    if position is not None:
        what += "\n" + caret(sql, position)
    if found.state == "42501":
        step = f"GRANT SELECT on it to the user of connection {name!r}"
    else:
        step = found.hint or "mend the SQL and look at it with  flow preview"
    return SourceFailed(what, next_step=step)


def target_failure(error: Exception, names: Mapping[str, str] | None = None) -> FlowError:
    """What went wrong on the target. ``names`` gives back a staging column's real name."""
    found = diagnose(error)
    if found.lost:
        return TargetFailed(
            f"the connection to the target broke: {found.message}",
            state=UNCHANGED,
            next_step="run it again once the server answers",
        )
    told = rejection_in(str(error))
    if told is not None:
        return RowRejected(told, state=UNCHANGED, next_step=_MEND)
    if found.state[:2] in ("22", "23") and not found.is_conflict:
        return _row_rejected(found, names or {})
    return TargetFailed(f"PostgreSQL: {found.sentence}", state=UNCHANGED, next_step=_target_advice(found))


def is_conflict(error: FlowError) -> bool:
    """Whether another session only got in the way (serialization, deadlock, a creation race)."""
    return isinstance(error.__cause__, DRIVER_ERRORS) and diagnose(error.__cause__).is_conflict


def blamed_on_source(error: FlowError) -> SourceFailed | None:
    """The failure of a same-database load, when it is the user's SQL that the database refused."""
    if not isinstance(error.__cause__, DRIVER_ERRORS):
        return None
    found = diagnose(error.__cause__)
    if not found.is_about_sql:
        return None
    return SourceFailed(
        f"PostgreSQL refused the source SQL: {found.sentence}",
        state=UNCHANGED,
        next_step=found.hint or "mend the SQL, or cast the column in it",
    )


def commit_failure(error: Exception) -> TargetFailed:
    """A commit that was not answered may have happened."""
    found = diagnose(error)
    if not found.lost:
        failure = target_failure(error)
        return failure if isinstance(failure, TargetFailed) else TargetFailed(failure.what, state=UNCHANGED)
    return TargetFailed(
        f"the connection to the target broke during the commit: {found.message}",
        state="the load is either complete or not there at all; the ledger in the target knows which",
        next_step="run it again: a batch that is in the ledger is not loaded twice",
    )


def caret(sql: str, position: int) -> str:
    """The line of the SQL that ``position`` (from 1) lies in, and a caret under the place."""
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


def _row_rejected(found: Diagnosis, names: Mapping[str, str]) -> RowRejected:
    what = found.sentence
    column = names.get(found.column, found.column) if found.column else None
    if column and column not in what:
        what = f"column {column!r}: {what}"
    elif found.constraint and found.constraint not in what:
        what = f"constraint {found.constraint!r}: {what}"
    steps = {
        "23505": "remove the duplicates from the source, or choose a mode that updates by key",
        "23503": "load the table that the foreign key refers to first, or mend the reference",
        "23502": "fill the value in the source SQL, or declare the column nullable",
        "22001": "shorten the value in the source SQL, or declare a longer String",
        "22003": "mend the value in the source, or declare a wider type",
    }
    return RowRejected(what, state=UNCHANGED, next_step=steps.get(found.state, _MEND))


def _target_advice(found: Diagnosis) -> str:
    if found.state == "42501":
        return "GRANT what is missing to the connection's user, or use another user"
    if found.state == "53100":
        return "free space on the server's disk, then run it again"
    if found.state == "25006":
        return "connect to the primary: this server takes no writes"
    if found.state == "57014":
        return "raise the user's statement_timeout if that was what stopped it"
    return found.hint or "look at the server's log"


def _copied_column(context: str | None) -> str | None:
    if not context or not context.startswith("COPY ") or ", column " not in context:
        return None
    return context.splitlines()[0].split(", column ", 1)[1].split(":")[0]


def _decoded(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
