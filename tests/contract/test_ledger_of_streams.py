"""The ledger of a stream forgets batches that are old, on every database, and nothing else."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from ematix_flow import Connection, DuckDBConnection, MySQLConnection, PostgresConnection, SQLiteConnection
from ematix_flow.backends.registry import open_backend
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import PIPELINE, TARGET, load_rows, new_load

TABLE = TableSpec(None, "events", (ColumnSpec("id", DataType("big_int")),))


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "postgres", "mariadb"])
def test_old_batches_of_a_stream_are_forgotten(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    connection: Connection
    if kind == "sqlite":
        connection = SQLiteConnection(name="t", path=str(tmp_path / "t.db"))
    elif kind == "duckdb":
        connection = DuckDBConnection(name="t", path=str(tmp_path / "t.duckdb"))
    elif kind == "postgres":
        connection = PostgresConnection(name="t", url=request.getfixturevalue("pg_database"))
    else:
        connection = MySQLConnection(name="t", url=request.getfixturevalue("mariadb_database"))
    target = open_backend(connection).target()
    assert target is not None
    for key in ("stream:q:1", "stream:q:2", "run:x"):
        load_rows(target, new_load(TABLE, batch_key=key), [{"id": 1}])
    pipeline, label = PIPELINE, TARGET
    now = dt.datetime.now(dt.timezone.utc)
    target.forget_batches(pipeline, label, now - dt.timedelta(days=1))
    assert len(target.ledger(pipeline, label)) == 3
    target.forget_batches(pipeline, label, now + dt.timedelta(days=1))
    assert [entry.batch_key for entry in target.ledger(pipeline, label)] == ["run:x"]
