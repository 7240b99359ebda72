"""The run log in a SQL database, through SQLAlchemy Core.

`SqlRunLog` knows no particular database: what differs between them is the engine that `open_store`
makes. Transactions are one statement long, so that many processes share a log.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from ematix_flow import faults
from ematix_flow.errors import ConfigError, UsageError
from ematix_flow.state.records import (
    RunRecord,
    RunStatus,
    aware_utc,
    check_finished,
    masked_metrics,
    shown_text,
    utc_now,
)
from ematix_flow.state.root import private_directory
from ematix_flow.state.runlog import URL_VARIABLE, RunLog, RunLogLocation, no_such_run, warn_once
from ematix_flow.state.runlog_tables import is_current, migrate, runs, stored_version
from ematix_flow.state.slots import SlotStore
from ematix_flow.state.slots_memory import MemorySlots
from ematix_flow.state.slots_sql import SqlSlots
from ematix_flow.state.sql_failures import own_words
from ematix_flow.state.sqlite_file import BUSY_SECONDS, begin, sqlite_engine, take_over_transactions

MOST_RUNNING = 100

_FIELDS = tuple(field.name for field in fields(RunRecord))
_NEWEST_FIRST = (runs.c.started_at.desc(), runs.c.run_id.desc())

_in_memory: dict[str, sa.Engine] = {}
_slots_in_memory: dict[str, SlotStore] = {}
_in_memory_lock = threading.Lock()


class SqlRunLog(RunLog):
    """A run log in the database behind ``engine``, whose tables are made or migrated at once."""

    def __init__(
        self,
        engine: sa.Engine,
        location: str,
        *,
        schema: str | None = None,
        reader: sa.Engine | None = None,
    ) -> None:
        """``schema`` is where the tables are; ``reader`` the engine for questions, where that is another."""
        self.location = location
        named = {None: schema}
        self._engine = engine.execution_options(schema_translate_map=named)
        self._reader = (reader or engine).execution_options(schema_translate_map=named)
        try:
            with self._reader.connect() as connection:
                current = is_current(stored_version(connection, schema), location)
            if not current:
                with self._transaction() as connection:
                    migrate(connection, location, schema=schema)
        except SQLAlchemyError as error:
            raise _unavailable(location, error) from error

    def start(self, record: RunRecord) -> None:
        values = {name: getattr(record, name) for name in _FIELDS}
        try:
            with self._transaction() as connection:
                connection.execute(sa.insert(runs).values(values))
        except IntegrityError as error:
            raise UsageError(f"the run log already has a run {record.run_id!r}") from error
        except SQLAlchemyError as error:
            self._warn(f"the start of run {record.run_id}", error)

    def take_batch(self, run_id: str, batch: str, overdue: Sequence[str] = ()) -> None:
        taken = {"batch": batch, "overdue": list(overdue)}
        change = sa.update(runs).where(runs.c.run_id == run_id).values(taken)
        try:
            with self._transaction() as connection:
                connection.execute(change)
        except SQLAlchemyError as error:
            self._warn(f"the batch of run {run_id}", error)

    def finish(
        self,
        run_id: str,
        status: RunStatus,
        *,
        path: str | None = None,
        rows_read: int | None = None,
        rows_inserted: int | None = None,
        rows_updated: int | None = None,
        rows_deleted: int | None = None,
        rows_unchanged: int | None = None,
        source_from: str | None = None,
        source_to: str | None = None,
        error: BaseException | None = None,
        metrics: Mapping[str, Any] | None = None,
        finished_at: dt.datetime | None = None,
    ) -> bool:
        check_finished(status)
        told: dict[str, Any] = {
            "path": path,
            "rows_read": rows_read,
            "rows_inserted": rows_inserted,
            "rows_updated": rows_updated,
            "rows_deleted": rows_deleted,
            "rows_unchanged": rows_unchanged,
            "source_from": None if source_from is None else shown_text(source_from),
            "source_to": None if source_to is None else shown_text(source_to),
            "metrics": None if metrics is None else masked_metrics(metrics),
        }
        values = {name: value for name, value in told.items() if value is not None}
        # all three always: an earlier guess of someone who settled this run must not remain
        values["finished_at"] = aware_utc("finished_at", finished_at or utc_now())
        values["error_type"] = None if error is None else type(error).__name__
        values["error_message"] = None if error is None else shown_text(str(error))
        faults.point("runlog.before_finish")
        return self._end(run_id, status, values, from_status=("running", "interrupted"))

    def settle(self, run_id: str, status: RunStatus, reason: str) -> bool:
        check_finished(status)
        values = {"finished_at": utc_now(), "error_message": shown_text(reason)}
        return self._end(run_id, status, values, from_status=("running",))

    def add_metrics(self, run_id: str, metrics: Mapping[str, Any]) -> None:
        this = runs.c.run_id == run_id
        try:
            with self._transaction() as connection:
                there = connection.execute(sa.select(runs.c.metrics).where(this)).scalar()
                merged = {**(there or {}), **masked_metrics(metrics)}
                connection.execute(sa.update(runs).where(this).values(metrics=merged))
        except SQLAlchemyError as error:
            self._warn(f"a note on run {run_id}", error)

    def get(self, run_id: str) -> RunRecord:
        if not run_id:
            raise no_such_run(run_id)
        query = sa.select(runs).where(runs.c.run_id.startswith(run_id, autoescape=True)).limit(3)
        exact = sa.select(runs).where(runs.c.run_id == run_id)
        found = self._records(exact) or self._records(query)
        if not found:
            raise no_such_run(run_id)
        if len(found) > 1:
            names = ", ".join(record.run_id for record in found)
            raise UsageError(f"several runs begin with {run_id!r}: {names}", next_step="give more of the id")
        return found[0]

    def list(
        self,
        pipeline: str | None = None,
        status: RunStatus | None = None,
        limit: int = 20,
        since: dt.datetime | None = None,
    ) -> tuple[RunRecord, ...]:
        query = sa.select(runs).order_by(*_NEWEST_FIRST).limit(max(limit, 0))
        if pipeline is not None:
            query = query.where(runs.c.pipeline == pipeline)
        if status is not None:
            query = query.where(runs.c.status == status)
        if since is not None:
            query = query.where(runs.c.started_at >= aware_utc("since", since))
        return self._records(query)

    def running(self, pipeline: str, target: str | None = None) -> tuple[RunRecord, ...]:
        query = sa.select(runs).where(runs.c.pipeline == pipeline, runs.c.status == "running")
        if target is not None:
            query = query.where(runs.c.target == target)
        return self._records(query.order_by(*_NEWEST_FIRST).limit(MOST_RUNNING))

    def last_batch(self, pipeline: str) -> RunRecord | None:
        query = sa.select(runs).where(runs.c.pipeline == pipeline, runs.c.batch.is_not(None))
        found = self._records(query.order_by(*_NEWEST_FIRST).limit(1))
        return found[0] if found else None

    def close(self) -> None:
        if self.location.startswith("memory://"):
            return  # disposing of the engine would forget what another handle still reads
        self._engine.dispose()

    def _end(
        self, run_id: str, status: RunStatus, values: Mapping[str, Any], from_status: tuple[str, ...]
    ) -> bool:
        change = (
            sa.update(runs)
            .where(runs.c.run_id == run_id, runs.c.status.in_(from_status))
            .values(status=status, **values)
        )
        try:
            with self._transaction() as connection:
                return connection.execute(change).rowcount == 1
        except SQLAlchemyError as error:
            self._warn(f"the end of run {run_id}", error)
            return False

    def _records(self, query: sa.Select[Any]) -> tuple[RunRecord, ...]:
        try:
            with self._reader.connect() as connection:
                return tuple(RunRecord(**row) for row in connection.execute(query).mappings())
        except SQLAlchemyError as error:
            raise _unavailable(self.location, error) from error

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with self._engine.connect().execution_options(writes=True) as connection, connection.begin():
            yield connection

    def _warn(self, lost: str, error: SQLAlchemyError) -> None:
        message = f"the run log {self.location} did not take {lost}: {own_words(error)}. The run goes on"
        warn_once(self.location, message)


def open_store(location: RunLogLocation) -> SqlRunLog:
    """The log at this place. ConfigError when it cannot be opened."""
    if location.path is None:
        with _in_memory_lock:
            engine = _in_memory.get(location.name)
            if engine is None:
                engine = _in_memory[location.name] = _memory_engine()
            return SqlRunLog(engine, str(location))
    private_directory(location.path.parent)
    return SqlRunLog(sqlite_engine(location.path), str(location))


def open_slots_file(location: RunLogLocation) -> SlotStore:
    """The slots that lie in the same place as the log."""
    if location.path is None:
        with _in_memory_lock:
            return _slots_in_memory.setdefault(location.name, MemorySlots())
    private_directory(location.path.parent)
    return SqlSlots(sqlite_engine(location.path), str(location))


def _memory_engine() -> sa.Engine:
    # one connection, which is the database; a thread that wants it waits for the pool to have it back
    engine = sa.create_engine(
        "sqlite://",
        poolclass=sa.pool.QueuePool,
        pool_size=1,
        max_overflow=0,
        pool_timeout=BUSY_SECONDS,
        connect_args={"check_same_thread": False},
        hide_parameters=True,
    )
    sa.event.listen(engine, "connect", take_over_transactions)
    sa.event.listen(engine, "begin", begin)
    return engine


def _unavailable(location: str, error: SQLAlchemyError) -> ConfigError:
    return ConfigError(
        f"the run log {location} cannot be used: {own_words(error)}",
        next_step=f"make it readable and writable, or name another with --run-log or {URL_VARIABLE}",
    )
