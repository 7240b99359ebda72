"""Spark SQL for strategies and DDL.

While a load is applied, a strategy reads views of one snapshot; ``named`` maps each table to its view.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping
from typing import Any

from sqlglot import exp

from ematix_flow.backends.lake.row_hash import row_hash
from ematix_flow.backends.lake.spark_types import canonical_type
from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.functions.spark import SparkFunctions
from ematix_flow.strategies.row_hash import Columns
from ematix_flow.strategies.sql import fill_template, identifier

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)

SchemaAndTable = tuple[str | None, str]


class LakeDialect(SqlDialect):
    """``named`` gives a table's name in SQL: a path for Delta, a name in a catalog for Iceberg."""

    name = "spark"

    def __init__(self, named: Mapping[SchemaAndTable, exp.Table] | None = None) -> None:
        self._named = dict(named or {})

    def add_table_names(self, named: Mapping[SchemaAndTable, exp.Table]) -> None:
        """Use these names for these tables from now on."""
        self._named |= named

    def table(self, schema: str | None, name: str) -> exp.Table:
        found = self._named.get((schema, name))
        if found is not None:
            return found.copy()
        return exp.Table(this=identifier(name), db=identifier(schema) if schema else None)

    def native_type(self, data_type: DataType) -> str:
        return SparkFunctions().type_name(data_type)

    def canonical_type(self, native: str) -> DataType | None:
        return canonical_type(native)

    def add_column_clause(self, item: ColumnSpec) -> str:
        # lakes add only nullable columns, even to an empty table; staging refuses the nulls
        return f"ADD COLUMN {self.quote(item.name)} {self.native_type(item.type)}"

    def literal(self, value: Any, data_type: DataType) -> exp.Expr:
        if value is None:
            return self._cast(exp.Null(), data_type)
        if isinstance(value, bytes):
            return exp.HexString(this=value.hex()) if value else self._cast(exp.Literal.string(""), data_type)
        return self._cast(exp.Literal.string(_text(value)), data_type)

    def comparable(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        return column

    def as_timestamp_tz(self, column: exp.Expr, data_type: DataType) -> exp.Expr:
        # the session's time zone is UTC
        return column if data_type.kind == "timestamp_tz" else self._cast(column, DataType("timestamp_tz"))

    def add_seconds(self, moment: exp.Expr, seconds: float) -> exp.Expr:
        exact = decimal.Decimal(round(seconds * 1_000_000)).scaleb(-6)
        added = f"v + make_dt_interval(0, 0, 0, CAST('{exact:f}' AS DECIMAL(18,6)))"
        return exp.paren(fill_template(added, moment, self.name))

    def row_hash(self, columns: Columns) -> exp.Expr:
        return row_hash(columns)

    def to_python(self, value: Any, data_type: DataType) -> Any:
        if value is None:
            return None
        if data_type.kind == "timestamp_tz":
            return _EPOCH + dt.timedelta(microseconds=value)
        return bytes(value) if data_type.kind == "bytes" else value

    def as_fetchable(self, value: exp.Expr, data_type: DataType) -> exp.Expr:
        # PySpark returns times in the machine's local zone, where an hour may occur twice
        return (
            fill_template("unix_micros(v)", value, self.name) if data_type.kind == "timestamp_tz" else value
        )

    def convert_value(self, value: exp.Expr, item: ColumnSpec) -> exp.Expr:
        return self._cast(value, item.type)

    def _cast(self, value: exp.Expr, data_type: DataType) -> exp.Expr:
        return exp.cast(value, SparkFunctions().type_name(data_type), dialect=self.name)


def _text(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
