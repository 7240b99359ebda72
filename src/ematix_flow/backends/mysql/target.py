"""MySQL as a target: its sessions, catalog, lock and staging."""

from __future__ import annotations

import datetime as dt
import uuid
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.base import (
    LedgerEntry,
    LiveTable,
    Load,
    LoadResult,
    LoadRows,
    RowCheck,
    SameDatabaseRows,
    StagedRows,
    Staging,
    TableChange,
    TablePlan,
)
from ematix_flow.backends.mysql.catalog import read_collations, read_live_table
from ematix_flow.backends.mysql.create_table import (
    control_tables_sql,
    require_types,
    row_number_column,
    table_options,
    with_key_lengths,
)
from ematix_flow.backends.mysql.dialect import MySQLDialect
from ematix_flow.backends.mysql.exact_casts import exact_select
from ematix_flow.backends.mysql.failures import as_source_failure, is_conflict, is_denied
from ematix_flow.backends.mysql.lock import pipeline_lock
from ematix_flow.backends.mysql.names import require_names
from ematix_flow.backends.mysql.row_text import require_storable
from ematix_flow.backends.mysql.server import MySQLServer
from ematix_flow.backends.mysql.session import MySQLSession, open_session
from ematix_flow.backends.mysql.source import prepare_statement
from ematix_flow.backends.mysql.staging import MySQLStaging
from ematix_flow.backends.mysql.staging_table import (
    create_staging_sql,
    new_staging,
    new_table_name,
    select_staged_rows,
    staging_prefix,
)
from ematix_flow.backends.sql.alterations import alter_table_changes
from ematix_flow.backends.sql.control_tables import CONTROL_SCHEMA, LEDGER, STAGING_SCHEMA, WATERMARKS
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.backends.sql.table_diff import TableDiff
from ematix_flow.backends.sql_servers.lock_session import LockSession
from ematix_flow.backends.sql_servers.target import SqlServerTarget
from ematix_flow.errors import FlowError, TargetFailed
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies.matching import Matching

if TYPE_CHECKING:
    import pyarrow as pa

_SCHEMA_EXISTS = "SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %(schema)s"
_LEFTOVERS = """
SELECT TABLE_NAME FROM information_schema.TABLES
WHERE TABLE_SCHEMA = %(schema)s AND LEFT(TABLE_NAME, CHAR_LENGTH(%(prefix)s)) = %(prefix)s ORDER BY TABLE_NAME
"""


class MySQLTarget(SqlServerTarget[MySQLSession]):
    """The ledger serves all databases of the server, so lock and ledger name a target together with the
    connection's database.
    """

    dialect: MySQLDialect
    transactional_ddl = False
    schema_exists_sql = _SCHEMA_EXISTS
    leftovers_sql = _LEFTOVERS
    drop_timeout_sql = "SET SESSION lock_wait_timeout = 3"

    def __init__(self, server: MySQLServer, dialect: MySQLDialect) -> None:
        super().__init__()
        self.server = server
        self.address = server.address
        self.dialect = dialect

    def session(self) -> AbstractContextManager[MySQLSession]:
        return open_session(self.address)

    def warnings(self) -> tuple[str, ...]:
        if self.server.facts.local_infile:
            return ()
        return (
            "the server forbids LOAD DATA LOCAL: rows go to staging as INSERTs, which is slower; "
            "to allow it:  SET GLOBAL local_infile = ON",
        )

    def hold_lock(
        self, pipeline: str, target: str, run_id: uuid.UUID
    ) -> AbstractContextManager[LockSession[MySQLSession]]:
        return pipeline_lock(self.address, pipeline, target, run_id)

    def is_conflict(self, error: FlowError) -> bool:
        return is_conflict(error)

    def exact_sql(self, session: MySQLSession, sql: str, table: TableSpec) -> str:
        fields = prepare_statement(session.connection, self.address.name, sql, sql)
        return exact_select(fields, sql, table, self.dialect)

    def ledger_name(self, target: str) -> str:
        """The target's name in the ledger: two databases of a server may have tables with the same name."""
        return f"{self.address.database or ''}/{target}"

    # -------------------------------------------------------------- tables

    def read_live_table(self, session: SqlSession, table: TableSpec) -> LiveTable | None:
        return read_live_table(session, self.dialect, table)

    def schema_changes(self, session: SqlSession, table: TableSpec) -> list[TableChange]:
        if table.schema is None or self.schema_exists(session, table.schema):
            return []
        return [TableChange("create_schema", table.schema, self._create_schema_sql(table.schema))]

    def _create_schema_sql(self, schema: str) -> str:
        name = self.dialect.quote(schema)
        return f"CREATE DATABASE IF NOT EXISTS {name} CHARACTER SET utf8mb4 COLLATE {self.dialect.collation}"

    def plan_in_session(
        self, session: SqlSession, table: TableSpec, live: LiveTable | None, matching: Matching | None
    ) -> TablePlan:
        require_names(table)
        require_types(table, self.dialect)
        return super().plan_in_session(session, with_key_lengths(table), live, matching)

    def _plan_one_table(
        self, session: SqlSession, wanted: TableSpec, live: LiveTable | None, matching: Matching
    ) -> TablePlan:
        plan = super()._plan_one_table(session, wanted, live, matching)
        changes = tuple(
            replace(c, sql=c.sql + table_options(self.dialect)) if c.action == "create_table" else c
            for c in plan.changes
        )
        return replace(plan, changes=changes)

    def alterations(self, session: SqlSession, diff: TableDiff) -> list[TableChange]:
        return alter_table_changes(self.dialect.with_collations(read_collations(session, diff.wanted)), diff)

    def change_table(self, table: TableSpec, plan: TablePlan) -> None:
        """Run the statements one by one: each commits by itself and can be repeated."""
        with self.session() as session:
            if None in [self.read_live_table(session, control) for control in (LEDGER, WATERMARKS)]:
                self._create_database(session, CONTROL_SCHEMA)
                for sql in control_tables_sql(self.dialect):
                    session.execute(sql)
            for change in plan.changes:
                self._make_change_once(session, table, change)

    def _make_change_once(self, session: SqlSession, table: TableSpec, change: TableChange) -> None:
        """Make one change; if another process has already made it, this is not an error."""
        if change.action == "create_schema":
            self._create_database(session, change.subject)
            return
        try:
            session.execute(change.sql)
        except FlowError as error:
            if not is_conflict(error):
                raise
            left = self.plan_in_session(session, table, self.read_live_table(session, table), None)
            if (change.action, change.subject) in [(c.action, c.subject) for c in left.changes]:
                raise

    def _create_database(self, session: SqlSession, schema: str) -> None:
        if self.schema_exists(session, schema):
            return
        try:
            session.execute(self._create_schema_sql(schema))
        except FlowError as error:
            if not is_denied(error):
                raise
            name = self.dialect.quote(schema)
            raise TargetFailed(
                f"database {schema!r} is missing, and the user {self.address.user!r} may not create it",
                state="the target is unchanged",
                next_step=f"ask an administrator to run  CREATE DATABASE {name};  and grant all rights on it",
            ) from error.__cause__

    # -------------------------------------------------------------- ledger and watermark

    def watermark(self, pipeline: str, target: str, column: str) -> Watermark | None:
        return super().watermark(pipeline, self.ledger_name(target), column)

    def forget_batches(self, pipeline: str, target: str, before: dt.datetime) -> None:
        super().forget_batches(pipeline, self.ledger_name(target), before)

    def ledger(
        self, pipeline: str, target: str, *, run_id: str | None = None, limit: int = 100
    ) -> list[LedgerEntry]:
        found = super().ledger(pipeline, self.ledger_name(target), run_id=run_id, limit=limit)
        return [replace(entry, target=target) for entry in found]

    # -------------------------------------------------------------- staging and work tables

    def create_staging(self, load: Load, schema: pa.Schema) -> Staging:
        known = replace(load, target=self.ledger_name(load.target))
        staging = new_staging(self.address, known, schema, local_infile=self.server.facts.local_infile)
        with self.session() as session:
            self._create_database(session, STAGING_SCHEMA)
            session.execute(create_staging_sql(staging, load.plan.staged, self.dialect))
        return staging

    def row_check(self, table: TableSpec) -> RowCheck | None:
        kinds = {item.name: item.type.kind for item in table.columns}
        return partial(require_storable, kinds=kinds, offset=0)

    def staged_select(self, session: SqlSession, rows: StagedRows, table: TableSpec) -> exp.Expr:
        return select_staged_rows(rows, table, self.dialect)

    def staging_table(self, staging: Staging) -> str:
        assert isinstance(staging, MySQLStaging)
        return staging.table

    def staging_prefix(self, pipeline: str, target: str) -> str:
        return staging_prefix(pipeline, target)

    def create_work_table(self, session: SqlSession, load: Load, spec: TableSpec) -> exp.Table:
        """A real table: a statement cannot name a temporary one twice. `sweep_staging` drops leftovers."""
        self._create_database(session, STAGING_SCHEMA)
        table = self.dialect.table(STAGING_SCHEMA, new_table_name(load, f"_{spec.name}"))
        columns = self.work_columns(with_key_lengths(spec)) + (
            "" if spec.primary_key else row_number_column(self.dialect)
        )
        session.execute(f"CREATE TABLE {self.dialect.render(table)} ({columns}){table_options(self.dialect)}")
        return table

    # -------------------------------------------------------------- the one transaction

    def apply(self, load: Load, rows: LoadRows) -> LoadResult:
        """Apply the load; a transaction that conflicts with another session is rolled back and retried."""
        known = replace(load, target=self.ledger_name(load.target))
        try:
            if isinstance(rows, SameDatabaseRows):
                rows = self.with_exact_casts(known, rows)
            return self.retry_conflicts(lambda _: super(MySQLTarget, self).apply(known, rows))
        except FlowError as error:
            blamed = as_source_failure(error) if isinstance(rows, SameDatabaseRows) else None
            raised = error if blamed is None else blamed
            raised.state = self._state_after_failure(known, raised.state)
            if blamed is not None:
                raise blamed from error.__cause__
            raise

    def _state_after_failure(self, load: Load, state: str | None) -> str | None:
        """The state after a failed load: MySQL has committed each change of a table and undoes none."""
        planned = () if load.dry_run else load.plan.table_plan.changes
        if not planned or (state is not None and "unchanged" not in state):
            return state
        try:
            with self.session() as session:
                live = self.read_live_table(session, load.table)
                left = self.plan_in_session(session, load.table, live, load.plan.matching).changes
        except FlowError:
            return f"no row was loaded; whether {load.table.label} was changed is unknown"
        needed = {(change.action, change.subject) for change in left}
        made = [change for change in planned if (change.action, change.subject) not in needed]
        if not made:
            return state
        changes = ", ".join(f"{change.action.replace('_', ' ')} {change.subject}" for change in made)
        return f"no row was loaded; MySQL has already committed these changes, and they stay: {changes}"
