"""Reading a live table from the information schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ematix_flow.backends.base import LiveTable
from ematix_flow.backends.mysql.dialect import MySQLDialect
from ematix_flow.backends.sql.create_table import unique_groups
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType

_RELATION = """
SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES
WHERE TABLE_SCHEMA = COALESCE(%(schema)s, DATABASE()) AND TABLE_NAME = %(name)s
"""
_COLUMNS = """
SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE = 'NO', COLLATION_NAME,
       NULLIF(COLUMN_DEFAULT, 'NULL') IS NOT NULL, EXTRA, COLUMN_COMMENT <> ''
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %(schema)s AND TABLE_NAME = %(name)s
ORDER BY ORDINAL_POSITION
"""
_KEYS = """
SELECT INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %(schema)s AND TABLE_NAME = %(name)s AND NON_UNIQUE = 0
ORDER BY INDEX_NAME, SEQ_IN_INDEX
"""
_REFERRING = """
SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME FROM information_schema.KEY_COLUMN_USAGE
WHERE REFERENCED_TABLE_SCHEMA = %(schema)s AND REFERENCED_TABLE_NAME = %(name)s ORDER BY 1, 2
"""
_COLLATIONS = """
SELECT COLUMN_NAME, CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = COALESCE(%(schema)s, DATABASE()) AND TABLE_NAME = %(name)s AND COLLATION_NAME IS NOT NULL
"""
_LOADABLE = ("BASE TABLE", "VIEW", "SYSTEM VERSIONED")


def read_live_table(session: SqlSession, dialect: MySQLDialect, table: TableSpec) -> LiveTable | None:
    """The table as it is, or None."""
    found = session.fetch(_RELATION, {"schema": table.schema, "name": table.name})
    # the information schema may ignore case although table names are case-sensitive
    exact = [row for row in found if row[1] == table.name] or found
    if not exact or (exact[0][1] != table.name and _is_case_sensitive(session)):
        return None
    schema, name, kind, engine = exact[0]
    if kind not in _LOADABLE:
        raise SchemaMismatch(
            f"{table.label} is a {str(kind).lower()} in the target",
            where=table.where,
            next_step="choose another name for the table",
        )
    if engine is not None and engine != "InnoDB":  # a view has no engine
        raise SchemaMismatch(
            f"{table.label} uses the storage engine {engine}, which cannot roll back a load",
            where=table.where,
            state=f"{table.label} is unchanged",
            next_step=f"ALTER TABLE {dialect.render(dialect.table(schema, name))} ENGINE = InnoDB",
        )
    place = {"schema": schema, "name": name}
    keys = _unique_keys(session.fetch(_KEYS, place))
    primary = keys.pop("PRIMARY", ())
    groups = (primary, *keys.values(), table.primary_key, table.merge_keys, *unique_groups(table))
    in_keys = {column for group in groups for column in group}
    drops = {group: f"DROP INDEX {dialect.quote(index)}" for index, group in keys.items()}
    drops |= {primary: "DROP PRIMARY KEY"} if primary else {}
    declared = set(table.with_load_columns().column_names)
    columns, native, pinned = [], {}, {}
    for column, type_name, not_null, collation, has_default, extra, has_comment in session.fetch(
        _COLUMNS, place
    ):
        is_filled = has_default or "auto_increment" in extra or "GENERATED" in extra
        if is_filled or has_comment:
            pinned[column] = "MySQL would drop its default, comment or expression"
        shown = _as_text(type_name)
        if column in in_keys and collation and not dialect.is_exact_collation(shown, collation):
            shown += f" collate {collation}"
        native[column] = shown
        columns.append(
            ColumnSpec(
                column,
                # a type without a canonical one is shown by its native name
                dialect.canonical_type(shown) or DataType("text"),
                # a load need not fill an undeclared column that has a default
                nullable=not not_null or (is_filled and column not in declared),
                primary_key=column in primary,
            )
        )
    referring = tuple(f"{schema}.{name}" for schema, name in session.fetch(_REFERRING, place))
    return LiveTable(
        tuple(columns),
        primary,
        tuple(keys.values()),
        native,
        drop_clauses=drops,
        pinned=pinned,
        referred_by=referring,
    )


def read_collations(session: SqlSession, table: TableSpec) -> dict[str, str]:
    """The clause that keeps a text column's character set and collation, by column."""
    found = session.fetch(_COLLATIONS, {"schema": table.schema, "name": table.name})
    return {name: f"CHARACTER SET {charset} COLLATE {collation}" for name, charset, collation in found}


def _unique_keys(rows: Sequence[Sequence[Any]]) -> dict[str, tuple[str, ...]]:
    """Unique indexes by name, without those over a column prefix or an expression."""
    groups: dict[str, list[tuple[str | None, Any]]] = {}
    for index, column, part in rows:
        groups.setdefault(index, []).append((column, part))
    return {
        index: tuple(column for column, _ in parts if column is not None)
        for index, parts in groups.items()
        if all(column is not None and part is None for column, part in parts)
    }


def _is_case_sensitive(session: SqlSession) -> bool:
    return int(session.fetch("SELECT @@lower_case_table_names")[0][0]) == 0


def _as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
