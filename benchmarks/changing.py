"""The databases of the changes benchmark: a source that has changed, and targets as they were before.

The table is `orders` with a time of change that is different in every row. Nine of ten changes are updates,
spread evenly over the table; the others are new rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.datasets import ORDERS
from benchmarks.endpoint import Endpoint
from benchmarks.servers import Servers
from benchmarks.sources_and_targets import fill_postgres

if TYPE_CHECKING:
    import pyarrow as pa

TABLE, KEY, CHANGED_AT = ORDERS.name, ORDERS.key[0], "updated_at"
NAMES = (*ORDERS.names, CHANGED_AT)
COLUMNS = ", ".join(NAMES)
BEGINNING, LATER = "2026-01-01", "2026-06-01"  # of the first rows and of the changes
NEW_KEYS = 1_000_000_000_000
_MILLISECONDS_TO_BEGINNING = 1_767_225_600_000
_ROW = f"(EXTRACT(EPOCH FROM {CHANGED_AT} - TIMESTAMP '{BEGINNING}') * 1000)::bigint"
# dlt's versions need a hash that the source provides
HASH = f"md5(concat_ws('|', {', '.join(ORDERS.names)}))"


@dataclass(frozen=True)
class Size:
    """So many changes into a table of so many rows."""

    changes: int
    rows: int

    @classmethod
    def read(cls, text: str) -> Size:
        changes, _, rows = text.replace("_", "").partition("/")
        return cls(int(changes), int(rows))

    @property
    def updates(self) -> int:
        return self.changes * 9 // 10

    @property
    def inserts(self) -> int:
        return self.changes - self.updates

    @property
    def after(self) -> str:
        """The time of the latest change before the changes."""
        import datetime as dt

        latest = dt.datetime.fromisoformat(BEGINNING) + dt.timedelta(milliseconds=self.rows - 1)
        return latest.isoformat(sep=" ")


def base(servers: Servers, rows: int) -> Endpoint:
    """The table before the changes."""
    endpoint = servers.create("postgres", "base")
    lines = f"{ORDERS.column_lines('postgres')}, {CHANGED_AT} timestamp NOT NULL, PRIMARY KEY ({KEY})"
    fill_postgres(endpoint.location, TABLE, lines, dated(rows))
    servers.execute(endpoint, f"VACUUM ANALYZE {TABLE}")
    return endpoint


def source(servers: Servers, before: Endpoint, size: Size) -> Endpoint:
    """A copy of it with the changes, and an index on their time."""
    endpoint = servers.copy(before, "changed")
    step = size.rows // size.updates
    servers.execute(
        endpoint,
        f"UPDATE {TABLE} SET o_orderstatus = 'X', o_totalprice = o_totalprice + 1,"
        f" {CHANGED_AT} = TIMESTAMP '{LATER}' + {_ROW} * INTERVAL '1 ms'"
        f" WHERE {_ROW} % {step} = 0 AND {_ROW} / {step} < {size.updates}",
    )
    others = ", ".join(name for name in ORDERS.names if name != KEY)
    servers.execute(
        endpoint,
        f"INSERT INTO {TABLE} SELECT {KEY} + {NEW_KEYS}, {others}, TIMESTAMP '{LATER}' + INTERVAL '1 day'"
        f" + (row_number() OVER ()) * INTERVAL '1 ms' FROM {TABLE} ORDER BY {KEY} LIMIT {size.inserts}",
    )
    servers.execute(endpoint, f"CREATE INDEX ON {TABLE} ({CHANGED_AT})")
    servers.execute(
        endpoint,
        f"CREATE VIEW {TABLE}_hashed AS SELECT {COLUMNS}, {HASH} AS row_hash FROM {TABLE}",
    )
    servers.execute(endpoint, f"VACUUM ANALYZE {TABLE}")
    return endpoint


def versioned(
    servers: Servers, before: Endpoint, extra: str, values: str, indexes: Sequence[str]
) -> Endpoint:
    """A table of versions, each open; ``extra`` are its columns in addition to those of the data."""
    endpoint = servers.copy(before, "versions")
    servers.execute(endpoint, f"ALTER TABLE {TABLE} RENAME TO base")
    lines = f"{ORDERS.column_lines('postgres')}, {CHANGED_AT} timestamp NOT NULL, {extra}"
    servers.execute(endpoint, f"CREATE TABLE {TABLE} ({lines})")
    servers.execute(endpoint, f"INSERT INTO {TABLE} SELECT {COLUMNS}, {values} FROM base")
    servers.execute(endpoint, "DROP TABLE base")
    for index in indexes:
        servers.execute(endpoint, index)
    servers.execute(endpoint, f"VACUUM ANALYZE {TABLE}")
    return endpoint


def versions_by_hand(servers: Servers, before: Endpoint) -> Endpoint:
    """As an engineer keeps them by hand, with an index for it."""
    extra = "valid_from timestamp NOT NULL, valid_to timestamp, is_current boolean NOT NULL"
    indexes = (
        f"ALTER TABLE {TABLE} ADD PRIMARY KEY ({KEY}, valid_from)",
        f"CREATE UNIQUE INDEX ON {TABLE} ({KEY}) WHERE is_current",
    )
    return versioned(servers, before, extra, f"{CHANGED_AT}, NULL, true", indexes)


def versions_of_dlt(servers: Servers, before: Endpoint) -> Endpoint:
    """As dlt keeps them, with an index that its statements can use; it makes none itself."""
    extra = "row_hash varchar NOT NULL, valid_from timestamptz NOT NULL, valid_to timestamptz"
    values = f"{HASH}, {CHANGED_AT} AT TIME ZONE 'UTC', NULL"
    return versioned(servers, before, extra, values, [f"CREATE INDEX ON {TABLE} ({KEY})"])


def checksum(servers: Servers, endpoint: Endpoint, condition: str = "true") -> tuple[int, str]:
    """The number of rows and a sum of their hashes, in any order."""
    digest = f"hashtextextended(concat_ws('|', {COLUMNS}), 0)::numeric"
    found = servers.execute(endpoint, f"SELECT count(*), sum({digest}) FROM {TABLE} WHERE {condition}")
    return int(found[0][0]), str(found[0][1])


def dated(rows: int) -> Iterator[pa.RecordBatch]:
    """The rows before the changes."""
    import pyarrow as pa

    seen = 0
    for batch in ORDERS.batches(rows):
        times = range(seen, seen + batch.num_rows)
        micros = pa.array([(_MILLISECONDS_TO_BEGINNING + n) * 1000 for n in times], pa.int64())
        seen += batch.num_rows
        arrays = [*batch.columns, micros.cast(pa.timestamp("us"))]
        yield pa.RecordBatch.from_arrays(arrays, names=[*batch.schema.names, CHANGED_AT])
