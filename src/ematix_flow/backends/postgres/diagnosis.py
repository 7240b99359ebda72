"""The server's diagnosis in an error of psycopg, ADBC or Arrow. It imports none of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_MAX_SHOWN = 200
_SEVERITY = re.compile(r"\b(ERROR|FATAL|PANIC):\s+(.+)")
_ROW_CLASSES = ("22", "23", "44", "38", "39")  # values, constraints, views, and functions in other languages
# a trigger's RAISE or ASSERT, a row or an index entry that is too large, JSON that is nested too deeply
_ROW_STATES = ("P0001", "P0004", "54000", "54001")
_UNKNOWN_STATE = "P0000"
_CONNECTION_ERRORS = ("OperationalError", "InterfaceError")


@dataclass(frozen=True)
class PostgresDiagnosis:
    """What the server reported. Without a ``state`` the connection itself broke."""

    state: str
    message: str
    detail: str | None = None
    hint: str | None = None
    schema: str | None = None
    column: str | None = None
    constraint: str | None = None
    position: int | None = None  # counted in characters, from 1

    @property
    def connection_lost(self) -> bool:
        """Whether the connection is gone, and with it every open transaction."""
        return not self.state or self.state[:2] == "08" or self.state in ("57P01", "57P02", "57P03")

    @property
    def is_conflict(self) -> bool:
        """Whether it is a conflict with another session, which a retry may resolve."""
        if self.state in ("40001", "40P01", "55P03", "42P06", "42P07", "42701", "42710"):
            return True
        # a CREATE … IF NOT EXISTS that loses a race violates a unique index of the catalog, and two
        # sessions that write the same ledger key violate the ledger's
        if self.state not in ("23505", "XX000"):
            return False
        from ematix_flow.backends.sql.control_tables import CONTROL_SCHEMA

        return self.schema in ("pg_catalog", CONTROL_SCHEMA) or "concurrently" in self.message

    @property
    def is_about_sql(self) -> bool:
        """The statement is wrong: unknown names, syntax, types or arithmetic."""
        return (self.state[:2] == "42" and self.state != "42501") or self.state in ("22012", "21000")

    @property
    def is_about_a_row(self) -> bool:
        """A value, a constraint, a trigger or a policy of the table refused a row."""
        if self.is_conflict:
            return False
        if self.state == "42501":  # any other message: a missing privilege
            return self.message.startswith("new row violates row-level security policy")
        return self.state[:2] in _ROW_CLASSES or self.state in _ROW_STATES

    @property
    def sentence(self) -> str:
        detail = f" ({_shorten(self.detail)})" if self.detail else ""
        return f"{self.message}{detail}"


def diagnose(error: BaseException) -> PostgresDiagnosis:
    diag = getattr(error, "diag", None)
    if diag is not None:
        return _from_psycopg(error, diag)
    if hasattr(error, "status_code"):
        return _from_adbc(error)
    # Arrow reports a broken stream as text
    found = _SEVERITY.search(str(error))
    state = _UNKNOWN_STATE if found and found[1] == "ERROR" else ""
    return PostgresDiagnosis(state, found[2] if found else _first_line(error))


def _from_psycopg(error: Any, diag: Any) -> PostgresDiagnosis:
    position = diag.statement_position
    broken = any(kind.__name__ in _CONNECTION_ERRORS for kind in type(error).__mro__)
    return PostgresDiagnosis(
        # no state on an intact connection: a value that Python cannot represent, such as the year 10000
        state=error.sqlstate or ("" if broken else "22000"),
        message=diag.message_primary or _first_line(error),
        detail=diag.message_detail,
        hint=diag.message_hint,
        schema=diag.schema_name,
        column=diag.column_name,
        constraint=diag.constraint_name,
        position=int(position) if position else None,
    )


def _from_adbc(error: Any) -> PostgresDiagnosis:
    details = {_decode(key): _decode(value) for key, value in error.details or ()}

    def text(name: str) -> str | None:
        return details.get(f"PG_DIAG_{name}")

    at = text("STATEMENT_POSITION")
    return PostgresDiagnosis(
        state=error.sqlstate or ("" if error.status_code.name == "IO" else _UNKNOWN_STATE),
        message=text("MESSAGE_PRIMARY") or _first_line(error),
        detail=text("MESSAGE_DETAIL"),
        hint=text("MESSAGE_HINT"),
        schema=text("SCHEMA_NAME"),
        column=text("COLUMN_NAME") or _column_of_copy(text("CONTEXT")),
        constraint=text("CONSTRAINT_NAME"),
        position=int(at) if at else None,
    )


def _column_of_copy(context: str | None) -> str | None:
    if not context or not context.startswith("COPY ") or ", column " not in context:
        return None
    return context.splitlines()[0].split(", column ", 1)[1].split(":")[0]


def _decode(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
