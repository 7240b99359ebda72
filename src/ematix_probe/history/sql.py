"""A history in the tables of a database, through SQLAlchemy Core.

What differs between databases is in their `HistoryDatabase`. A run is recorded in one transaction; all
reads are bounded, by keys that only grow.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from ematix_probe.errors import CannotConnect, HistoryError
from ematix_probe.history.base import HistoryStore
from ematix_probe.history.database import HistoryDatabase, database_message
from ematix_probe.history.records import RecordedAssertion, RecordedRun, format_time, parse_time
from ematix_probe.history.tables import VERSION, upgrade_to_2

_TRIES = 12  # against other writers
_PAST_RUNS = 10  # an assertion is looked for in so many times more runs than are wanted
_PORTION = 500
_NOT_A_DATABASE = ("file is not a database", "disk image is malformed", "not a valid duckdb database file")
_DISK_FULL = ("is full", "disk full", "no space left on device")
T = TypeVar("T")


class SqlHistory(HistoryStore):
    def __init__(self, database: HistoryDatabase) -> None:
        self._database, self._tables = database, database.tables
        self.location = database.location
        self._is_current = False

    # ------------------------------------------------------------------------------------- writing

    def add(self, run: RecordedRun) -> int:
        return self._write(lambda connection: self._insert(connection, run))

    def _insert(self, connection: sa.Connection, run: RecordedRun) -> int:
        runs, assertions = self._tables.runs, self._tables.assertions
        values: dict[str, Any] = {
            "probe_name": run.probe_name,
            "table_name": run.table,
            "schema_name": run.schema,
            "verdict": run.verdict,
            "started_at": format_time(run.started_at),
            "finished_at": format_time(run.finished_at),
            "metadata": _to_json(run.metadata),
        }
        first = 0
        if self._database.gives_ids:
            inserted = connection.execute(sa.insert(runs).values(**values)).inserted_primary_key
            assert inserted is not None
            run_id = int(inserted[0])
        else:
            run_id = _next_id(connection, runs)
            first = _next_id(connection, assertions)
            connection.execute(sa.insert(runs).values(id=run_id, **values))
        rows = [
            {
                "run_id": run_id,
                "assertion_index": each.index,
                "verdict": each.verdict,
                "message": each.message,
                "name": each.name,
                "kind": each.kind,
                "failing": each.failing,
                "checked": each.checked,
                "measures": _to_json(each.measures),
                "samples": _to_json(each.samples),
                **({"id": first + number} if first else {}),
            }
            for number, each in enumerate(run.assertions)
        ]
        if rows:
            connection.execute(sa.insert(assertions), rows)
        return run_id

    def prune(self, probe: str, keep: int, before: dt.datetime | None) -> int:
        runs, assertions = self._tables.runs, self._tables.assertions
        newest = sa.select(runs.c.id).where(runs.c.probe_name == probe).order_by(runs.c.id.desc())

        def delete(connection: sa.Connection) -> int:
            oldest_kept = connection.scalar(newest.offset(keep - 1).limit(1)) if keep else None
            if keep and oldest_kept is None:
                return 0
            query = sa.select(runs.c.id).where(runs.c.probe_name == probe).order_by(runs.c.id).limit(_PORTION)
            if oldest_kept is not None:
                query = query.where(runs.c.id < oldest_kept)
            if before is not None:
                query = query.where(runs.c.started_at < format_time(before))
            ids = list(connection.scalars(query))
            if ids:
                connection.execute(sa.delete(assertions).where(assertions.c.run_id.in_(ids)))
                connection.execute(sa.delete(runs).where(runs.c.id.in_(ids)))
            return len(ids)

        done = 0
        while deleted := (self._write(delete) if self._database.exists else 0):
            done += deleted
        return done

    def _write(self, work: Callable[[sa.Connection], T]) -> T:
        """Do the work in one transaction; again if another writer was in its way."""
        self._upgrade()
        for attempt in range(_TRIES):
            try:
                with self._database.engine(write=True).connect() as connection, connection.begin():
                    return work(connection)
            except SQLAlchemyError as error:
                if attempt + 1 == _TRIES or not self._database.is_conflict(error):
                    raise self._failure(error) from error
            except OSError as error:
                raise self._unopened(error) from error
            time.sleep(random.uniform(0.01, 0.05 * (attempt + 1)))
        raise AssertionError

    def prepare(self) -> None:
        self._upgrade()

    def _upgrade(self) -> None:
        """Create the tables, or bring them up to this version: all or nothing, where the database can."""
        if self._is_current:
            return
        for attempt in range(_TRIES):
            try:
                with self._database.engine(write=True).connect() as connection, connection.begin():
                    if self._version(connection) != VERSION:
                        self._database.lock_tables(connection)
                        found = self._version(connection)
                        if found == 0:
                            self._database.create(connection)
                        elif found < VERSION:
                            upgrade_to_2(connection, self._tables)
                        if found < VERSION:
                            self._database.write_version(connection, VERSION)
                self._is_current = True
                return
            except SQLAlchemyError as error:
                if attempt + 1 == _TRIES or not self._database.is_conflict(error):
                    raise self._failure(error) from error
            except OSError as error:
                raise self._unopened(error) from error
            time.sleep(random.uniform(0.01, 0.05 * (attempt + 1)))

    def _version(self, connection: sa.Connection) -> int:
        found = self._database.stored_version(connection)
        if found > VERSION:
            raise HistoryError(
                f"the history {self.location} has version {found}, "
                f"and this ematix-probe knows only up to {VERSION}",
                state="the history is unchanged",
                next_step="upgrade ematix-probe, or name another history",
            )
        return found

    # ------------------------------------------------------------------------------------- reading

    def newest(self, probe: str | None, limit: int, before: int | None) -> Sequence[RecordedRun]:
        runs, assertions = self._tables.runs, self._tables.assertions
        query = sa.select(runs).order_by(runs.c.id.desc()).limit(limit)
        if probe is not None:
            query = query.where(runs.c.probe_name == probe)
        if before is not None:
            query = query.where(runs.c.id < before)
        with self._reading() as connection:
            if connection is None:
                return ()
            found = connection.execute(query).mappings().all()
            counted: dict[int, Counter[str]] = {}
            if found:
                ids = [row["id"] for row in found]
                tally = (
                    sa.select(assertions.c.run_id, assertions.c.verdict, sa.func.count())
                    .where(assertions.c.run_id.in_(ids))
                    .group_by(assertions.c.run_id, assertions.c.verdict)
                )
                for run_id, verdict, number in connection.execute(tally):
                    counted.setdefault(run_id, Counter())[verdict] = number
        return [_run(row, counts=counted.get(row["id"], {})) for row in found]

    def get(self, id: int) -> RecordedRun | None:
        runs, assertions = self._tables.runs, self._tables.assertions
        with self._reading() as connection:
            if connection is None:
                return None
            found = connection.execute(sa.select(runs).where(runs.c.id == id)).mappings().first()
            if found is None:
                return None
            query = sa.select(assertions).where(assertions.c.run_id == id)
            rows = connection.execute(query.order_by(assertions.c.assertion_index)).mappings().all()
        return _run(found, [_assertion(row) for row in rows])

    def details(self, probe: str, limit: int) -> Sequence[RecordedRun]:
        runs, assertions = self._tables.runs, self._tables.assertions
        query = sa.select(runs).where(runs.c.probe_name == probe).order_by(runs.c.id.desc()).limit(limit)
        wanted = [column for column in assertions.c if column.name != "samples"]
        with self._reading() as connection:
            if connection is None:
                return ()
            found = connection.execute(query).mappings().all()
            by_run: dict[int, list[RecordedAssertion]] = {row["id"]: [] for row in found}
            if found:
                of_these = sa.select(*wanted).where(assertions.c.run_id.in_(list(by_run)))
                for row in connection.execute(of_these.order_by(assertions.c.assertion_index)).mappings():
                    by_run[row["run_id"]].append(_assertion(row))
        return [_run(row, by_run[row["id"]]) for row in found]

    def past(self, probe: str, assertion: str, limit: int) -> Sequence[Mapping[str, Any]]:
        runs, assertions = self._tables.runs, self._tables.assertions
        newest = (
            sa.select(runs.c.id)
            .where(runs.c.probe_name == probe)
            .order_by(runs.c.id.desc())
            .limit(limit * _PAST_RUNS)
            .subquery()
        )
        query = (
            sa.select(assertions.c.measures)
            .join(newest, assertions.c.run_id == newest.c.id)
            .where(assertions.c.name == assertion, assertions.c.measures.is_not(None))
            .order_by(assertions.c.run_id.desc())
            .limit(limit)
        )
        with self._reading() as connection:
            texts = [] if connection is None else list(connection.scalars(query))
        return [json.loads(text) for text in texts]

    def probes(self) -> Sequence[str]:
        runs = self._tables.runs
        names: list[str] = []
        with self._reading() as connection:
            if connection is None:
                return names
            # from name to name along the index: a DISTINCT would read every run
            while True:
                query = sa.select(runs.c.probe_name).order_by(runs.c.probe_name).limit(1)
                if names:
                    query = query.where(runs.c.probe_name > names[-1])
                found = connection.scalar(query)
                if found is None:
                    return names
                names.append(found)

    def check(self) -> str:
        with self._reading() as connection:
            if connection is None:
                return "no run is recorded yet"
            newest = connection.scalar(sa.select(sa.func.max(self._tables.runs.c.finished_at)))
        return f"the newest run ended at {newest}" if newest else "no run is recorded yet"

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection | None]:
        """A connection in one transaction; None if there is no history yet."""
        if not self._database.exists:
            yield None
            return
        try:
            if not self._is_current and self._needs_upgrade():
                self._upgrade()
            with self._database.engine(write=False).connect() as connection, connection.begin():
                yield connection if self._is_current or self._version(connection) else None
        except SQLAlchemyError as error:
            raise self._failure(error) from error
        except OSError as error:
            raise self._unopened(error) from error

    def _needs_upgrade(self) -> bool:
        with self._database.engine(write=False).connect() as connection, connection.begin():
            return 0 < self._version(connection) < VERSION

    # -------------------------------------------------------------------------------------- errors

    def _failure(self, error: SQLAlchemyError) -> HistoryError | CannotConnect:
        message = database_message(error)
        if any(words in message.lower() for words in _DISK_FULL):
            return HistoryError(
                f"the history {self.location} cannot be written: {message}",
                state="nothing of this was written",
                next_step="make room on its disk, or name another with --history",
            )
        if self._database.is_unreachable(error):
            return CannotConnect(
                f"the history {self.location} cannot be reached: {message}",
                next_step="check its host, port, user and password, or name another with --history",
            )
        if any(words in message.lower() for words in _NOT_A_DATABASE):
            return HistoryError(
                f"the history {self.location} cannot be read: {message}",
                state="the file is damaged, or never was a history",
                next_step="restore a backup, or name another file",
            )
        return HistoryError(
            f"the history {self.location} cannot be used: {message}",
            next_step="check that its user may create, read and write tables there, "
            "or name another with --history",
        )

    def _unopened(self, error: OSError) -> CannotConnect:
        return CannotConnect(
            f"the history {self.location} cannot be opened: {error}",
            next_step="check that it can be reached, or name another with --history",
        )


def _next_id(connection: sa.Connection, table: sa.Table) -> int:
    return int(connection.scalar(sa.select(sa.func.max(table.c.id))) or 0) + 1


def _to_json(value: object) -> str | None:
    """None for nothing, so that what was not measured takes no room."""
    return json.dumps(value, ensure_ascii=False) if value else None


def _run(
    row: sa.RowMapping,
    assertions: Sequence[RecordedAssertion] = (),
    counts: Mapping[str, int] | None = None,
) -> RecordedRun:
    return RecordedRun(
        row["id"],
        row["probe_name"],
        row["table_name"],
        row["schema_name"],
        row["verdict"],
        parse_time(row["started_at"]),
        parse_time(row["finished_at"]),
        json.loads(row["metadata"] or "{}"),
        tuple(assertions),
        Counter(each.verdict for each in assertions) if counts is None else counts,
    )


def _assertion(row: sa.RowMapping) -> RecordedAssertion:
    return RecordedAssertion(
        row["assertion_index"],
        row["name"] or f"assertion {row['assertion_index']}",
        row["verdict"],
        row["message"],
        row["kind"] or "",
        row["failing"],
        row["checked"],
        json.loads(row["measures"] or "{}"),
        json.loads(row.get("samples") or "[]"),
    )
