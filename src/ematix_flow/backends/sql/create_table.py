"""CREATE TABLE for a declared table."""

from __future__ import annotations

from collections.abc import Iterable

from ematix_flow.backends.sql.session import SqlDialect
from ematix_flow.spec.tables import ColumnSpec, TableSpec


def column_definition(dialect: SqlDialect, item: ColumnSpec) -> str:
    """A column definition in a CREATE TABLE."""
    words = [
        dialect.quote(item.name),
        dialect.native_type(item.type),
        "" if item.nullable else "NOT NULL",
        dialect.column_constraint(item),
    ]
    return " ".join(word for word in words if word)


def column_list(dialect: SqlDialect, group: Iterable[str]) -> str:
    return f"({', '.join(dialect.quote(name) for name in group)})"


def unique_groups(table: TableSpec) -> tuple[tuple[str, ...], ...]:
    """The unique groups of columns other than the primary key.

    They include the merge keys unless another key makes those unique already.
    """
    groups = [g for g in dict.fromkeys(table.unique + table.natural_keys) if set(g) != set(table.primary_key)]
    keys = [table.primary_key, *groups] if table.primary_key else groups
    if table.merge_keys and not any(set(group) <= set(table.merge_keys) for group in keys):
        groups.append(table.merge_keys)
    return tuple(groups)


def create_table_sql(dialect: SqlDialect, table: TableSpec) -> str:
    """CREATE TABLE IF NOT EXISTS with keys and constraints."""
    lines = [column_definition(dialect, item) for item in table.columns]
    if table.primary_key:
        lines.append(f"PRIMARY KEY {column_list(dialect, table.primary_key)}")
    lines += [f"UNIQUE {column_list(dialect, group)}" for group in unique_groups(table)]
    name = dialect.render(dialect.table(table.schema, table.name))
    return f"CREATE TABLE IF NOT EXISTS {name} (\n  " + ",\n  ".join(lines) + "\n)"
