"""PostgreSQL as a target: its sessions, catalog, lock and staging."""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.base import (
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
from ematix_flow.backends.postgres.address import PostgresAddress
from ematix_flow.backends.postgres.catalog import read_live_table
from ematix_flow.backends.postgres.dialect import PostgresDialect
from ematix_flow.backends.postgres.exact_casts import exact_select
from ematix_flow.backends.postgres.failures import (
    as_source_failure,
    is_conflict,
    with_possible_columns,
)
from ematix_flow.backends.postgres.lock import pipeline_lock
from ematix_flow.backends.postgres.row_check import zero_character_check
from ematix_flow.backends.postgres.session import PostgresSession, open_session
from ematix_flow.backends.postgres.staging import PostgresStaging
from ematix_flow.backends.postgres.staging_table import (
    create_staging_sql,
    new_staging,
    select_staged_rows,
    staging_prefix,
)
from ematix_flow.backends.sql.control_tables import STAGING_SCHEMA
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.backends.sql_servers.lock_session import LockSession
from ematix_flow.backends.sql_servers.staging_tables import staging_name
from ematix_flow.backends.sql_servers.target import SqlServerTarget
from ematix_flow.errors import FlowError, RowRejected
from ematix_flow.spec.tables import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa

_MATCHING_MODES = ("merge", "scd2")  # their statements join staged rows with the table
_SCHEMA_EXISTS = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s"
_LEFTOVERS = """
SELECT c.relname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'r' AND starts_with(c.relname, %(prefix)s)
ORDER BY c.relname
"""


class PostgresTarget(SqlServerTarget[PostgresSession]):
    dialect: PostgresDialect
    schema_exists_sql = _SCHEMA_EXISTS
    leftovers_sql = _LEFTOVERS
    drop_timeout_sql = "SELECT set_config('lock_timeout', '3s', false)"

    def __init__(self, address: PostgresAddress) -> None:
        super().__init__()
        self.address = address
        self.dialect = PostgresDialect()

    def session(self) -> AbstractContextManager[PostgresSession]:
        return open_session(self.address)

    def hold_lock(
        self, pipeline: str, target: str, run_id: uuid.UUID
    ) -> AbstractContextManager[LockSession[PostgresSession]]:
        return pipeline_lock(self.address, pipeline, target, run_id)

    def is_conflict(self, error: FlowError) -> bool:
        return is_conflict(error)

    def exact_sql(self, session: PostgresSession, sql: str, table: TableSpec) -> str:
        return exact_select(session.connection, self.address.name, sql, table)

    # -------------------------------------------------------------- tables

    def read_live_table(self, session: SqlSession, table: TableSpec) -> LiveTable | None:
        return read_live_table(session, self.dialect, table)

    def schema_changes(self, session: SqlSession, table: TableSpec) -> list[TableChange]:
        if table.schema is None or self.schema_exists(session, table.schema):
            return []
        sql = f"CREATE SCHEMA IF NOT EXISTS {self.dialect.quote(table.schema)}"
        return [TableChange("create_schema", table.schema, sql)]

    def change_table(self, table: TableSpec, plan: TablePlan) -> None:
        """When two processes create the same table, the one that loses the race plans again."""

        def change(attempt: int) -> None:
            again = attempt > 0 and plan.changes
            wanted = self.plan_table(table, self.inspect(table)) if again else plan
            super(PostgresTarget, self).change_table(table, wanted)

        self.retry_conflicts(change)

    # -------------------------------------------------------------- staging

    def create_staging(self, load: Load, schema: pa.Schema) -> Staging:
        staging = new_staging(self.address, load, schema)
        with self.session() as session:
            self._create_staging_schema(session)
            session.execute(create_staging_sql(staging, self.dialect))
        return staging

    def row_check(self, table: TableSpec) -> RowCheck | None:
        return zero_character_check(table)

    def _create_staging_schema(self, session: SqlSession) -> None:
        create = f"CREATE SCHEMA IF NOT EXISTS {self.dialect.quote(STAGING_SCHEMA)}"
        if not self.schema_exists(session, STAGING_SCHEMA):
            self.retry_conflicts(lambda _: session.execute(create))

    def staged_select(self, session: SqlSession, rows: StagedRows, table: TableSpec) -> exp.Expr:
        return select_staged_rows(rows, table, self.dialect)

    def staging_table(self, staging: Staging) -> str:
        assert isinstance(staging, PostgresStaging)
        return staging.table

    def staging_prefix(self, pipeline: str, target: str) -> str:
        return staging_prefix(pipeline, target)

    # -------------------------------------------------------------- the one transaction

    def apply(self, load: Load, rows: LoadRows) -> LoadResult:
        """Apply the load; a transaction that conflicts with another session is rolled back and retried."""
        try:
            if isinstance(rows, SameDatabaseRows):
                rows = self.with_exact_casts(load, rows)
            elif isinstance(rows, StagedRows) and _reads_staging_often(load):
                self._analyze_staging(load, rows)
            return self.retry_conflicts(lambda _: super(PostgresTarget, self).apply(load, rows))
        except FlowError as error:
            blamed = as_source_failure(error) if isinstance(rows, SameDatabaseRows) else None
            if blamed is not None:
                raise blamed from error.__cause__
            if isinstance(error, RowRejected):
                raise with_possible_columns(error, load.table) from error.__cause__
            raise

    def lock_for_change(self, session: SqlSession, load: Load) -> None:
        """Lock before the transaction takes its snapshot, so that it sees all changes of other sessions."""
        table = load.table
        if ("create_table", table.label) not in [(c.action, c.subject) for c in load.plan.table_plan.changes]:
            name = self.dialect.render(self.dialect.table(table.schema, table.name))
            session.execute(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")

    def _analyze_staging(self, load: Load, rows: StagedRows) -> None:
        """Give the optimiser statistics of the new table: how it is joined depends on its row count."""
        assert isinstance(rows.staging, PostgresStaging)
        with self.apply_session(load) as session:
            session.execute(f"ANALYZE {staging_name(rows.staging.table, self.dialect)}")


def _reads_staging_often(load: Load) -> bool:
    """Whether statements of the load join the staged rows with the table."""
    return load.plan.mode in _MATCHING_MODES or load.plan.range is not None
