"""Staging for SQLite: each part is a small SQLite file next to the database.

Tasks write parts without locking the database; the load's session attaches them read-only.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.base import StagedPart
from ematix_flow.backends.embedded.database_file import UNCHANGED
from ematix_flow.backends.embedded.staging_folders import FolderStaging, part_file
from ematix_flow.backends.sqlite.arrow_columns import from_arrow
from ematix_flow.backends.sqlite.column_types import native_type
from ematix_flow.backends.sqlite.garbage_collection import pause_garbage_collection
from ematix_flow.errors import RowRejected, TargetFailed
from ematix_flow.spec.types import DataType

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".sqlite"
TABLE = "part"


@dataclass(frozen=True)
class SQLiteStaging(FolderStaging):
    suffix = SUFFIX

    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        with part_file(self.folder, part, SUFFIX) as path:
            try:
                with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                    rows = self._fill(connection, batches)
            except sqlite3.DataError as error:
                raise RowRejected(
                    f"SQLite cannot keep a row: {error}",
                    state=UNCHANGED,
                    next_step="make the row smaller, or filter it out in the source SQL",
                ) from error
            except sqlite3.Error as error:
                raise TargetFailed(
                    f"cannot write staging in {self.folder}: {error}",
                    state=UNCHANGED,
                    next_step="free space on that disk, or make the folder writable",
                ) from error
            size = os.path.getsize(path)
        return StagedPart(part, rows, size)

    def _fill(self, connection: sqlite3.Connection, batches: Iterable[pa.RecordBatch]) -> int:
        # an incomplete part is never read: it needs no journal and no flush
        for setting in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute(part_table_sql(self.columns))
        insert = f"INSERT INTO {TABLE} VALUES ({', '.join('?' * len(self.columns))})"
        rows = 0
        connection.execute("BEGIN")
        for batch in batches:
            with pause_garbage_collection():
                values: list[list[Any]] = [
                    from_arrow(batch.column(index), name, data_type, rows)
                    for index, (name, data_type) in enumerate(self.columns)
                ]
                connection.executemany(insert, zip(*values, strict=True))
            rows += batch.num_rows
        connection.execute("COMMIT")
        return rows


def part_table_sql(columns: tuple[tuple[str, DataType], ...]) -> str:
    """Columns are numbered, since a name may be anything. They have the target's types, for its affinity."""
    described = ", ".join(f"c{number} {native_type(kind)}" for number, (_, kind) in enumerate(columns))
    return f"CREATE TABLE {TABLE} ({described})"
