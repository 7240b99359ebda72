"""Casts that give a same-database load the rules of a load through Arrow: nothing rounded.

MySQL rounds a number when it assigns it to a column with fewer digits, and reports only a note. The planner
adds no casts for decimals beyond 38 digits, because they have no canonical type.
"""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.backends.mysql.dialect import MySQLDialect
from ematix_flow.backends.mysql.result_types import column_export
from ematix_flow.backends.mysql.wire_protocol import ResultField
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import MAX_PRECISION, DataType
from ematix_flow.strategies.functions import functions_for
from ematix_flow.strategies.functions.base import TypedValue
from ematix_flow.strategies.functions.casts import cast
from ematix_flow.strategies.functions.site import ColumnSite
from ematix_flow.strategies.sql import alias_name, column

_ALIAS = "q"
# a type with more digits than any declared scale, so that each value is checked
_ANY_SCALE = DataType("numeric", precision=MAX_PRECISION, scale=MAX_PRECISION)


def exact_select(fields: tuple[ResultField, ...], sql: str, table: TableSpec, dialect: MySQLDialect) -> str:
    """The SQL, wrapped when a column needs more than MySQL's own assignment."""
    wide = {f.name for f in fields if f.name in table.column_names and column_export(f).type is None}
    if not wide:
        return sql
    picked = [
        exp.alias_(_checked_value(n, table) if n in wide else column(n, _ALIAS), n, quoted=True)
        for n in table.column_names
    ]
    rendered = ", ".join(map(dialect.render, picked))
    return f"SELECT {rendered} FROM (\n{sql}\n) AS {dialect.render(alias_name(_ALIAS))}"


def _checked_value(name: str, table: TableSpec) -> exp.Expr:
    site = ColumnSite(functions_for("mysql"), name, lambda value: value)
    return cast(TypedValue(column(name, _ALIAS), _ANY_SCALE), table.column(name).type, site).tree
