"""Staging: one table an attempt, written by tasks with LOAD DATA from memory, part by part.

The table's columns are numbered; only a name that begins with a space is kept, since MySQL drops the space
from an alias. Each row carries the number of its part: what an attempt wrote whose message never arrived is
there and is never read. Where the server forbids LOAD DATA LOCAL, the same rows go as INSERTs of many rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.base import StagedPart
from ematix_flow.backends.mysql.address import Address
from ematix_flow.backends.mysql.connection import DriverError, connected
from ematix_flow.backends.mysql.encoding import encoded, require_storable
from ematix_flow.backends.mysql.failures import UNCHANGED, Diagnosis, diagnose, row_rejected, target_failure
from ematix_flow.backends.mysql.inserts import insert_values
from ematix_flow.backends.mysql.wire import load_local
from ematix_flow.errors import TargetFailed
from ematix_flow.spec.naming import own_name, part_number

if TYPE_CHECKING:
    import pyarrow as pa

PART = own_name("part")
_FILE = "ematix_flow_rows"
_FORBIDDEN = (1148, 3948, 4166)  # LOAD DATA LOCAL, in the words of several versions


@dataclass(frozen=True)
class MySQLStaging:
    """Picklable: an address, the table's names and the Arrow schema of what is written."""

    address: Address
    database: str
    table: str
    schema: pa.Schema
    kinds: Mapping[str, str]  # the declared type of each column
    local_infile: bool = True

    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        """All batches in one transaction, streamed: memory holds about one of them."""
        flow = _Flow(batches, part_number(part), self.kinds)
        if flow.is_empty:
            return StagedPart(part, 0, 0)
        with connected(self.address, local_infile=self.local_infile) as connection:
            try:
                if not self.local_infile or not self._load(connection, flow):
                    self._insert(connection, flow)
            except DriverError as error:
                raise target_failure(error, self._names()) from error
        return StagedPart(part, flow.rows, flow.bytes)

    def _load(self, connection: Any, flow: _Flow) -> bool:
        """False when the server forbids it, before a row was taken."""
        name = f"{_quoted(self.database)}.{_quoted(self.table)}"
        targets, sets = [], []
        for index, field in enumerate(self.schema):
            column = _quoted(staging_column(index, field.name))
            if self.kinds.get(field.name) == "bytes":
                targets.append(f"@b{index}")
                sets.append(f"{column} = UNHEX(@b{index})")
            else:
                targets.append(column)
        targets.append(_quoted(PART))
        # LOCAL is a file that the client sends; its name only shows that the server asks for this one
        statement = f"LOAD DATA LOCAL INFILE '{_FILE}' INTO TABLE {name} CHARACTER SET utf8mb4"
        statement += f" ({', '.join(targets)})" + (f" SET {', '.join(sets)}" if sets else "")
        try:
            done = load_local(connection, statement, _FILE, flow.texts())
        except DriverError as error:
            if diagnose(error).number in _FORBIDDEN and not flow.rows:
                return False
            raise
        if done.warnings or done.rows != flow.rows:
            raise self._refused(connection, done.rows, flow.rows)
        return True

    def _insert(self, connection: Any, flow: _Flow) -> None:
        name = f"{_quoted(self.database)}.{_quoted(self.table)}"
        columns = ", ".join(_quoted(column) for column in (*self._names(), PART))
        start = f"INSERT INTO {name} ({columns}) VALUES ".encode()
        connection.begin()
        for batch in flow:
            for values in insert_values(batch, flow.number):
                connection.query(start + values)
        connection.commit()

    def _refused(self, connection: Any, loaded: int, sent: int) -> Exception:
        """LOAD DATA LOCAL only warns of a value that does not fit; here it is an error, as everywhere."""
        with connection.cursor() as cursor:
            cursor.execute("SHOW WARNINGS LIMIT 1")
            found = cursor.fetchall()
        if found:
            _, number, message = found[0]
            return row_rejected(Diagnosis(int(number), message), self._names())
        return TargetFailed(f"the server took {loaded:,} of {sent:,} rows into staging", state=UNCHANGED)

    def _names(self) -> dict[str, str]:
        return {staging_column(i, name): name for i, name in enumerate(self.schema.names)}


def staging_column(index: int, name: str) -> str:
    """What the column is called in staging: MySQL drops spaces and control characters before an alias."""
    return name if name[0] <= " " or name[0] == "\x7f" else f"c{index}"


class _Flow:
    """The batches, counted. Iterating starts with the first that has rows."""

    def __init__(self, batches: Iterable[pa.RecordBatch], number: int, kinds: Mapping[str, str]) -> None:
        self.rows = 0
        self.bytes = 0
        self.number = number
        self._kinds = dict(kinds)
        self._batches = iter(batches)
        self._first = next((batch for batch in self._batches if batch.num_rows), None)

    @property
    def is_empty(self) -> bool:
        return self._first is None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        batch = self._first
        while batch is not None:
            require_storable(batch, self._kinds, self.rows)
            self.rows += batch.num_rows
            self.bytes += batch.nbytes
            if batch.num_rows:
                yield batch
            batch = next(self._batches, None)

    def texts(self) -> Iterator[memoryview]:
        for batch in self:
            yield memoryview(encoded(batch, str(self.number)))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
