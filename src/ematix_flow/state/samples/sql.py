"""Stream samples in a SQL database, through SQLAlchemy Core."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa

from ematix_flow.state.runlog.tables import SAMPLES_SINCE, empty_memory_database, open_run_log_tables
from ematix_flow.state.samples.base import MOST_SAMPLES, SampleStore, StreamSample
from ematix_flow.state.samples.merged_samples import read_merged_samples
from ematix_flow.state.samples.tables import samples
from ematix_flow.state.sql.dialects import dialect_name, insert_if_new
from ematix_flow.state.sql.failures import run_log_connection
from ematix_flow.state.times import aware_utc

_COLUMNS = (samples.c.stream, samples.c.run_id, samples.c.at, samples.c.sample)


class SqlSampleStore(SampleStore):
    """Samples in the database behind ``engine``, in the tables of the run log there.

    With ``read_only`` the tables stay as they are: without tables there are no samples.
    """

    def __init__(
        self,
        engine: sa.Engine,
        location: str,
        *,
        schema: str | None = None,
        reader: sa.Engine | None = None,
        maker: sa.Engine | None = None,
        create_tables: bool = True,
        read_only: bool = False,
    ) -> None:
        self.location = location
        self._engine, self._reader, version = open_run_log_tables(
            engine,
            location,
            schema=schema,
            reader=reader,
            maker=maker,
            create_tables=create_tables,
            read_only=read_only,
        )
        if version < SAMPLES_SINCE:
            self.close()
            self._engine = self._reader = empty_memory_database().execution_options()
        self._dialect = dialect_name(self._engine)

    def close(self) -> None:
        if not self.location.startswith("memory://"):  # disposing of that engine would delete the run log
            self._engine.dispose()
            self._reader.dispose()

    def add(self, sample: StreamSample) -> None:
        row = {"stream": sample.stream, "at": sample.at, "run_id": sample.run_id, "sample": sample.values}
        with self._transaction() as connection:
            connection.execute(insert_if_new(samples, self._dialect).values(row))

    def read(self, stream: str, since: dt.datetime, limit: int = MOST_SAMPLES) -> tuple[StreamSample, ...]:
        most = max(limit, 1)
        chosen = (samples.c.stream == stream, samples.c.at >= aware_utc("since", since))
        with run_log_connection(self._reader, self.location) as connection:
            count = connection.scalar(sa.select(sa.func.count()).select_from(samples).where(*chosen)) or 0
            if count > most:
                size = -(-count // most)
                return tuple(read_merged_samples(connection, chosen, size, most, self._dialect))
            query = sa.select(*_COLUMNS).where(*chosen).order_by(samples.c.at, samples.c.run_id)
            rows = connection.execute(query.limit(most)).all()
        return tuple(StreamSample.from_store(*row) for row in rows)

    def newest(self, streams: Sequence[str]) -> dict[str, StreamSample]:
        found = {}
        with run_log_connection(self._reader, self.location) as connection:
            for stream in dict.fromkeys(streams):
                query = sa.select(*_COLUMNS).where(samples.c.stream == stream)
                row = connection.execute(query.order_by(samples.c.at.desc()).limit(1)).first()
                if row is not None:
                    found[stream] = StreamSample.from_store(*row)
        return found

    def purge(self, before: dt.datetime, stream: str | None = None) -> int:
        old = sa.delete(samples).where(samples.c.at < aware_utc("before", before))
        if stream is not None:
            old = old.where(samples.c.stream == stream)
        with self._transaction() as connection:
            return connection.execute(old).rowcount

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with run_log_connection(self._engine, self.location) as connection, connection.begin():
            yield connection
