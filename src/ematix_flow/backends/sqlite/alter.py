"""Changing a live table in SQLite: columns are added in place, everything else is SQLite's own procedure.

That is: a new table, a copy, a rename, and indexes and triggers made again, all in the load's transaction.
Views and the foreign keys of other tables name the table and find it again.
"""

from __future__ import annotations

from dataclasses import replace

from ematix_flow.backends.alterations import CannotAlter, altered
from ematix_flow.backends.base import TableChange
from ematix_flow.backends.rebuild import Created, rebuilt, words_of
from ematix_flow.backends.sql_session import SqlSession
from ematix_flow.backends.sqlite.dialect import SQLiteDialect, table_name
from ematix_flow.backends.table_diff import TableDiff
from ematix_flow.spec.tables import ColumnSpec
from ematix_flow.spec.types import DataType

_HANGING = (
    "SELECT type, sql FROM main.sqlite_master "
    "WHERE lower(tbl_name) = lower(:name) AND type <> 'view' AND sql IS NOT NULL ORDER BY rowid"
)
_LENIENT, _STRICT = "PRAGMA legacy_alter_table = ON", "PRAGMA legacy_alter_table = OFF"


def alter_table(session: SqlSession, dialect: SQLiteDialect, diff: TableDiff) -> list[TableChange]:
    only_adds = not (diff.widened or diff.relaxed or diff.add_unique or diff.becomes_history)
    if only_adds and all(item.nullable for item in diff.added):
        return altered(dialect, diff)
    name = table_name(diff.wanted.schema, diff.wanted.name)
    found = session.fetch(_HANGING, {"name": name})
    created = next((sql for kind, sql in found if kind == "table"), "")
    if words_of(created)[:2] != ("create", "table"):
        raise CannotAlter("it is a virtual table. By hand: make it anew")
    parsed = Created.parse(created)
    if parsed.says("autoincrement"):
        raise CannotAlter("its AUTOINCREMENT would forget its place. By hand: make it anew")
    hanging = [sql for kind, sql in found if kind != "table"]
    # a rename looks at every view, and would not find the table that is just then away
    return rebuilt(dialect, diff, parsed, [_STRICT, *hanging], _LENIENT)


def limits(dialect: SQLiteDialect, created: str, columns: list[ColumnSpec]) -> dict[str, DataType]:
    """Columns whose type is kept by a CHECK of ours, which a wider type must lift."""
    try:
        definitions = {d.words[0]: d.words for d in Created.parse(created).definitions if d.words}
    except CannotAlter:
        return {}
    found = {}
    for item in columns:
        check = words_of(dialect.column_constraint(replace(item)))
        words = definitions.get(item.name.lower(), ())
        if check and words[-len(check) :] == check:
            found[item.name] = item.type
    return found
