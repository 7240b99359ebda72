"""MySQL as a batch source: describes SQL without running it, and reads it in one task.

Several sessions cannot share a snapshot, so a query is one split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ematix_flow.backends.base import BatchSource, SourceColumn, SourceQuery
from ematix_flow.backends.mysql.address import MySQLAddress
from ematix_flow.backends.mysql.connection import DriverError, open_connection
from ematix_flow.backends.mysql.dialect import MySQLDialect
from ematix_flow.backends.mysql.failures import source_failure
from ematix_flow.backends.mysql.names import parse_table_name
from ematix_flow.backends.mysql.result_types import column_export
from ematix_flow.backends.mysql.split import SNAPSHOT, MySQLSplit
from ematix_flow.backends.mysql.wire_protocol import ResultField, describe_statement
from ematix_flow.backends.sql_servers.column_export import ColumnExport
from ematix_flow.backends.sql_servers.source_queries import (
    require_distinct_columns,
    select_exports,
    select_table,
)
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.raw_sql import one_statement


class MySQLSource(BatchSource):
    dialect = "mysql"

    def __init__(self, address: MySQLAddress, dialect: MySQLDialect) -> None:
        self.address = address
        self._sql = dialect

    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        return select_table(parse_table_name(table), columns, self._sql)

    def describe(self, sql: str) -> tuple[SourceColumn, ...]:
        with self._read_only_connection() as connection:
            exports = self._column_exports(connection, one_statement(sql, self.dialect))
        return tuple(SourceColumn(e.name, e.type, e.native) for e in exports)

    def explain(self, sql: str) -> str:
        inner = one_statement(sql, self.dialect)
        with self._read_only_connection() as connection:
            self._column_exports(connection, inner)
            try:
                with connection.cursor() as cursor:
                    cursor.execute(f"EXPLAIN {inner}")
                    names = [column[0] for column in cursor.description or ()]
                    return "\n".join(_plan_line(names, row) for row in cursor.fetchall())
            except DriverError as error:
                raise source_failure(error, self.address.name, inner) from error

    @contextmanager
    def split(
        self, query: SourceQuery, wanted: Mapping[str, DataType], parallelism: int
    ) -> Iterator[Sequence[MySQLSplit]]:
        inner = one_statement(query.sql, self.dialect)
        with self._read_only_connection() as connection:
            exports = self._column_exports(connection, inner)
        yield [
            MySQLSplit(self.address, select_exports(inner, exports, query.range, self._sql), inner, exports)
        ]

    def _column_exports(self, connection: Any, inner: str) -> tuple[ColumnExport, ...]:
        """The exports, from preparing the SQL as written and as the subquery of the read."""
        fields = prepare_statement(connection, self.address.name, inner, inner)
        require_distinct_columns([field.name for field in fields], str.lower)
        exports = tuple(column_export(field) for field in fields)
        prepare_statement(
            connection, self.address.name, inner, select_exports(inner, exports, None, self._sql)
        )
        return exports

    @contextmanager
    def _read_only_connection(self) -> Iterator[Any]:
        """A connection in a read-only transaction, in which no SQL can write."""
        with open_connection(self.address) as connection:
            connection.query(SNAPSHOT)
            yield connection


def prepare_statement(connection: Any, name: str, sql: str, statement: str) -> tuple[ResultField, ...]:
    """The columns of ``statement``, which contains the user's ``sql``."""
    try:
        fields, parameters = describe_statement(connection, statement)
    except DriverError as error:
        raise source_failure(error, name, sql) from error
    if parameters:
        raise SourceFailed(
            f"the source SQL holds {parameters} parameter(s) like ?, and no value is given for it",
            next_step="write the values into the SQL",
        )
    return fields


def _plan_line(names: list[str], row: Sequence[Any]) -> str:
    if len(row) == 1:
        return str(row[0])
    return "  ".join(f"{name}={value}" for name, value in zip(names, row, strict=True) if value is not None)
