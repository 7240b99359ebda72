"""Changes of a live DuckDB table: plain columns are added in place, any other change rebuilds the table.

DuckDB cannot alter a column with a key, an index or a CHECK. So a new table is filled, the old one dropped
and the new one renamed, and indexes and comments are created again, all in the load's transaction. Views
refer to the table by name and still work.
"""

from __future__ import annotations

from sqlglot import exp

from ematix_flow.backends.base import TableChange
from ematix_flow.backends.duckdb.dialect import DuckDBDialect
from ematix_flow.backends.sql.alterations import CannotAlter, alter_table_changes
from ematix_flow.backends.sql.rebuild import CreateTableStatement, rebuild_changes
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.backends.sql.table_diff import TableDiff

_NAMED = (
    "database_name = current_database() AND lower(schema_name) = lower($schema) "
    "AND lower(table_name) = lower($name)"
)
_REFERRING = (
    "SELECT table_name FROM duckdb_constraints() "
    "WHERE constraint_type = 'FOREIGN KEY' AND database_name = current_database() "
    "AND lower(referenced_table) = lower($name)"
)


def plan_alterations(session: SqlSession, dialect: DuckDBDialect, diff: TableDiff) -> list[TableChange]:
    if diff.only_adds_columns and all(
        item.nullable and not dialect.column_constraint(item) for item in diff.added
    ):
        return alter_table_changes(dialect, diff)
    at = {"schema": diff.wanted.schema or "main", "name": diff.wanted.name}
    for (other,) in session.fetch(_REFERRING, {"name": at["name"]}):
        raise CannotAlter(
            f"{other} refers to it by a foreign key. By hand: drop {other}, load, and create it again"
        )
    ((created, comment),) = session.fetch(f"SELECT sql, comment FROM duckdb_tables() WHERE {_NAMED}", at)
    parsed = CreateTableStatement.parse(created)
    for word in ("generated", "foreign"):
        if any(word in d.words for d in parsed.elements):
            raise CannotAlter(f"its definition has a {word} column or key. By hand: create it again")
    statements = [
        sql.strip().rstrip(";")
        for (sql,) in session.fetch(
            f"SELECT sql FROM duckdb_indexes() WHERE {_NAMED} AND sql IS NOT NULL ORDER BY index_oid", at
        )
    ]
    table = dialect.render(dialect.table(diff.wanted.schema, diff.wanted.name))
    if comment is not None:
        statements.append(f"COMMENT ON TABLE {table} IS {_text(dialect, comment)}")
    comments_sql = f"SELECT column_name, comment FROM duckdb_columns() WHERE {_NAMED} AND comment IS NOT NULL"
    for name, text in session.fetch(comments_sql, at):
        statements.append(f"COMMENT ON COLUMN {table}.{dialect.quote(name)} IS {_text(dialect, text)}")
    return rebuild_changes(dialect, diff, parsed, statements)


def _text(dialect: DuckDBDialect, value: str) -> str:
    return dialect.render(exp.Literal.string(value))
