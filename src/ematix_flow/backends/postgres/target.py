"""PostgreSQL as a target: its sessions, catalog, lock and staging."""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeVar

from sqlglot import exp

from ematix_flow.backends.base import (
    LiveTable,
    Load,
    LoadResult,
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
    UNCHANGED,
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
    staging_name,
    staging_prefix,
)
from ematix_flow.backends.sql.control_tables import STAGING_SCHEMA
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.backends.sql_servers.lock_session import LockSession
from ematix_flow.errors import FlowError, RowRejected, SourceFailed
from ematix_flow.spec.tables import TableSpec

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_log = logging.getLogger(__name__)
_TRIES = 5
_MATCHING_MODES = ("merge", "scd2")  # their statements join staged rows with the table
_SCHEMA_EXISTS = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s"
_LEFTOVERS = """
SELECT c.relname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'r' AND starts_with(c.relname, %(prefix)s)
ORDER BY c.relname
"""


class PostgresTarget(RelationalTarget):
    """A load commits in the session that holds the pipeline's lock.

    So a lost connection ends the lock and the open transaction together: no second run can start while
    another still commits.
    """

    dialect: PostgresDialect

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self.dialect = PostgresDialect()
        self._lock_sessions: dict[tuple[str, str], LockSession[PostgresSession]] = {}

    def session(self) -> AbstractContextManager[PostgresSession]:
        return open_session(self.address)

    @contextmanager
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> Iterator[None]:
        with pipeline_lock(self.address, pipeline, target, run_id) as held:
            self._lock_sessions[pipeline, target] = held
            try:
                yield
            finally:
                del self._lock_sessions[pipeline, target]

    # -------------------------------------------------------------- tables

    def read_live_table(self, session: SqlSession, table: TableSpec) -> LiveTable | None:
        return read_live_table(session, self.dialect, table)

    def schema_changes(self, session: SqlSession, table: TableSpec) -> list[TableChange]:
        if table.schema is None or session.fetch(_SCHEMA_EXISTS, {"schema": table.schema}):
            return []
        sql = f"CREATE SCHEMA IF NOT EXISTS {self.dialect.quote(table.schema)}"
        return [TableChange("create_schema", table.schema, sql)]

    def change_table(self, table: TableSpec, plan: TablePlan) -> None:
        """When two processes create the same table, the one that loses the race plans again."""

        def change(attempt: int) -> None:
            again = attempt > 0 and plan.changes
            wanted = self.plan_table(table, self.inspect(table)) if again else plan
            super(PostgresTarget, self).change_table(table, wanted)

        _retry_conflicts(change)

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
        if not session.fetch(_SCHEMA_EXISTS, {"schema": STAGING_SCHEMA}):
            _retry_conflicts(lambda _: session.execute(create))

    def staged_select(self, session: SqlSession, rows: StagedRows, table: TableSpec) -> exp.Expr:
        return select_staged_rows(rows, table, self.dialect)

    def drop_staging(self, staging: Staging) -> None:
        """Drop it. A failure is a warning, because the load has committed; the next run drops it."""
        assert isinstance(staging, PostgresStaging)
        try:
            with self.session() as session:
                self._drop_staging_table(session, staging.table)
        except FlowError as error:
            _log.warning("staging table %s stays until the next run: %s", staging.table, error.what)

    def sweep_staging(self, pipeline: str, target: str) -> list[str]:
        prefix = staging_prefix(pipeline, target)
        with self.session() as session:
            found = session.fetch(_LEFTOVERS, {"schema": STAGING_SCHEMA, "prefix": prefix})
            return [
                f"{STAGING_SCHEMA}.{name}" for (name,) in found if self._drop_staging_table(session, name)
            ]

    def _drop_staging_table(self, session: SqlSession, table: str) -> bool:
        """False when a task of a dead run still writes to it: waiting would delay this run."""
        session.execute("SELECT set_config('lock_timeout', '3s', false)")
        try:
            session.execute(f"DROP TABLE IF EXISTS {staging_name(table, self.dialect)}")
        except FlowError as error:
            if not is_conflict(error):
                raise
            _log.warning("staging table %s is still written to and stays until the next run", table)
            return False
        return True

    # -------------------------------------------------------------- the one transaction

    def apply_session(self, load: Load) -> AbstractContextManager[SqlSession]:
        held = self._lock_sessions.get((load.pipeline, load.target))
        return held.use() if held is not None else self.session()

    def apply(self, load: Load, rows: SameDatabaseRows | StagedRows) -> LoadResult:
        """Apply the load; a transaction that conflicts with another session is rolled back and retried."""
        try:
            if isinstance(rows, SameDatabaseRows):
                rows = self._with_exact_casts(load, rows)
            elif load.plan.mode in _MATCHING_MODES or load.plan.range is not None:
                self._analyze_staging(load, rows)
            return _retry_conflicts(lambda _: super(PostgresTarget, self).apply(load, rows))
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

    def _with_exact_casts(self, load: Load, rows: SameDatabaseRows) -> SameDatabaseRows:
        with self.apply_session(load) as session:
            assert isinstance(session, PostgresSession)
            try:
                select = exact_select(session.connection, self.address.name, rows.sql, load.table)
            except SourceFailed as error:
                error.state = error.state or UNCHANGED
                raise
        return SameDatabaseRows(select)


def _retry_conflicts(action: Callable[[int], T]) -> T:
    for attempt in range(_TRIES - 1):
        try:
            return action(attempt)
        except FlowError as error:
            if not is_conflict(error):
                raise
        time.sleep(random.uniform(0, 0.05 * (attempt + 1)))
    return action(_TRIES - 1)
