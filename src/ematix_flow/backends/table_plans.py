"""DDL planning: a declared table made into SQL, and compared with the one that lives."""

from __future__ import annotations

from ematix_flow.backends.base import LiveTable, TableChange, TablePlan
from ematix_flow.backends.sql_session import SqlDialect
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.tables import TableSpec


def create_table_sql(dialect: SqlDialect, table: TableSpec) -> str:
    """CREATE TABLE IF NOT EXISTS with keys and constraints."""
    quote, lines = dialect.quote, []
    for item in table.columns:
        words = [
            quote(item.name),
            dialect.native_type(item.type),
            "" if item.nullable else "NOT NULL",
            dialect.column_constraint(item),
        ]
        lines.append(" ".join(word for word in words if word))
    if table.primary_key:
        lines.append(f"PRIMARY KEY ({', '.join(quote(n) for n in table.primary_key)})")
    for group in dict.fromkeys(table.unique + table.natural_keys):
        if group != table.primary_key:
            lines.append(f"UNIQUE ({', '.join(quote(n) for n in group)})")
    name = dialect.render(dialect.table(table.schema, table.name))
    return f"CREATE TABLE IF NOT EXISTS {name} (\n  " + ",\n  ".join(lines) + "\n)"


def compare_tables(dialect: SqlDialect, wanted: TableSpec, live: LiveTable) -> TablePlan:
    have = {c.name: c for c in live.columns}
    table_sql = dialect.render(dialect.table(wanted.schema, wanted.name))
    changes: list[TableChange] = []
    differences: list[str] = []
    for item in wanted.columns:
        there = have.get(item.name)
        if there is None:
            if item.nullable:
                sql = (
                    f"ALTER TABLE {table_sql} ADD COLUMN {dialect.quote(item.name)} "
                    f"{dialect.native_type(item.type)}"
                )
                changes.append(TableChange("add_column", f"{wanted.label}.{item.name}", sql))
            else:
                differences.append(
                    f"column {item.name!r} ({item.type}, not null) is declared but not in the table"
                )
            continue
        native = live.native.get(item.name)
        if not dialect.holds(item.type, there.type, native):
            native = native or str(there.type)
            differences.append(f"column {item.name!r} is {native} in the table, declared as {item.type}")
        if there.nullable != item.nullable:
            is_now, declared = ("nullable", "not null") if there.nullable else ("not null", "nullable")
            differences.append(f"column {item.name!r} is {is_now} in the table, declared as {declared}")
    declared_names = set(wanted.column_names)
    for item in live.columns:
        if item.name not in declared_names and not item.nullable:
            differences.append(
                f"column {item.name!r} of the table is not null and not declared: no load could fill it"
            )
    if wanted.primary_key != live.primary_key:
        differences.append(
            f"the primary key is ({', '.join(live.primary_key)}), "
            f"declared as ({', '.join(wanted.primary_key)})"
        )
    return TablePlan(tuple(changes), tuple(differences))


def require_identifier_length(table: TableSpec, limit: int | None) -> None:
    """Names longer than the database keeps would be cut and collide: refuse them."""
    if limit is None:
        return
    for name in (table.schema or "", table.name, *table.column_names):
        if len(name.encode()) > limit:
            raise SchemaMismatch(
                f"the name {name!r} is {len(name.encode())} bytes long; this database keeps {limit}",
                where=table.where,
                next_step="choose a shorter name",
            )
