"""Changes of a live SQLite table: columns are added in place, any other change rebuilds the table.

This is SQLite's documented procedure: create a new table, copy, rename, and create indexes and triggers
again, all in the load's transaction. Views and foreign keys refer to the table by name and still work.
"""

from __future__ import annotations

from dataclasses import replace

from ematix_flow.backends.base import TableChange
from ematix_flow.backends.sql.alterations import CannotAlter, alter_table_changes
from ematix_flow.backends.sql.rebuild import CreateTableStatement, rebuild_changes, sql_words
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.backends.sql.table_diff import TableDiff
from ematix_flow.backends.sqlite.dialect import SQLiteDialect, table_name
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType

_DEPENDENTS_SQL = (
    "SELECT type, sql FROM main.sqlite_master "
    "WHERE lower(tbl_name) = lower(:name) AND type <> 'view' AND sql IS NOT NULL ORDER BY rowid"
)
_LENIENT, _STRICT = "PRAGMA legacy_alter_table = ON", "PRAGMA legacy_alter_table = OFF"


def plan_alterations(session: SqlSession, dialect: SQLiteDialect, diff: TableDiff) -> list[TableChange]:
    if diff.only_adds_columns and all(item.nullable for item in diff.added):
        return alter_table_changes(dialect, diff)
    name = table_name(diff.wanted.schema, diff.wanted.name)
    found = session.fetch(_DEPENDENTS_SQL, {"name": name})
    created = next((sql for kind, sql in found if kind == "table"), "")
    if sql_words(created)[:2] != ("create", "table"):
        raise CannotAlter("it is a virtual table. By hand: create it again")
    parsed = CreateTableStatement.parse(created)
    if parsed.mentions("autoincrement"):
        raise CannotAlter("its AUTOINCREMENT would lose its counter. By hand: create it again")
    hanging = [sql for kind, sql in found if kind != "table"]
    # a rename checks every view, and would not find the dropped table
    return rebuild_changes(dialect, diff, parsed, [_STRICT, *hanging], _LENIENT)


def checked_types(dialect: SQLiteDialect, created: str, columns: list[ColumnSpec]) -> dict[str, DataType]:
    """Columns whose type a generated CHECK limits; a wider type must replace the CHECK."""
    try:
        definitions = {d.words[0]: d.words for d in CreateTableStatement.parse(created).elements if d.words}
    except CannotAlter:
        return {}
    found = {}
    for item in columns:
        check = sql_words(dialect.column_constraint(replace(item)))
        words = definitions.get(item.name.lower(), ())
        if check and words[-len(check) :] == check:
            found[item.name] = item.type
    return found
