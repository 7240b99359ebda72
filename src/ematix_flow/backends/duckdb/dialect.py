"""DuckDB's SQL dialect: names, typed constants, and a CHECK for lengths, which DuckDB ignores."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

from sqlglot import exp

from ematix_flow.backends.duckdb import column_types
from ematix_flow.backends.duckdb.row_hash import row_hash
from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.row_hash import Columns
from ematix_flow.strategies.sql import fill_template, identifier


class DuckDBDialect(SqlDialect):
    """SQL of strategies, DDL and control tables for one DuckDB file."""

    name = "duckdb"

    def __init__(self, catalog: str) -> None:
        self.catalog = catalog

    def table(self, schema: str | None, name: str) -> exp.Table:
        # with the catalog: in a file sales.duckdb with a schema "sales", "sales"."orders" is ambiguous
        return exp.Table(
            this=identifier(name), db=identifier(schema or "main"), catalog=identifier(self.catalog)
        )

    def native_type(self, data_type: DataType) -> str:
        return column_types.native_type(data_type)

    def canonical_type(self, native: str) -> DataType | None:
        return column_types.canonical_type(native)

    def can_hold(self, declared: DataType, live: DataType, native: str | None) -> bool:
        found = live if native is None else self.canonical_type(native)
        if found is not None and found.kind == "string":
            return declared == found
        return super().can_hold(declared, live, native)

    def literal(self, value: Any, data_type: DataType) -> exp.Expr:
        if value is None:
            return self.cast(exp.Null(), data_type)
        return self.cast(exp.Literal.string(_literal_text(value)), data_type)

    def comparable(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        if data_type.kind in ("json", "jsonb"):
            return exp.cast(column, "VARCHAR", dialect=self.name)
        return column

    def range_operand(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        # DuckDB does not compare text with a time; a cast to a column's own type costs nothing
        return self.cast(column, data_type)

    def as_timestamp_tz(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        if data_type.kind == "timestamp_tz":
            return column
        return fill_template("CAST(v AS TIMESTAMP) AT TIME ZONE 'UTC'", column, self.name)

    def add_seconds(self, moment: exp.Expr, seconds: float) -> exp.Expr:
        return exp.paren(
            fill_template(f"v + to_microseconds({round(seconds * 1_000_000)})", moment, self.name)
        )

    def row_hash(self, columns: Columns) -> exp.Expr:
        return row_hash(columns)

    def to_python(self, value: Any, data_type: DataType) -> Any:
        if value is None:
            return None
        if data_type.kind == "timestamp_tz":
            return value.astimezone(dt.timezone.utc)
        return str(value) if data_type.kind == "uuid" else value

    def column_constraint(self, spec: ColumnSpec) -> str:
        if spec.type.kind != "string":
            return ""
        return f"CHECK (length({self.quote(spec.name)}) <= {spec.type.length})"

    def convert_value(self, value: exp.Expr, item: ColumnSpec) -> exp.Expr:
        return self.cast(value, item.type)

    def display_type(self, data_type: DataType) -> str:
        return (
            f"VARCHAR({data_type.length})" if data_type.kind == "string" else super().display_type(data_type)
        )

    def cast(self, value: exp.Expr, data_type: DataType) -> exp.Expr:
        return exp.cast(value, column_types.native_type(data_type), dialect=self.name)


def _literal_text(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return "".join(f"\\x{byte:02X}" for byte in value)
    return str(value)
