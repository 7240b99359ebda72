"""A database server as a target: what PostgreSQL and MySQL share, apart from SQL."""

from __future__ import annotations

import logging
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, TypeVar

from ematix_flow.backends.base import Load, SameDatabaseRows, Staging
from ematix_flow.backends.sql.control_tables import STAGING_SCHEMA
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.backends.sql_servers.failures import UNCHANGED
from ematix_flow.backends.sql_servers.lock_session import LockSession, S
from ematix_flow.backends.sql_servers.retries import retry_conflicts
from ematix_flow.backends.sql_servers.staging_tables import staging_name
from ematix_flow.errors import FlowError, SourceFailed
from ematix_flow.spec.tables import TableSpec

T = TypeVar("T")
_log = logging.getLogger(__name__)


class SqlServerTarget(RelationalTarget, Generic[S]):
    """A load commits in the session that holds the pipeline's lock.

    So a lost connection ends the lock and the open transaction together: no second run can start while
    another still commits.
    """

    schema_exists_sql: str  # with the parameter ``schema``
    leftovers_sql: str  # the tables of ``schema`` whose names begin with ``prefix``
    drop_timeout_sql: str  # lets a DROP TABLE wait for a few seconds only

    def __init__(self) -> None:
        self._lock_sessions: dict[tuple[str, str], LockSession[S]] = {}

    @abstractmethod
    def session(self) -> AbstractContextManager[S]: ...

    @abstractmethod
    def hold_lock(
        self, pipeline: str, target: str, run_id: uuid.UUID
    ) -> AbstractContextManager[LockSession[S]]:
        """Hold the pipeline's lock; PipelineLocked when another run holds it."""

    @abstractmethod
    def is_conflict(self, error: FlowError) -> bool:
        """Whether the error is a conflict with another session, which a retry may resolve."""

    @abstractmethod
    def exact_sql(self, session: S, sql: str, table: TableSpec) -> str:
        """The user's SQL with casts that refuse what the server would round."""

    @abstractmethod
    def staging_prefix(self, pipeline: str, target: str) -> str:
        """The prefix of all staging and work tables of this pipeline on this target."""

    def ledger_name(self, target: str) -> str:
        """The target's name in lock and ledger."""
        return target

    # -------------------------------------------------------------- lock and session

    @contextmanager
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> Iterator[None]:
        key = (pipeline, self.ledger_name(target))
        with self.hold_lock(*key, run_id) as held:
            self._lock_sessions[key] = held
            try:
                yield
            finally:
                del self._lock_sessions[key]

    def apply_session(self, load: Load) -> AbstractContextManager[S]:
        held = self._lock_sessions.get((load.pipeline, load.target))
        return held.use() if held is not None else self.session()

    def retry_conflicts(self, action: Callable[[int], T]) -> T:
        return retry_conflicts(action, self.is_conflict)

    def with_exact_casts(self, load: Load, rows: SameDatabaseRows) -> SameDatabaseRows:
        with self.apply_session(load) as session:
            try:
                return SameDatabaseRows(self.exact_sql(session, rows.sql, load.table))
            except SourceFailed as error:
                error.state = error.state or UNCHANGED
                raise

    # -------------------------------------------------------------- staging

    def schema_exists(self, session: SqlSession, schema: str) -> bool:
        return bool(session.fetch(self.schema_exists_sql, {"schema": schema}))

    def drop_staging(self, staging: Staging) -> None:
        """Drop it. A failure is a warning, because the load has committed; the next run drops it."""
        table = self.staging_table(staging)
        try:
            with self.session() as session:
                self._drop_staging_table(session, table)
        except FlowError as error:
            _log.warning("staging table %s stays until the next run: %s", table, error.what)

    @abstractmethod
    def staging_table(self, staging: Staging) -> str:
        """The name of its table."""

    def sweep_staging(self, pipeline: str, target: str) -> list[str]:
        prefix = self.staging_prefix(pipeline, self.ledger_name(target))
        with self.session() as session:
            found = session.fetch(self.leftovers_sql, {"schema": STAGING_SCHEMA, "prefix": prefix})
            return [
                f"{STAGING_SCHEMA}.{name}" for (name,) in found if self._drop_staging_table(session, name)
            ]

    def _drop_staging_table(self, session: SqlSession, table: str) -> bool:
        """False when a task of a dead run still writes to it: waiting would delay this run."""
        session.execute(self.drop_timeout_sql)
        try:
            session.execute(f"DROP TABLE IF EXISTS {staging_name(table, self.dialect)}")
        except FlowError as error:
            if not self.is_conflict(error):
                raise
            _log.warning("staging table %s is still written to and stays until the next run", table)
            return False
        return True
