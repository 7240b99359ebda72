"""LOAD DATA LOCAL: loads a task's rows from memory into a table.

Owns the statement, and what the server's refusals and warnings mean. `row_text` makes the text of the rows,
and `wire_protocol` sends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ematix_flow.backends.mysql.connection import DriverError
from ematix_flow.backends.mysql.failures import MySQLDiagnosis, diagnose, row_rejection
from ematix_flow.backends.mysql.row_text import encode_rows
from ematix_flow.backends.mysql.wire_protocol import load_data_local
from ematix_flow.backends.sql_servers.failures import UNCHANGED
from ematix_flow.errors import TargetFailed

if TYPE_CHECKING:
    import pyarrow as pa

_FILE = "ematix_flow_rows"
_FORBIDDEN = (1148, 3948, 4166)  # LOAD DATA LOCAL is forbidden, by server version


class CountedBatches(Protocol):
    """The batches of one part, and how many rows of them were read so far."""

    rows: int
    number: int  # of the part

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


def load_data(
    connection: Any,
    table: str,
    columns: Mapping[str, bool],
    batches: CountedBatches,
    names: Mapping[str, str],
) -> bool:
    """Load the batches. False when the server forbids it before it has read a row.

    ``columns`` are quoted, and say whether each takes bytes; the last takes the number of the part.
    ``names`` are the user's names of the columns.
    """
    targets, sets = [], []
    for index, (column, is_bytes) in enumerate(columns.items()):
        targets.append(f"@b{index}" if is_bytes else column)
        if is_bytes:
            sets.append(f"{column} = UNHEX(@b{index})")
    # the client sends the LOCAL file; its name only proves that the server asks for this one
    statement = f"LOAD DATA LOCAL INFILE '{_FILE}' INTO TABLE {table} CHARACTER SET utf8mb4"
    statement += f" ({', '.join(targets)})" + (f" SET {', '.join(sets)}" if sets else "")
    try:
        done = load_data_local(connection, statement, _FILE, _encode(batches))
    except DriverError as error:
        if diagnose(error).number in _FORBIDDEN and not batches.rows:
            return False
        raise
    if done.warnings or done.rows != batches.rows:
        raise _warning_error(connection, done.rows, batches.rows, names)
    return True


def _encode(batches: CountedBatches) -> Iterator[memoryview]:
    for batch in batches:
        yield memoryview(encode_rows(batch, str(batches.number)))


def _warning_error(connection: Any, loaded: int, sent: int, names: Mapping[str, str]) -> Exception:
    """The error for a warning of LOAD DATA LOCAL, which only warns of a value that does not fit."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW WARNINGS LIMIT 1")
        found = cursor.fetchall()
    if found:
        _, number, message = found[0]
        return row_rejection(MySQLDiagnosis(int(number), message), names)
    return TargetFailed(f"the server took {loaded:,} of {sent:,} rows into staging", state=UNCHANGED)
