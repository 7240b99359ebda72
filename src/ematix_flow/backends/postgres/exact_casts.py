"""Casts that give a same-database load the rules of a load through Arrow: nothing rounded, arrays as JSON.

PostgreSQL rounds a ``numeric`` when it assigns it to a column with fewer digits, and does not assign an array
to a JSON column. The planner adds no casts for such columns, because their source type has no canonical
type, or another one than the database's own.
"""

from __future__ import annotations

from typing import Any

import psycopg
from sqlglot import exp

from ematix_flow.backends.postgres.describe import describe_query
from ematix_flow.backends.postgres.dialect import PostgresDialect
from ematix_flow.backends.postgres.result_types import ResultColumn, column_export
from ematix_flow.backends.sql_servers.source_queries import ALIAS, checked_number, select_exact
from ematix_flow.spec.tables import TableSpec
from ematix_flow.strategies.sql import column

_DIALECT = PostgresDialect()


def exact_select(connection: psycopg.Connection[Any], name: str, sql: str, table: TableSpec) -> str:
    """The SQL, wrapped when a column needs more than PostgreSQL's own assignment."""
    columns = describe_query(connection, name, sql)
    values = {c.name: _checked_value(c, table) for c in columns if c.name in table.column_names}
    checked = {name: value for name, value in values.items() if value is not None}
    return select_exact(sql, checked, table, _DIALECT)


def _checked_value(result_column: ResultColumn, table: TableSpec) -> exp.Expr | None:
    wanted = table.column(result_column.name).type
    how = column_export(result_column)
    if how.type is None:
        plain = exp.Cast(this=column(result_column.name, ALIAS), to=exp.DataType.build("NUMERIC"))
        return checked_number(plain, result_column.name, wanted, _DIALECT)
    if how.type.kind == "json" and wanted.kind in ("json", "jsonb") and not result_column.is_json:
        document = exp.Anonymous(this="to_json", expressions=[column(result_column.name, ALIAS)])
        return exp.cast(document, wanted.kind.upper(), dialect="postgres")
    return None
