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
from ematix_flow.backends.mysql.result_types import ColumnExport, column_export
from ematix_flow.backends.mysql.split import SNAPSHOT, MySQLSplit
from ematix_flow.backends.mysql.wire_protocol import ResultField, describe_statement
from ematix_flow.errors import SourceFailed
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import SourceRange
from ematix_flow.strategies.ranges import range_condition
from ematix_flow.strategies.raw_sql import one_statement

ALIAS = "q"


class MySQLSource(BatchSource):
    dialect = "mysql"

    def __init__(self, address: MySQLAddress, dialect: MySQLDialect) -> None:
        self.address = address
        self._sql = dialect

    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        quote = self._sql.quote
        name = ".".join(quote(part) for part in parse_table_name(table))
        picked = ", ".join(
            quote(source) if alias == source else f"{quote(source)} AS {quote(alias)}"
            for alias, source in columns
        )
        return f"SELECT {picked or '*'} FROM {name}"

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
        yield [MySQLSplit(self.address, self._statement(inner, exports, query.range), inner, exports)]

    def _statement(self, inner: str, exports: tuple[ColumnExport, ...], kept: SourceRange | None) -> str:
        quote, alias = self._sql.quote, self._sql.quote(internal_name(ALIAS))
        picked = ", ".join(
            f"{e.template.format(f'{alias}.{quote(e.name)}')} AS {quote(e.name)}" for e in exports
        )
        # the newlines end a comment in the last line of the user's SQL
        statement = f"SELECT {picked} FROM (\n{inner}\n) AS {alias}"
        condition = range_condition(kept, self._sql, ALIAS) if kept is not None else None
        return f"{statement} WHERE {self._sql.render(condition)}" if condition is not None else statement

    def _column_exports(self, connection: Any, inner: str) -> tuple[ColumnExport, ...]:
        """The exports, from preparing the SQL as written and as the subquery of the read."""
        fields = prepare_statement(connection, self.address.name, inner, inner)
        if not fields:
            raise SourceFailed("the source SQL yields no columns", next_step="write a SELECT")
        names = [field.name.lower() for field in fields]
        for field in fields:
            if names.count(field.name.lower()) > 1:
                raise SourceFailed(
                    f"the source SQL yields column {field.name!r} twice",
                    next_step="give one of them another name with AS",
                )
        exports = tuple(column_export(field) for field in fields)
        prepare_statement(connection, self.address.name, inner, self._statement(inner, exports, None))
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
