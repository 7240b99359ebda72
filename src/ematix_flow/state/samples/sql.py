"""Stream samples in a SQL database, through SQLAlchemy Core."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import sqlalchemy as sa

from ematix_flow.state.runlog.table_store import RunLogTableStore
from ematix_flow.state.runlog.tables import SAMPLES_SINCE
from ematix_flow.state.samples.base import MOST_SAMPLES, SampleStore, StreamSample
from ematix_flow.state.samples.merged_samples import read_merged_samples
from ematix_flow.state.samples.tables import samples
from ematix_flow.state.sql.dialects import insert_if_new
from ematix_flow.state.times import aware_utc

_COLUMNS = (samples.c.stream, samples.c.run_id, samples.c.at, samples.c.sample)


class SqlSampleStore(RunLogTableStore, SampleStore):
    """Samples in the tables of a run log. Without tables there are no samples."""

    since = SAMPLES_SINCE

    def add(self, sample: StreamSample) -> None:
        row = {"stream": sample.stream, "at": sample.at, "run_id": sample.run_id, "sample": sample.values}
        with self._transaction() as connection:
            connection.execute(insert_if_new(samples, self._dialect).values(row))

    def read(self, stream: str, since: dt.datetime, limit: int = MOST_SAMPLES) -> tuple[StreamSample, ...]:
        most = max(limit, 1)
        chosen = (samples.c.stream == stream, samples.c.at >= aware_utc("since", since))
        with self._read_connection() as connection:
            count = connection.scalar(sa.select(sa.func.count()).select_from(samples).where(*chosen)) or 0
            if count > most:
                size = -(-count // most)
                return tuple(read_merged_samples(connection, chosen, size, most, self._dialect))
            query = sa.select(*_COLUMNS).where(*chosen).order_by(samples.c.at, samples.c.run_id)
            rows = connection.execute(query.limit(most)).all()
        return tuple(StreamSample.from_store(*row) for row in rows)

    def newest(self, streams: Sequence[str]) -> dict[str, StreamSample]:
        found = {}
        with self._read_connection() as connection:
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
