"""Parts of staging as tasks write them."""

from __future__ import annotations

import gc
import os
import pickle
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ematix_flow.backends.duckdb.staging import DuckDBStaging
from ematix_flow.backends.sqlite.garbage_collection import pause_garbage_collection
from ematix_flow.backends.sqlite.staging import SQLiteStaging
from ematix_flow.errors import RowRejected
from ematix_flow.spec.types import DataType

COLUMNS = (("id", DataType("big_int")), ("ID", DataType("text")))


def batches(sizes: list[int]) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        ids = pa.array(range(start, start + size), pa.int64())
        yield pa.RecordBatch.from_arrays([ids, ids.cast(pa.string())], names=["id", "ID"])
        start += size


@pytest.mark.parametrize(
    "sizes", [[], [0], [5], [0, 5, 0], [100_000, 100_000, 100_000], [122_880], [400_000]]
)
def test_a_parquet_part_is_cut_into_duckdbs_own_row_groups(sizes: list[int], tmp_path: Path) -> None:
    staging = pickle.loads(pickle.dumps(DuckDBStaging(str(tmp_path), COLUMNS)))
    part = staging.write("p1", batches(sizes))
    written = pq.ParquetFile(tmp_path / "p1.parquet")
    groups = [written.metadata.row_group(n).num_rows for n in range(written.num_row_groups)]
    assert part.rows == sum(groups) == sum(sizes)
    assert all(rows == 122_880 for rows in groups[:-1])
    assert written.read().column("c0").to_pylist() == list(range(sum(sizes)))


def test_a_sqlite_part_holds_its_rows_in_the_form_of_the_target(tmp_path: Path) -> None:
    columns = (("n", DataType("numeric", precision=9, scale=2)), ("on", DataType("boolean")))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)), pa.array([True, None])], names=["n", "on"]
    )
    part = pickle.loads(pickle.dumps(SQLiteStaging(str(tmp_path), columns))).write("p1", [batch, batch])
    assert (part.rows, part.bytes) == (4, (tmp_path / "p1.sqlite").stat().st_size)
    with closing(sqlite3.connect(tmp_path / "p1.sqlite")) as connection:
        assert connection.execute("SELECT * FROM part").fetchall() == [(1.5, 1), (None, None)] * 2


def test_a_value_that_cannot_be_kept_is_counted_from_the_start_of_the_part(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1.0, 2.0])], names=["x"])
    bad = pa.RecordBatch.from_arrays([pa.array([1.0, float("nan")])], names=["x"])
    with pytest.raises(RowRejected, match="row 4 "):
        SQLiteStaging(str(tmp_path), (("x", DataType("double")),)).write("p1", [batch, bad])
    assert list(tmp_path.iterdir()) == []


def test_the_collector_is_on_again_after_a_bulk_of_rows() -> None:
    assert gc.isenabled()
    with pytest.raises(KeyError), pause_garbage_collection(), pause_garbage_collection():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_a_task_imports_little(tmp_path: Path) -> None:
    """In a fresh worker pandas and sqlglot would take longer to import than a small load to run."""
    code = """
        import datetime, sqlite3, sys
        from decimal import Decimal
        from pathlib import Path
        from ematix_flow.backends.embedded.database_file import DatabaseFile
        from ematix_flow.backends.sqlite.split import SQLiteSplit
        from ematix_flow.backends.sqlite.staging import SQLiteStaging
        from ematix_flow.backends.duckdb.staging import DuckDBStaging
        from ematix_flow.spec.types import DataType
        with sqlite3.connect("s.db") as connection:
            connection.execute("CREATE TABLE t (a, b, c, d, e, f, g)")
            row = (1, 2.5, "x", "2024-01-02", "2024-01-02 03:04:05", b"y", 0)
            connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?)", [row, (None,) * 7])
        kinds = ["big_int", "numeric", "text", "date", "timestamp_tz", "bytes", "boolean"]
        types = [DataType("numeric", precision=9, scale=2) if k == "numeric" else DataType(k) for k in kinds]
        columns = tuple(zip("abcdefg", types))
        split = SQLiteSplit(DatabaseFile.of("SQLite", "s", "s.db"), "SELECT * FROM t", dict(columns))
        batches = list(split.read())
        assert sum(b.num_rows for b in batches) == 2
        for staging in (SQLiteStaging, DuckDBStaging):
            staging(".", columns).write("p1", batches)
        import ematix_flow.backends.duckdb.split
        assert not {"pandas", "sqlglot", "sqlalchemy", "pyspark"} & set(sys.modules)
    """
    source = Path(__file__).parents[3] / "src"
    run = [sys.executable, "-c", textwrap.dedent(code)]
    subprocess.run(run, cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": str(source)})
