"""The data of the benchmark of data probes: orders with known defects, and the figures to find.

Every value follows from the number of its row, so that the figures are computed, not measured. The rows are
generated once for each size into ``benchmarks/data``, as Parquet files and as a Delta table.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.datasets import DATA

if TYPE_CHECKING:
    import duckdb

TABLE = "orders"
ROWS = 10_000_000
FILES = 8  # of a Parquet folder and of a Delta table
STATUSES = ("new", "paid", "sent", "done", "returned")
EMAIL = r"^[a-z0-9.]+@[a-z0-9]+\.[a-z]+$"
COUNTRIES = 249
SINCE = dt.datetime(2026, 1, 1)
STEP = dt.timedelta(milliseconds=100)
POSTGRES_COLUMNS = """\
order_id bigint, customer_id bigint, amount numeric(12,2), quantity integer, status text, email text,
country text, created_at timestamp"""
# A defect is in each row i for which  i % every = at ; no row has two in one column.
_DEFECTS = {
    "order_id.not_null": (200_000, 9),
    "order_id.unique": (100_000, 5),  # has the key of the row before
    "customer_id.not_null": (1_000, 3),
    "amount.between": (5_000, 11),
    "quantity.between": (10_000, 17),
    "status.is_in": (20_000, 21),
    "email.regex": (4_000, 31),
}
_QUERY = f"""
SELECT
  CASE WHEN i % 200000 = 9 THEN NULL WHEN i % 100000 = 5 THEN i - 1 ELSE i END AS order_id,
  CASE WHEN i % 1000 = 3 THEN NULL ELSE i * 7919 % 1000003 END AS customer_id,
  CAST(CASE WHEN i % 5000 = 11 THEN -1 ELSE i * 48271 % 1000000 / 100 END AS DECIMAL(12,2)) AS amount,
  CAST(CASE WHEN i % 1000 = 0 THEN NULL WHEN i % 10000 = 17 THEN 5000 ELSE 1 + i % 20 END AS INTEGER)
    AS quantity,
  CASE WHEN i % 20000 = 21 THEN 'lost' ELSE {list(STATUSES)!r}[1 + i * 31 % 5] END AS status,
  CASE WHEN i % 500 = 0 THEN NULL WHEN i % 4000 = 31 THEN 'user' || i || '.example.com'
       ELSE 'user' || i * 7919 % 1000003 || '@example' || i % 100 || '.com' END AS email,
  chr(CAST(65 + i * 31 % {COUNTRIES} // 26 AS INTEGER))
    || chr(CAST(65 + i * 31 % {COUNTRIES} % 26 AS INTEGER)) AS country,
  TIMESTAMP '{SINCE}' + to_milliseconds(i * {STEP.microseconds // 1000}) AS created_at
FROM range(?) AS numbers(i) ORDER BY i"""


def expected(rows: int) -> dict[str, int | str]:
    """What a right probe finds: rows that fail an assertion, or the figure that it looks at."""
    failing = {name: _count(rows, *defect) for name, defect in _DEFECTS.items()}
    failing["order_id.unique"] *= 2  # both rows of a key
    newest = SINCE + (rows - 1) * STEP
    return {
        "row_count": rows,
        **failing,
        "country.cardinality": min(rows, COUNTRIES),
        "created_at.freshness": newest_text(newest),
    }


def newest_text(newest: dt.datetime | str) -> str:
    """The newest time as contestants report it, with or without a zone, which is UTC."""
    if isinstance(newest, str):
        newest = dt.datetime.fromisoformat(newest)
    return newest.replace(tzinfo=None).isoformat(timespec="milliseconds")


def wrong_figures(found: dict[str, Any], rows: int) -> str | None:
    """What is wrong with the figures of a contestant, in one line; None if they are right."""
    right = expected(rows)
    wrong = [
        f"{name} is {found.get(name)}, not {value}"
        for name, value in right.items()
        if found.get(name) != value
    ]
    return f"wrong result: {'; '.join(wrong)}" if wrong else None


def parquet_folder(rows: int) -> Path:
    """A folder with the rows as Parquet files; generated if it is missing."""
    return _generated(DATA / f"probe-{rows}" / "parquet" / TABLE, lambda folder: _write_parquet(rows, folder))


def delta_folder(rows: int) -> Path:
    """A Delta table of the same rows, written by delta-rs; generated if it is missing."""
    return _generated(DATA / f"probe-{rows}" / "delta" / TABLE, lambda folder: _write_delta(rows, folder))


def fill_postgres(location: str, rows: int) -> None:
    """A table of the rows, without an index, vacuumed and analysed."""
    import duckdb
    import psycopg

    with psycopg.connect(location, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {TABLE} ({POSTGRES_COLUMNS})")
        for file in sorted(parquet_folder(rows).glob("*.parquet")):
            text = file.with_suffix(".csv")
            try:
                with duckdb.connect() as converter:
                    converter.execute(f"COPY (FROM read_parquet('{file}')) TO '{text}' (HEADER false)")
                copying = connection.cursor().copy(f"COPY {TABLE} FROM STDIN (FORMAT csv)")
                with copying as copy, text.open("rb") as content:
                    while block := content.read(1 << 20):
                        copy.write(block)
            finally:
                text.unlink(missing_ok=True)
        connection.execute(f"VACUUM ANALYZE {TABLE}")


def _generated(folder: Path, write: Callable[[Path], None]) -> Path:
    if not folder.exists():
        arriving = folder.with_name(f"arriving-{folder.name}")
        shutil.rmtree(arriving, ignore_errors=True)
        arriving.mkdir(parents=True)
        write(arriving)
        arriving.rename(folder)
    return folder


def _write_parquet(rows: int, folder: Path) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE generated AS {_QUERY}", [rows])
        each = -(-rows // FILES)
        for number in range(FILES):
            _write_file(connection, number, each, folder / f"part-{number}.parquet")


def _write_file(connection: duckdb.DuckDBPyConnection, number: int, each: int, file: Path) -> None:
    part = f"SELECT * FROM generated WHERE rowid >= {number * each} AND rowid < {(number + 1) * each}"
    connection.execute(f"COPY ({part}) TO '{file}' (FORMAT parquet, COMPRESSION snappy)")


def _write_delta(rows: int, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import write_deltalake

    for file in sorted(parquet_folder(rows).glob("*.parquet")):
        table = pq.read_table(file)
        # Spark refuses a column that is not nullable if delta-rs has not listed the feature for it
        nullable = pa.schema([field.with_nullable(True) for field in table.schema])
        write_deltalake(str(folder), table.cast(nullable), mode="append")


def _count(rows: int, every: int, at: int) -> int:
    """How many numbers below ``rows`` leave the rest ``at``."""
    return max(0, -(-(rows - at) // every))
