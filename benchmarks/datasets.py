"""The data of the copy benchmark: TPC-H orders, generated once into ``benchmarks/data``.

1.5 million rows are scale factor 1; a smaller number takes the first rows of it, a larger one the next
whole scale factor.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

DATA = Path(__file__).parent / "data"
ROWS_PER_SCALE = 1_500_000
KEY = "o_orderkey"
BATCH_ROWS = 50_000


@dataclass(frozen=True)
class Column:
    """One column: what it is, and how each system of the benchmark declares it."""

    name: str
    family: str  # what a faithful copy must still be: integer, decimal, date or text
    postgres: str
    sqlite: str
    duckdb: str


COLUMNS = (
    Column("o_orderkey", "integer", "bigint", "INTEGER", "BIGINT"),
    Column("o_custkey", "integer", "bigint", "INTEGER", "BIGINT"),
    Column("o_orderstatus", "text", "varchar(1)", "TEXT", "VARCHAR"),
    Column("o_totalprice", "decimal", "numeric(15,2)", "DECIMAL(15,2)", "DECIMAL(15,2)"),
    Column("o_orderdate", "date", "date", "DATE", "DATE"),
    Column("o_orderpriority", "text", "varchar(15)", "TEXT", "VARCHAR"),
    Column("o_clerk", "text", "varchar(15)", "TEXT", "VARCHAR"),
    Column("o_shippriority", "integer", "integer", "INTEGER", "INTEGER"),
    Column("o_comment", "text", "varchar(79)", "TEXT", "VARCHAR"),
)
NAMES = tuple(column.name for column in COLUMNS)


def scale_factor(rows: int) -> int:
    """The smallest scale factor that holds so many orders."""
    if rows < 1:
        raise ValueError(f"a benchmark needs at least one row, not {rows}")
    return -(-rows // ROWS_PER_SCALE)


def orders_file(rows: int) -> Path:
    """The Parquet file that holds at least so many orders; generated when it is not there."""
    scale = scale_factor(rows)
    file = DATA / f"orders-{scale}.parquet"
    if not file.exists():
        arriving = DATA / f"arriving-{scale}"
        arriving.mkdir(parents=True, exist_ok=True)
        generator = Path(sys.executable).with_name("tpchgen-cli")
        command = [str(generator), "parquet", "-s", str(scale), "-T", "orders", "-o", str(arriving)]
        subprocess.run([*command, "--quiet", "--overwrite"], check=True)
        (arriving / "orders.parquet").replace(file)
        arriving.rmdir()
    return file


def orders(rows: int) -> Iterator[pa.RecordBatch]:
    """The first ``rows`` orders in batches, strings as plain Arrow strings."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    left = rows
    for batch in pq.ParquetFile(orders_file(rows)).iter_batches(BATCH_ROWS):
        columns = [c.cast(pa.string()) if c.type == pa.string_view() else c for c in batch.columns]
        whole = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        yield whole.slice(0, left)
        left -= whole.num_rows
        if left <= 0:
            return
