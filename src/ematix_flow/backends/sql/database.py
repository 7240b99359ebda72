"""What a SQL database provides to a load: sessions, tables, the ledger's tables and work tables.

The load's transaction (`load_transaction`) calls this, and nothing here calls the transaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sqlglot import exp

from ematix_flow import fault_points
from ematix_flow.backends.base import (
    LiveTable,
    Load,
    StagedRows,
    TableChange,
    TablePlan,
)
from ematix_flow.backends.sql.alterations import alter_table_changes
from ematix_flow.backends.sql.control_tables import (
    WATERMARKS,
    delete_control_sql,
    select_control_sql,
)
from ematix_flow.backends.sql.create_table import create_table_sql
from ematix_flow.backends.sql.scd2_conversion import (
    companion_deletes_sql,
    first_version_values,
    marks_deleted_rows,
)
from ematix_flow.backends.sql.session import SqlDialect, SqlSession
from ematix_flow.backends.sql.table_diff import TableDiff, compare_tables
from ematix_flow.backends.sql.table_plans import (
    join_plans,
    matching_by_key,
    new_table_lines,
    plan_from_diff,
    remaining_changes,
)
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import VALID_TO, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies.matching import Matching
from ematix_flow.strategies.sql import identifier, verbatim, with_alias


class SqlDatabase(ABC):
    """A subclass provides dialect and sessions, reads live tables, and selects staged rows."""

    dialect: SqlDialect
    transactional_ddl = True  # False when a change of a table commits the open transaction

    @abstractmethod
    def session(self) -> AbstractContextManager[SqlSession]:
        """A session that the context manager closes at the end."""

    def read_session(self) -> AbstractContextManager[SqlSession]:
        """A session for reading: it changes nothing and does not create a database file that is missing."""
        return self.session()

    @abstractmethod
    def staged_select(self, session: SqlSession, rows: StagedRows, table: TableSpec) -> exp.Expr:
        """SELECT of the declared columns, cast to their types, from the parts. Not in a transaction."""

    def computed_select(self, session: SqlSession, sql: str, table: TableSpec) -> exp.Expr:
        """SELECT of the declared columns from SQL that the database computes itself."""
        return exp.select("*").from_(with_alias(verbatim(sql), "rows"))

    # -------------------------------------------------------------- tables

    @abstractmethod
    def read_live_table(self, session: SqlSession, table: TableSpec) -> LiveTable | None:
        """The live table, or None when there is none."""

    @abstractmethod
    def schema_changes(self, session: SqlSession, table: TableSpec) -> list[TableChange]:
        """CREATE SCHEMA when the table's schema is missing."""

    def plan_in_session(
        self, session: SqlSession, table: TableSpec, live: LiveTable | None, matching: Matching | None
    ) -> TablePlan:
        matching = matching or matching_by_key(table)
        found = self._plan_one_table(session, table.with_load_columns(), live, matching)
        companion = table.companion()
        if companion is None:
            return found
        extra = self._plan_one_table(session, companion, self.read_live_table(session, companion), matching)
        has_events = table.keeps == "events"  # the companion of changes has positions only
        if live is None or not (has_events and found.converts_to_scd2 and marks_deleted_rows(table, live)):
            return join_plans(found, extra, companion.name)
        ends = first_version_values(self.dialect, table.with_load_columns(), live, matching)[VALID_TO]
        marks = companion_deletes_sql(self.dialect, table, companion, matching.keys, ends)
        extra = replace(extra, changes=(*extra.changes, TableChange("fill", companion.label, marks)))
        return join_plans(found, extra, companion.name, before_fill=table.label)

    def _plan_one_table(
        self, session: SqlSession, wanted: TableSpec, live: LiveTable | None, matching: Matching
    ) -> TablePlan:
        if live is not None:
            diff = compare_tables(
                self.dialect, wanted, live, matching, lambda query: session.fetch(self.dialect.render(query))
            )
            return plan_from_diff(diff, lambda: self.alterations(session, diff))
        changes = self.schema_changes(session, wanted)
        changes.append(TableChange("create_table", wanted.label, self.create_sql(wanted)))
        return TablePlan(tuple(changes), diff=new_table_lines(self.dialect, wanted))

    def create_sql(self, table: TableSpec) -> str:
        """The statement that creates the table unless it exists."""
        return create_table_sql(self.dialect, table)

    def alterations(self, session: SqlSession, diff: TableDiff) -> list[TableChange]:
        """The statements that make the changes of ``diff``; CannotAlter when this database has none."""
        return alter_table_changes(self.dialect, diff)

    # -------------------------------------------------------------- changes of the load's table

    def make_planned_changes(self, session: SqlSession, load: Load) -> None:
        """Make the planned changes. Creating a table also deletes its old watermarks and positions."""
        due = self.changes_to_make(session, load)
        new_tables = [change.subject for change in due if change.action == "create_table"]
        created = load.table.label in new_tables
        positions = load.table.companion() if load.table.keeps_changes else None
        if created and positions is not None and positions.label not in new_tables:
            # before the table is there: if a change commits by itself, the next try must come here again
            kept = self.dialect.table(positions.schema, positions.name)
            session.execute(self.dialect.render(exp.Delete(this=kept)))
        if created and self.control_table_exists(session, WATERMARKS):
            gone = delete_control_sql(self.dialect, WATERMARKS, ["pipeline", "target"])
            session.execute(gone, {"pipeline": load.pipeline, "target": load.target})
        for change in due:
            self.make_change(session, load.table, change)
            fault_points.point("apply.table_changed")

    def changes_to_make(self, session: SqlSession, load: Load) -> Sequence[TableChange]:
        """Compare again inside the transaction: another process may have made the changes since the plan."""
        if not load.plan.table_plan.changes:
            return ()
        self.lock_for_change(session, load)
        live = self.read_live_table(session, load.table)
        return remaining_changes(load, self.plan_in_session(session, load.table, live, load.plan.matching))

    def make_change(self, session: SqlSession, table: TableSpec, change: TableChange) -> None:
        """Make one planned change of the table."""
        session.execute(change.sql)

    def lock_for_change(self, session: SqlSession, load: Load) -> None:
        """Lock the table until the commit, where the transaction alone does not protect it."""
        return

    # -------------------------------------------------------------- ledger and watermark

    def control_table_exists(self, session: SqlSession, control: TableSpec) -> bool:
        return self.read_live_table(session, control) is not None

    def read_watermark(
        self, session: SqlSession, pipeline: str, target: str, column: str
    ) -> Watermark | None:
        sql = select_control_sql(
            self.dialect, WATERMARKS, ["value_type", "value"], ["pipeline", "target", "column_name"]
        )
        rows = session.fetch(sql, {"pipeline": pipeline, "target": target, "column_name": column})
        return Watermark.decode(column, rows[0][0], rows[0][1]) if rows else None

    def require_orderable(self, data_type: DataType) -> None:
        """Refuse a watermark type whose values this database cannot order."""
        return

    def bind(self, value: Any, data_type: DataType) -> Any:
        """A Python value in the form that the driver takes as a parameter."""
        return value

    # -------------------------------------------------------------- work tables

    def create_work_table(self, session: SqlSession, load: Load, spec: TableSpec) -> exp.Table:
        """Create a temporary table, which ends with the session at the latest."""
        table = exp.Table(this=identifier(internal_name(spec.name)))
        self.drop_work_table(session, table)  # a session that serves several loads may still have it
        session.execute(f"CREATE TEMPORARY TABLE {self.dialect.render(table)} ({self.work_columns(spec)})")
        return table

    def work_columns(self, spec: TableSpec) -> str:
        quote = self.dialect.quote
        lines = [f"{quote(c.name)} {self.dialect.native_type(c.type)}" for c in spec.columns]
        if spec.primary_key:
            lines.append(f"PRIMARY KEY ({', '.join(quote(k) for k in spec.primary_key)})")
        return ", ".join(lines)

    def drop_work_table(self, session: SqlSession, table: exp.Table) -> None:
        session.execute(f"DROP TABLE IF EXISTS {self.dialect.render(table)}")
