"""The run log in a SQL database, through SQLAlchemy Core.

`SqlRunLog` knows no particular database: what differs between them is the engine that it is
given. Transactions are one statement long, so that many processes share a log.
"""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from ematix_flow.errors import UsageError
from ematix_flow.state.id_prefixes import find_by_prefix
from ematix_flow.state.runlog.base import (
    RunLog,
    no_such_run,
    take_until_success,
    warn_once,
)
from ematix_flow.state.runlog.history import RunCursor, RunFilter, RunPage, RunSummary
from ematix_flow.state.runlog.history_statements import (
    following_statement,
    newest_summaries,
    page_of_runs,
    recent_runs,
    rows_written_statement,
    slot_runs_statement,
)
from ematix_flow.state.runlog.records import RunRecord, RunStatus, bounded_output, bounded_text, mask_metrics
from ematix_flow.state.runlog.statements import (
    NEWEST_FIRST,
    keep_boundary_statement,
    listed_columns,
    needed_runs_statements,
    newest_runs_statements,
    next_pipeline_statement,
    purgeable_runs_statement,
)
from ematix_flow.state.runlog.table_store import RunLogTableStore
from ematix_flow.state.runlog.tables import (
    RUNS_SINCE,
    outputs,
    runs,
    version_too_old,
)
from ematix_flow.state.sql.failures import (
    database_message,
    is_timeout,
    open_connection,
    run_log_unavailable,
)
from ematix_flow.state.times import aware_utc

MOST_RUNNING = 100
_PURGE_PORTION = 500
_AWAY_SECONDS = (
    60.0  # after a failure, only the start and the end of a run are written before this time is over
)
_LAST_CHARACTER = "\U0010ffff"


class SqlRunLog(RunLogTableStore, RunLog):
    """A run log in a SQL database. A log without tables is empty; one of a much older version is refused."""

    since = RUNS_SINCE

    def __init__(self, engine: sa.Engine, location: str, **options: Any) -> None:
        """``options`` are those of `RunLogTableStore`."""
        super().__init__(engine, location, **options)
        self._away_until = 0.0

    def _refuse_older(self, version: int) -> None:
        if version:
            raise version_too_old(version, self.location)

    def start(self, record: RunRecord) -> None:
        self.start_all([record])

    def start_all(self, records: Sequence[RunRecord]) -> None:
        """In one transaction."""
        values = [record.to_columns() for record in records]
        if not values:
            return
        first = records[0].run_id
        more = f" and {len(records) - 1:,} more" if len(records) > 1 else ""
        try:
            with self._transaction() as connection:
                connection.execute(sa.insert(runs), values)
        except IntegrityError as error:
            raise UsageError(f"the run log already has a run {first!r}") from error
        except SQLAlchemyError as error:
            self._warn(f"the start of run {first}{more}", error)

    def record_batch(self, run_id: str, batch: str, overdue: Sequence[str] = ()) -> None:
        self._update_run("batch", run_id, {"batch": batch, "overdue": list(overdue)})

    def record_engine(self, run_id: str, engine: str) -> None:
        self._update_run("engine", run_id, {"engine": bounded_text(engine)})

    def _update_run(self, what: str, run_id: str, values: Mapping[str, Any]) -> None:
        if not self._may_write():
            return
        change = sa.update(runs).where(runs.c.run_id == run_id).values(**values)
        try:
            with self._transaction() as connection:
                connection.execute(change)
        except SQLAlchemyError as error:
            self._warn(f"the {what} of run {run_id}", error)

    def add_metrics(self, run_id: str, metrics: Mapping[str, Any]) -> None:
        if not self._may_write():
            return
        this = runs.c.run_id == run_id
        try:
            with self._transaction() as connection:
                query = sa.select(runs.c.metrics).where(this)
                if connection.dialect.name in ("postgresql", "mysql", "mariadb"):
                    query = query.with_for_update()  # a file has one writer at a time
                known = connection.execute(query).scalar()
                merged = {**(known or {}), **mask_metrics(metrics)}
                connection.execute(sa.update(runs).where(this).values(metrics=merged))
        except SQLAlchemyError as error:
            self._warn(f"a note on run {run_id}", error)

    def get(self, run_id: str) -> RunRecord:
        if not run_id:
            raise no_such_run(run_id)
        query = sa.select(runs).where(runs.c.run_id.startswith(run_id, autoescape=True)).limit(3)
        if (
            self._engine.dialect.name == "sqlite"
        ):  # whose LIKE reads every run, and whose texts are in byte order
            query = query.where(runs.c.run_id >= run_id, runs.c.run_id < run_id + _LAST_CHARACTER)
        exact = sa.select(runs).where(runs.c.run_id == run_id)
        candidates = self._records(exact) or self._records(query)
        found = find_by_prefix("runs", run_id, {record.run_id: record for record in candidates})
        if found is None:
            raise no_such_run(run_id)
        return found

    def list(
        self,
        pipeline: str | None = None,
        status: RunStatus | None = None,
        limit: int = 20,
        since: dt.datetime | None = None,
    ) -> tuple[RunRecord, ...]:
        listed = listed_columns(self._reader.dialect.name)
        query = sa.select(*listed).order_by(*NEWEST_FIRST).limit(max(limit, 0))
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
        return self._records(query.order_by(*NEWEST_FIRST).limit(MOST_RUNNING))

    def last_batch(self, pipeline: str) -> RunRecord | None:
        query = sa.select(runs).where(runs.c.pipeline == pipeline, runs.c.batch.is_not(None))
        found = self._records(query.order_by(*NEWEST_FIRST).limit(1))
        return found[0] if found else None

    def newest(self, pipelines: Sequence[str], each: int = 1) -> dict[str, tuple[RunRecord, ...]]:
        found: dict[str, tuple[RunRecord, ...]] = {}
        with self._read_connection() as connection:
            for query, names in newest_runs_statements(pipelines, each, connection.dialect.name):
                records = _read_records(connection, query, names)
                for name, its in itertools.groupby(records, lambda record: record.pipeline):
                    found[name] = take_until_success(its, each)
        return found

    def page(self, wanted: RunFilter, after: RunCursor | None = None, limit: int = 50) -> RunPage:
        with self._read_connection() as connection:
            return page_of_runs(connection, wanted, after, limit, _read_records)

    def following(self, after: RunRecord, limit: int) -> tuple[RunRecord, ...]:
        return self._records(following_statement(after, limit, self._reader.dialect.name))

    def runs_of_slots(
        self, since: dt.datetime, until: dt.datetime, limit: int
    ) -> dict[tuple[str, dt.datetime], str]:
        with self._read_connection() as connection:
            rows = connection.execute(slot_runs_statement(since, until, limit)).all()
        return {(row.pipeline, row.slot): row.run_id for row in reversed(rows) if row.slot is not None}

    def newest_summaries(self, since: dt.datetime | None, limit: int) -> tuple[RunSummary, ...]:
        with self._read_connection() as connection:
            return newest_summaries(connection, since, limit)

    def recent(self, pipelines: Sequence[str], each: int) -> dict[str, tuple[RunSummary, ...]]:
        with self._read_connection() as connection:
            return recent_runs(connection, pipelines, each)

    def rows_written(
        self, since: dt.datetime, until: dt.datetime, pipelines: Sequence[str] | None = None
    ) -> dict[str, int] | None:
        with self._read_connection() as connection:
            rows = connection.execute(rows_written_statement(since, until, pipelines))
            return {row.pipeline: int(row.written) for row in rows}

    def save_output(self, run_id: str, text: str) -> None:
        if not self._may_write():
            return
        output = bounded_output(text)
        try:
            with self._transaction() as connection:
                connection.execute(sa.delete(outputs).where(outputs.c.run_id == run_id))
                connection.execute(sa.insert(outputs).values(run_id=run_id, text=output))
        except SQLAlchemyError as error:
            self._warn(f"what run {run_id} logged", error)

    def output(self, run_id: str) -> str | None:
        with self._read_connection() as connection:
            found: str | None = connection.scalar(sa.select(outputs.c.text).where(outputs.c.run_id == run_id))
        return found

    def purge(
        self, before: dt.datetime, *, keep: int = 1, pipeline: str | None = None, most: int | None = None
    ) -> int:
        moment, done = aware_utc("before", before), 0
        try:
            for name in [pipeline] if pipeline is not None else self._pipelines():
                done += self._purge(name, moment, max(keep, 1), None if most is None else most - done)
                if most is not None and done >= most:
                    break
        except SQLAlchemyError as error:
            raise run_log_unavailable(self.location, error) from error
        return done

    def _pipelines(self) -> Iterator[str]:
        name: str | None = None
        while True:
            with self._read_connection() as connection:
                name = connection.scalar(next_pipeline_statement(name))
            if name is None:
                return
            yield name

    def _purge(self, pipeline: str, before: dt.datetime, keep: int, most: int | None) -> int:
        """Each portion is one transaction, so that runs that record at the same time do not wait long."""
        done = 0
        with self._read_connection() as connection:
            until = connection.scalar(keep_boundary_statement(pipeline, keep))
            needed = [
                run_id for query in needed_runs_statements(pipeline) for run_id in connection.scalars(query)
            ]
        while until is not None and (most is None or done < most):
            wanted = _PURGE_PORTION if most is None else min(most - done, _PURGE_PORTION)
            query = purgeable_runs_statement(pipeline, before, until, needed, wanted)
            with self._transaction() as connection:
                ids = list(connection.scalars(query))
                if ids:
                    connection.execute(sa.delete(outputs).where(outputs.c.run_id.in_(ids)))
                    connection.execute(sa.delete(runs).where(runs.c.run_id.in_(ids)))
            done += len(ids)
            if len(ids) < wanted:
                break
        return done

    def _end(
        self, run_id: str, status: RunStatus, values: Mapping[str, Any], from_status: Sequence[str]
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
        with self._read_connection() as connection:
            return _read_records(connection, query)

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with open_connection(self._engine) as connection, connection.begin():
            yield connection

    def _may_write(self) -> bool:
        """A database that hangs delays a run once, not at every step."""
        return time.monotonic() >= self._away_until

    def _warn(self, lost: str, error: SQLAlchemyError) -> None:
        if is_timeout(error):
            self._away_until = time.monotonic() + _AWAY_SECONDS
        message = (
            f"the run log {self.location} could not record {lost}: {database_message(error)}. The run goes on"
        )
        warn_once(self.location, message)


def _read_records(
    connection: sa.Connection, query: sa.Select[Any], parameters: Mapping[str, Any] | None = None
) -> tuple[RunRecord, ...]:
    found = connection.execute(query, parameters)
    names = tuple(found.keys())
    return tuple(RunRecord.from_store(dict(zip(names, row, strict=True))) for row in found)
