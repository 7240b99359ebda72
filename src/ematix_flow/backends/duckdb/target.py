"""DuckDB as a target: its catalog and its staging.

DuckDB's key indexes see the deletes of the same transaction, so `truncate` deletes and inserts as in every
other database; a test checks this for the version in use.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager

from sqlglot import exp

from ematix_flow.backends.base import LiveTable, StagedRows, TableChange
from ematix_flow.backends.duckdb.alterations import plan_alterations
from ematix_flow.backends.duckdb.dialect import DuckDBDialect
from ematix_flow.backends.duckdb.exact_casts import exact_cast
from ematix_flow.backends.duckdb.failures import target_error, translate_errors
from ematix_flow.backends.duckdb.session import DuckDBSession, open_read_session, open_write_session
from ematix_flow.backends.duckdb.shared_connections import catalog_name
from ematix_flow.backends.duckdb.split import describe_query
from ematix_flow.backends.duckdb.staging import DuckDBStaging
from ematix_flow.backends.embedded.database_file import DatabaseFile
from ematix_flow.backends.embedded.target import EmbeddedTarget
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.backends.sql.table_diff import TableDiff
from ematix_flow.backends.sql.table_names import ascii_lower, require_distinct_names
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.sql import column, verbatim, with_alias

_LENGTH = re.compile(r"CHECK\(\(length\(.*\) <= (\d+)\)\)", re.DOTALL)
_HERE = "database_name = current_database() AND lower(schema_name) = lower($schema)"
_NAMED = f"{_HERE} AND lower(table_name) = lower($name)"


class DuckDBTarget(EmbeddedTarget):
    dialect: DuckDBDialect
    staging_type = DuckDBStaging

    def __init__(self, file: DatabaseFile) -> None:
        super().__init__(file)
        self.dialect = DuckDBDialect(catalog_name(file.path))

    def session(self) -> AbstractContextManager[SqlSession]:
        return open_write_session(self.file)

    def read_session(self) -> AbstractContextManager[SqlSession]:
        return open_read_session(self.file)

    # -------------------------------------------------------------- the catalog

    def read_live_table(self, session: SqlSession, table: TableSpec) -> LiveTable | None:
        require_distinct_names(table, "DuckDB", ascii_lower)
        at = {"schema": table.schema or "main", "name": table.name}
        views = f"SELECT 1 FROM duckdb_views() WHERE {_HERE} AND lower(view_name) = lower($name)"
        if session.fetch(views, at):
            raise SchemaMismatch(
                f"{table.label} is a view in {self.file.path}, not a table",
                next_step="choose another name for the target",
            )
        found = session.fetch(
            "SELECT column_name, data_type, is_nullable, column_default FROM duckdb_columns() "
            f"WHERE {_NAMED} ORDER BY column_index",
            at,
        )
        if not found:
            return None
        # names are compared without case
        declared = {c.name.lower(): c.name for c in table.with_load_columns().columns}
        constraints = session.fetch(
            "SELECT constraint_type, constraint_column_names, constraint_text FROM duckdb_constraints() "
            f"WHERE {_NAMED} ORDER BY constraint_index",
            at,
        )
        groups = [(kind, tuple(declared.get(n.lower(), n) for n in names)) for kind, names, _ in constraints]
        columns, native = [], {}
        for name, type_name, nullable, default in found:
            spelled = declared.get(name.lower(), name)
            meaning = self.dialect.canonical_type(type_name) or DataType("text")
            # a load need not fill an undeclared column that has a default
            fills_itself = default is not None and name.lower() not in declared
            columns.append(ColumnSpec(spelled, meaning, nullable=bool(nullable) or fills_itself))
            native[spelled] = type_name
        primary = next((names for kind, names in groups if kind == "PRIMARY KEY"), ())
        unique = tuple(names for kind, names in groups if kind == "UNIQUE")
        lengths = {}
        for (kind, names), (_, _, text) in zip(groups, constraints, strict=True):
            length = _LENGTH.fullmatch(text) if kind == "CHECK" and len(names) == 1 else None
            if length and native[names[0]] == "VARCHAR":
                lengths[names[0]] = DataType("string", length=int(length[1]))
                native[names[0]] = f"VARCHAR({length[1]})"
        return LiveTable(tuple(columns), primary, unique, native, limits=lengths)

    def alterations(self, session: SqlSession, diff: TableDiff) -> list[TableChange]:
        return plan_alterations(session, self.dialect, diff)

    def schema_changes(self, session: SqlSession, table: TableSpec) -> list[TableChange]:
        schema = table.schema or "main"
        if session.fetch(f"SELECT 1 FROM duckdb_schemas() WHERE {_HERE}", {"schema": schema}):
            return []
        name = f"{self.dialect.quote(self.dialect.catalog)}.{self.dialect.quote(schema)}"
        return [TableChange("create_schema", schema, f"CREATE SCHEMA IF NOT EXISTS {name}")]

    # -------------------------------------------------------------- staging

    def staged_select(self, session: SqlSession, rows: StagedRows, table: TableSpec) -> exp.Expr:
        assert isinstance(rows.staging, DuckDBStaging)
        if not rows.parts:
            empty = [
                exp.alias_(self.dialect.cast(exp.Null(), c.type), c.name, quoted=True) for c in table.columns
            ]
            return exp.select(*empty).where(exp.false())
        files = exp.Array(expressions=[exp.Literal.string(rows.staging.path(p.part)) for p in rows.parts])
        # a folder in the path may look like a partition
        plain = exp.EQ(this=exp.Var(this="hive_partitioning"), expression=exp.false())
        parts = exp.Anonymous(this="READ_PARQUET", expressions=[files, plain])
        chosen = [
            exp.alias_(self.dialect.cast(column(f"c{number}"), c.type), c.name, quoted=True)
            for number, c in enumerate(table.columns)
        ]
        return exp.select(*chosen).from_(parts)

    # -------------------------------------------------------------- the load

    def computed_select(self, session: SqlSession, sql: str, table: TableSpec) -> exp.Expr:
        """DuckDB's own casts round and cut; these are exact or refuse the value, as everywhere."""
        assert isinstance(session, DuckDBSession)
        with translate_errors(lambda error: target_error(error, self.file)):
            native = {c.name.lower(): c.native for c in describe_query(session.connection, sql)}
        rows = with_alias(verbatim(sql), "rows")
        chosen = [
            exp.alias_(exact_cast(self.dialect, c, native.get(c.name.lower(), "")), c.name, quoted=True)
            for c in table.columns
        ]
        return exp.select(*chosen).from_(rows)
