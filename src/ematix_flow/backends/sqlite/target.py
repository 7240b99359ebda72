"""SQLite as a target: its catalog and its staging."""

from __future__ import annotations

import os
import sqlite3
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.base import (
    LiveTable,
    RowCheck,
    StagedPart,
    StagedRows,
    TableChange,
)
from ematix_flow.backends.embedded.target import EmbeddedTarget
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.backends.sql.table_diff import TableDiff
from ematix_flow.backends.sql.table_names import ascii_lower, require_distinct_names
from ematix_flow.backends.sqlite.alterations import checked_types, plan_alterations
from ematix_flow.backends.sqlite.arrow_columns import UnstorableValueCheck
from ematix_flow.backends.sqlite.column_types import canonical_type
from ematix_flow.backends.sqlite.connection import target_error
from ematix_flow.backends.sqlite.dialect import SQLiteDialect, require_orderable_type, table_name
from ematix_flow.backends.sqlite.session import SQLiteSession, open_read_session, open_write_session
from ematix_flow.backends.sqlite.staging import TABLE, SQLiteStaging, part_table_sql
from ematix_flow.backends.sqlite.values import to_stored
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.sql import identifier, verbatim

if TYPE_CHECKING:
    from typing import Any

_MAX_ATTACHED = 8  # SQLite's own limit is 10


class SQLiteTarget(EmbeddedTarget):
    dialect = SQLiteDialect()
    staging_type = SQLiteStaging

    def session(self) -> AbstractContextManager[SqlSession]:
        return open_write_session(self.file)

    def read_session(self) -> AbstractContextManager[SqlSession]:
        return open_read_session(self.file)

    def bind(self, value: Any, data_type: DataType) -> Any:
        return to_stored(value, data_type)

    # -------------------------------------------------------------- the catalog

    def read_live_table(self, session: SqlSession, table: TableSpec) -> LiveTable | None:
        require_distinct_names(table, "SQLite", ascii_lower)
        _refuse_boolean_names(table)
        name = {"name": table_name(table.schema, table.name)}
        named = "SELECT type, sql FROM main.sqlite_master WHERE lower(name) = lower(:name)"
        kind = session.fetch(named, name)
        if not kind:
            return None
        if kind[0][0] != "table":
            raise SchemaMismatch(
                f"{table.label} is a {kind[0][0]} in {self.file.path}, not a table",
                next_step="choose another name for the target",
            )
        # names are compared without case
        declared = {c.name.lower(): c.name for c in table.with_load_columns().columns}
        columns: list[ColumnSpec] = []
        native, key = {}, {}
        sql = "SELECT name, type, \"notnull\", pk, dflt_value FROM pragma_table_info(:name, 'main')"
        for found, type_name, not_null, position, default in session.fetch(sql, name):
            spelled = declared.get(found.lower(), found)
            meaning = canonical_type(type_name) or DataType("text")
            # a load need not fill an undeclared column that has a default
            fills_itself = default is not None and found.lower() not in declared
            columns.append(
                ColumnSpec(spelled, meaning, nullable=fills_itself or (not not_null and not position))
            )
            native[spelled] = type_name
            if position:
                key[position] = spelled
        unique = self._unique_groups(session, name, declared)
        primary = tuple(key[p] for p in sorted(key))
        checked = checked_types(self.dialect, kind[0][1], columns)
        return LiveTable(tuple(columns), primary, unique, native, limits=checked)

    def alterations(self, session: SqlSession, diff: TableDiff) -> list[TableChange]:
        return plan_alterations(session, self.dialect, diff)

    def _unique_groups(
        self, session: SqlSession, name: dict[str, str], declared: dict[str, str]
    ) -> tuple[tuple[str, ...], ...]:
        sql = (
            "SELECT l.name, i.name "
            "FROM pragma_index_list(:name, 'main') l, pragma_index_info(l.name, 'main') i "
            "WHERE l.\"unique\" AND l.origin <> 'pk' AND NOT l.partial ORDER BY l.seq DESC, i.seqno"
        )
        groups: dict[str, list[str]] = {}
        for index, found in session.fetch(sql, name):
            groups.setdefault(index, []).append("" if found is None else declared.get(found.lower(), found))
        return tuple(tuple(group) for group in groups.values() if all(group))

    def schema_changes(self, session: SqlSession, table: TableSpec) -> list[TableChange]:
        return []

    # -------------------------------------------------------------- staging

    def row_check(self, table: TableSpec) -> RowCheck | None:
        return UnstorableValueCheck(tuple((c.name, c.type) for c in table.columns))

    def staged_select(self, session: SqlSession, rows: StagedRows, table: TableSpec) -> exp.Expr:
        assert isinstance(session, SQLiteSession) and isinstance(rows.staging, SQLiteStaging)
        paths = [rows.staging.path(part.part) for part in rows.parts]
        if len(paths) > _MAX_ATTACHED or not paths:
            paths = [self._merge_parts(rows.staging, rows.parts)]
        names = [f"ematix_part_{number}" for number in range(len(paths))]
        for path, name in zip(paths, names, strict=True):
            session.attach(path, name)
        selects = [
            exp.select(
                *[
                    exp.alias_(exp.column(f"c{number}"), c.name, quoted=True)
                    for number, c in enumerate(table.columns)
                ]
            ).from_(exp.Table(this=identifier(TABLE), db=identifier(name)))
            for name in names
        ]
        return selects[0] if len(selects) == 1 else exp.union(*selects, distinct=False)

    def _merge_parts(self, staging: SQLiteStaging, parts: tuple[StagedPart, ...]) -> str:
        """Copy many parts, or none, into one new file."""
        path = staging.path("merged")
        if os.path.exists(path):
            os.unlink(path)
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as merged:
                merged.execute("PRAGMA synchronous = OFF")
                merged.execute(part_table_sql(staging.columns))
                for part in parts:
                    merged.execute("ATTACH ? AS one", (staging.path(part.part),))
                    merged.execute(f"INSERT INTO main.{TABLE} SELECT * FROM one.{TABLE}")
                    merged.execute("DETACH one")
        except sqlite3.Error as error:
            raise target_error(error, self.file, []) from error
        return path

    # -------------------------------------------------------------- the load

    def computed_select(self, session: SqlSession, sql: str, table: TableSpec) -> exp.Expr:
        return self.dialect.select_canonical(verbatim(sql), table.columns)

    def require_orderable(self, data_type: DataType) -> None:
        require_orderable_type(data_type)


def _refuse_boolean_names(table: TableSpec) -> None:
    """Refuse columns named true or false: SQLite renames them in the result of a subquery."""
    for name in table.column_names:
        if name.lower() in ("true", "false"):
            raise SchemaMismatch(
                f"SQLite cannot load a column called {name!r}: its queries lose that name",
                where=table.where,
                state="nothing was touched",
                next_step="give the column another name, with column_map= or AS in the source SQL",
            )
