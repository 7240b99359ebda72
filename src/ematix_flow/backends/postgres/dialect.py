"""PostgreSQL's SQL dialect: names, typed constants, and the values of results."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from typing import Any

from sqlglot import exp

from ematix_flow.backends.postgres import column_types
from ematix_flow.backends.postgres.column_types import cast_name
from ematix_flow.backends.postgres.row_hash import row_hash
from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.row_hash import Columns
from ematix_flow.strategies.sql import fill_template, identifier

MAX_IDENTIFIER_BYTES = 63

_TEXTS = ("text", "string")


class PostgresDialect(SqlDialect):
    """SQL of strategies, DDL and control tables for PostgreSQL."""

    name = "postgres"

    def table(self, schema: str | None, name: str) -> exp.Table:
        return exp.Table(this=identifier(name), db=identifier(schema) if schema else None)

    def native_type(self, data_type: DataType) -> str:
        return column_types.native_type(data_type)

    def canonical_type(self, native: str) -> DataType | None:
        return column_types.canonical_type(native)

    def literal(self, value: Any, data_type: DataType) -> exp.Expr:
        kind = data_type.kind
        if value is None:
            return exp.cast(exp.Null(), cast_name(kind), dialect=self.name)
        typed = exp.cast(exp.Literal.string(_literal_text(value, kind)), cast_name(kind), dialect=self.name)
        # order text by code point, as every other system; the database's collation may differ
        return _by_code_point(typed) if kind in _TEXTS else typed

    def comparable(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        kind = data_type.kind
        if kind in ("json", "jsonb", "uuid"):
            return _by_code_point(exp.cast(column, "TEXT", dialect=self.name))
        return _by_code_point(column) if kind in _TEXTS else column

    def range_operand(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        """A uuid or char(n) that is loaded as text is compared as text."""
        return exp.cast(column, "TEXT", dialect=self.name) if data_type.kind in _TEXTS else column

    def as_timestamp_tz(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        if data_type.kind == "timestamp_tz":
            return column
        return fill_template("CAST(v AS TIMESTAMP) AT TIME ZONE 'UTC'", column, self.name)

    def add_seconds(self, moment: exp.Expr, seconds: float) -> exp.Expr:
        microseconds = round(seconds * 1_000_000)
        return exp.paren(
            fill_template(f"v + CAST('{microseconds} microseconds' AS INTERVAL)", moment, self.name)
        )

    def row_hash(self, columns: Columns) -> exp.Expr:
        return row_hash(columns)

    def conversion_clause(self, item: ColumnSpec) -> str:
        native = self.native_type(item.type)
        return f"{self.change_type_clause(item)} USING CAST({self.quote(item.name)} AS {native})"

    def analyze_sql(self, table: exp.Table) -> str | None:
        return f"ANALYZE {self.render(table)}"

    def to_python(self, value: Any, data_type: DataType) -> Any:
        if value is None:
            return None
        if data_type.kind == "timestamp_tz":
            return value.astimezone(dt.timezone.utc)
        if data_type.kind == "uuid":
            return str(value)
        if data_type.kind == "bytes":
            return bytes(value)
        return value


def _by_code_point(expression: exp.Expr) -> exp.Expr:
    return exp.Collate(this=expression, expression=identifier("C"))


def _literal_text(value: Any, kind: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(dt.timezone.utc)
            value = value if kind == "timestamp_tz" else value.replace(tzinfo=None)
        return str(value.isoformat())
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return "\\x" + bytes(value).hex()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value).replace("inf", "Infinity")
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    return str(value) if isinstance(value, (int, uuid.UUID)) else value
