"""A task that runs again after its rows were in staging: they count once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ematix_flow.backends.base import BatchTarget, StagedRows
from ematix_flow.backends.registry import open_backend
from ematix_flow.spec.connections import (
    Connection,
    DuckDBConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    SQLiteConnection,
)
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.testing.loads import new_load, prepare
from tests.fault.databases import Database, file_database
from tests.fault.histories import BY_NAME, History
from tests.reading import read_table

pytestmark = pytest.mark.fault

# a worker whose task failed is gone: the file tells the next one
RUN = """
import faulted_pipelines
result = faulted_pipelines.load.sync(engine="local[2,4]")
print(result.status, result.rows_read)
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("postgres", "kill"),
        ("duckdb", "raise"),
        pytest.param("postgres", "raise", marks=pytest.mark.long),
        pytest.param("sqlite", "kill", marks=pytest.mark.long),
    ],
)
def test_a_task_that_spark_runs_again_after_its_write_counts_once(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, action: str
) -> None:
    where = request.getfixturevalue("pg_database") if kind == "postgres" else None
    target = Database(kind, where) if where else file_database(kind, tmp_path, "target")
    history = History(BY_NAME["append_new"], file_database("sqlite", tmp_path, "source"), target)
    history.write_module(tmp_path)
    history.create()
    history.advance(0)
    once = tmp_path / "failed once"
    run = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
            "EMATIX_FLOW_FAULT": f"task.staged={action}@{once}",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert once.exists(), "no task was stopped"
    assert run.stdout.split() == ["succeeded", str(len(history.must_hold(0)))]
    assert history.seen() == (1, history.must_hold(0))


TABLE = TableSpec(
    "shop",
    "small",
    (ColumnSpec("id", DataType("big_int"), primary_key=True), ColumnSpec("v", DataType("integer"))),
)


def opened(kind: str, folder: Path, request: pytest.FixtureRequest) -> tuple[Any, BatchTarget]:
    connection: Connection
    if kind == "postgres":
        connection = PostgresConnection(name="target", url=request.getfixturevalue("pg_database"))
    elif kind == "sqlite":
        connection = SQLiteConnection(name="target", path=str(folder / "target.db"))
    elif kind == "duckdb":
        connection = DuckDBConnection(name="target", path=str(folder / "target.duckdb"))
    else:
        connection = ObjectStoreLocalConnection(name="target", path=str(folder / "lake"), format="parquet")
    backend = open_backend(connection)
    target = backend.target()
    assert target is not None
    return backend, target


@pytest.mark.parametrize("mode", ["append", "truncate"])
@pytest.mark.parametrize("kind", ["postgres", "sqlite", "duckdb", "parquet"])
def test_of_two_attempts_that_both_wrote_their_rows_one_is_applied(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, mode: str
) -> None:
    backend, target = opened(kind, tmp_path, request)
    prepare(target, TABLE)
    load = new_load(TABLE, mode)
    staging = target.create_staging(load, TABLE.arrow_schema())
    rows = [[{"id": i, "v": task} for i in range(task * 10, task * 10 + 10)] for task in range(3)]
    batches = [pa.RecordBatch.from_pylist(some, schema=TABLE.arrow_schema()) for some in rows]
    # the second task runs slowly, so that a copy of it is started: both end, in the other order
    parts = [
        staging.write(name, [batches[task]])
        for task, name in ((0, "first"), (1, "copyofsecond"), (1, "second"), (2, "third"))
    ]
    applied = target.apply(load, StagedRows(staging, (parts[0], parts[1], parts[3])))
    target.drop_staging(staging)
    assert (applied.rows.read, applied.rows.inserted) == (30, 30)
    found = sorted((row["id"], row["v"]) for row in read_table(backend, TABLE))
    assert found == [(row["id"], row["v"]) for some in rows for row in some]
    assert target.sweep_staging(load.pipeline, load.target) == []
