"""Translation of a driver's error to a FlowError that names the column.

The class depends on MySQL's error number, and on whether the user's SQL or generated SQL failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

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

_LOST = frozenset({0, 1053, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 4031})
_DEADLOCK = frozenset({1020, 1205, 1213})
_CREATED_MEANWHILE = frozenset({1007, 1050, 1060, 1061})
_SYNTAX = frozenset({1052, 1054, 1055, 1064, 1066, 1109, 1140, 1146, 1222, 1247, 1248, 1305, 1365, 1582})
_DENIED = frozenset({1044, 1142, 1143, 1227, 1370})
_DUPLICATE, _NULL, _TOO_LONG, _OUT_OF_RANGE = 1062, 1048, 1406, 1264
_FOREIGN = frozenset({1216, 1217, 1451, 1452})
_VALUES = frozenset(
    {_NULL, _TOO_LONG, _OUT_OF_RANGE, 1263, 1265, 1292, 1364, 1366, 1411, 1441, 1525, 1690, 3140, 3141, 3156}
    | {3819, 4025, 4078}
)
# other duplicates, a view's check, a row that is too large, JSON nested too deeply, a trigger's SIGNAL
_ROWS = frozenset({1022, 1118, 1153, 1367, 1369, 1416, 1526, 1586, 1644, 1761, 1762, 1859, 3150, 3157, 3903})
_REFUSED = frozenset({_DUPLICATE, *_FOREIGN, *_VALUES, *_ROWS})
_COLUMN = (
    re.compile(r"[Cc]olumn [`'](?:[^`']*[`']\.[`'])*((?:[^`']|'')+)[`'](?: at row| cannot be null|\.?$)"),
    re.compile(r"Field '((?:[^'])+)' doesn't have a default"),
)
_CONSTRAINT = re.compile(r"(?:constraint|CONSTRAINT|for key) [`']([^`']+)[`']")
_REJECTION = re.compile(r"<<ematix_flow: (.*?)(?:>>|\.\.\.'|$)", re.DOTALL)


@dataclass(frozen=True)
class MySQLDiagnosis:
    """What the server reported. Number 0 means that the connection was closed already."""

    number: int
    message: str

    @property
    def connection_lost(self) -> bool:
        """The connection is gone, and with it every open transaction."""
        return self.number in _LOST

    @property
    def is_conflict(self) -> bool:
        """A conflict with another session: trying again helps."""
        if self.number == _DUPLICATE:  # two sessions write the same ledger key
            return "'ledger." in self.message or "'watermarks." in self.message
        return self.number in _DEADLOCK or self.number in _CREATED_MEANWHILE

    @property
    def column(self) -> str | None:
        found = next((m for pattern in _COLUMN if (m := pattern.search(self.message))), None)
        return found[1] if found else None


def diagnose(error: BaseException) -> MySQLDiagnosis:
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    texts = [part for part in error.args if isinstance(part, str) and part]
    message = texts[-1] if texts else "the connection is closed"
    return MySQLDiagnosis(number, message.strip())


def find_rejection(message: str) -> str | None:
    """The message of generated SQL that refused a value. MariaDB cuts long messages at their end."""
    found = _REJECTION.search(message)
    if found is None:
        return None
    cut = "" if found[0].endswith(">>") else "…"
    return found[1].replace("''", "'") + cut


def source_failure(error: Exception, name: str, sql: str) -> SourceFailed:
    """The error of the user's ``sql``."""
    found = diagnose(error)
    if found.connection_lost:
        return source_connection_lost(name, found.message)
    rejection = find_rejection(found.message)
    if rejection is not None:
        return SourceFailed(rejection, next_step=FIX_ROW)
    if found.number in _DENIED:
        step = f"GRANT SELECT on it to the user of connection {name!r}"
    else:
        step = "correct the SQL and check it with  flow preview"
    return SourceFailed(f"MySQL refused the source SQL: {found.message}", next_step=step)


def target_failure(error: Exception, names: Mapping[str, str] | None = None) -> FlowError:
    """The error of a statement on the target. ``names`` maps a staging column to its real name."""
    found = diagnose(error)
    if found.connection_lost:
        return target_connection_lost(found.message)
    rejection = find_rejection(found.message)
    if rejection is not None:
        return RowRejected(rejection, state=UNCHANGED, next_step=FIX_ROW)
    if found.number in _REFUSED and not found.is_conflict:
        return row_rejection(found, names or {})
    return TargetFailed(f"MySQL: {found.message}", state=UNCHANGED, next_step=_target_advice(found))


def row_rejection(diagnosis: MySQLDiagnosis, names: Mapping[str, str]) -> RowRejected:
    what = diagnosis.message
    column = names.get(diagnosis.column, diagnosis.column) if diagnosis.column else None
    if column and diagnosis.column != column:
        what = what.replace(f"'{diagnosis.column}'", f"'{column}'")
    if column and f"'{column}'" not in what:
        what = f"column {column!r}: {what}"
    steps = {
        _DUPLICATE: FIX_DUPLICATE,
        _NULL: FIX_NULL,
        _TOO_LONG: FIX_LENGTH,
        _OUT_OF_RANGE: FIX_RANGE,
    }
    if diagnosis.number in _FOREIGN:
        steps[diagnosis.number] = FIX_REFERENCE
    return RowRejected(what, state=UNCHANGED, next_step=steps.get(diagnosis.number, FIX_ROW))


def is_conflict(error: FlowError) -> bool:
    """Whether the error is a conflict with another session (deadlock, lock timeout, a creation race)."""
    return _is_driver_error(error.__cause__) and diagnose(error.__cause__).is_conflict


def is_denied(error: FlowError) -> bool:
    return _is_driver_error(error.__cause__) and diagnose(error.__cause__).number in _DENIED


def as_source_failure(error: FlowError) -> SourceFailed | None:
    """The failure of a same-database load as a SourceFailed, when the database refused the user's SQL."""
    if not _is_driver_error(error.__cause__):
        return None
    found = diagnose(error.__cause__)
    if found.number not in _SYNTAX:
        return None
    return SourceFailed(
        f"MySQL refused the source SQL: {found.message}",
        state=UNCHANGED,
        next_step="correct the SQL and check it with  flow preview",
    )


def commit_failure(error: Exception) -> FlowError:
    """The error of a COMMIT: refused, or unanswered and possibly successful."""
    found = diagnose(error)
    if not found.connection_lost:
        return target_failure(error)
    return commit_connection_lost(found.message)


def _is_driver_error(cause: BaseException | None) -> TypeGuard[BaseException]:
    return cause is not None and type(cause).__module__.startswith("pymysql")


def _target_advice(diagnosis: MySQLDiagnosis) -> str:
    if diagnosis.number in _DENIED:
        return "GRANT what is missing to the connection's user, or use another user"
    if diagnosis.number in (1021, 1114, 28):
        return "free space on the server's disk, then run it again"
    if diagnosis.number in (1290, 1792, 1836):
        return "connect to the primary: this server takes no writes"
    if diagnosis.number in (1170, 1071):
        return "declare the key's columns as String with a length: MySQL's keys hold at most 3072 bytes"
    if diagnosis.number in (1040, 1203):
        return "wait until fewer connections are open, or raise max_connections at the server"
    return "check the server's log"
