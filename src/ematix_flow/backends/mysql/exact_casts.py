"""Casts that give a same-database load the rules of a load through Arrow: nothing rounded.

MySQL rounds a number when it assigns it to a column with fewer digits, and reports only a note. The planner
adds no casts for decimals beyond 38 digits, because they have no canonical type.
"""

from __future__ import annotations

from ematix_flow.backends.mysql.dialect import MySQLDialect
from ematix_flow.backends.mysql.result_types import column_export
from ematix_flow.backends.mysql.wire_protocol import ResultField
from ematix_flow.backends.sql_servers.source_queries import ALIAS, checked_number, select_exact
from ematix_flow.spec.tables import TableSpec
from ematix_flow.strategies.sql import column


def exact_select(fields: tuple[ResultField, ...], sql: str, table: TableSpec, dialect: MySQLDialect) -> str:
    """The SQL, wrapped when a column needs more than MySQL's own assignment."""
    names = [f.name for f in fields if f.name in table.column_names and column_export(f).type is None]
    checked = {n: checked_number(column(n, ALIAS), n, table.column(n).type, dialect) for n in names}
    return select_exact(sql, checked, table, dialect)
