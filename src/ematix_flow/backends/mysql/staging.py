"""Staging: one table per attempt, which tasks write with LOAD DATA from memory, part by part.

The columns are numbered; only a name that begins with a space is kept, because MySQL drops the space from an
alias. Each row carries the number of its part: rows of a task attempt that did not report are in the table
and are never read. A server that forbids LOAD DATA LOCAL gets the same rows as multi-row INSERTs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.base import StagedPart
from ematix_flow.backends.mysql.address import MySQLAddress
from ematix_flow.backends.mysql.connection import DriverError, open_connection
from ematix_flow.backends.mysql.failures import target_failure
from ematix_flow.backends.mysql.insert_values import insert_values
from ematix_flow.backends.mysql.load_data import load_data
from ematix_flow.backends.mysql.row_text import require_storable
from ematix_flow.backends.sql_servers.staged_batches import PART, StagedBatches
from ematix_flow.spec.generated_names import part_number

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class MySQLStaging:
    """Picklable: an address, the name of the table, and the Arrow schema of the rows."""

    address: MySQLAddress
    database: str
    table: str
    schema: pa.Schema
    kinds: Mapping[str, str]  # the declared type of each column
    local_infile: bool = True

    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        """Stream all batches in one transaction: memory holds about one batch."""
        flow = _CheckedBatches(batches, part_number(part), self.kinds)
        if flow.is_empty:
            return StagedPart(part, 0, 0)
        with open_connection(self.address, local_infile=self.local_infile) as connection:
            try:
                if not self.local_infile or not self._load(connection, flow):
                    self._insert(connection, flow)
            except DriverError as error:
                raise target_failure(error, self._column_names()) from error
        return StagedPart(part, flow.rows, flow.bytes)

    def _load(self, connection: Any, flow: _CheckedBatches) -> bool:
        """False when the server forbids LOAD DATA LOCAL."""
        names = self._column_names()
        columns = {_quote(column): self.kinds.get(name) == "bytes" for column, name in names.items()}
        table = f"{_quote(self.database)}.{_quote(self.table)}"
        return load_data(connection, table, {**columns, _quote(PART): False}, flow, names)

    def _insert(self, connection: Any, flow: _CheckedBatches) -> None:
        name = f"{_quote(self.database)}.{_quote(self.table)}"
        columns = ", ".join(_quote(column) for column in (*self._column_names(), PART))
        start = f"INSERT INTO {name} ({columns}) VALUES ".encode()
        connection.begin()
        for batch in flow:
            for values in insert_values(batch, flow.number):
                connection.query(start + values)
        connection.commit()

    def _column_names(self) -> dict[str, str]:
        return {staging_column(i, name): name for i, name in enumerate(self.schema.names)}


def staging_column(index: int, name: str) -> str:
    """The column's name in staging: MySQL drops spaces and control characters before an alias."""
    return name if name[0] <= " " or name[0] == "\x7f" else f"c{index}"


class _CheckedBatches(StagedBatches):
    """The batches from the first with rows on, checked and counted."""

    def __init__(self, batches: Iterable[pa.RecordBatch], number: int, kinds: Mapping[str, str]) -> None:
        super().__init__(batches, number)
        self._kinds = dict(kinds)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._all():
            require_storable(batch, self._kinds, self.rows)
            self._count(batch)
            if batch.num_rows:
                yield batch


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
