"""The data: tables of TPC-H, generated once into ``benchmarks/data``.

A table has the first rows of the smallest scale factor that holds as many as requested.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

DATA = Path(__file__).parent / "data"
BATCH_ROWS = 50_000


@dataclass(frozen=True)
class Column:
    """One column: what it is, and how each system of the benchmark declares it."""

    name: str
    family: str  # the kind of type in an exact copy: integer, decimal, date, timestamp or text
    postgres: str
    sqlite: str
    duckdb: str
    mysql: str


@dataclass(frozen=True)
class Dataset:
    """A table: its name, its columns, and the numbers of rows in published results."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    rows_per_scale: int
    full_rows: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def query(self) -> str:
        return f"SELECT {', '.join(self.names)} FROM {self.name}"

    def column_lines(self, system: str, *, nullable: bool = False) -> str:
        """The columns as the system's CREATE TABLE takes them."""
        required = "" if nullable else " NOT NULL"
        return ", ".join(f"{c.name} {getattr(c, system)}{required}" for c in self.columns)

    def scale_factor(self, rows: int) -> int:
        """The smallest scale factor that holds so many rows."""
        if rows < 1:
            raise ValueError(f"a benchmark needs at least one row, not {rows}")
        return -(-rows // self.rows_per_scale)

    def file(self, rows: int) -> Path:
        """The Parquet file that holds at least so many rows; generated if it is missing."""
        scale = self.scale_factor(rows)
        file = DATA / f"{self.name}-{scale}.parquet"
        if not file.exists():
            arriving = DATA / f"arriving-{self.name}-{scale}"
            arriving.mkdir(parents=True, exist_ok=True)
            generator = Path(sys.executable).with_name("tpchgen-cli")
            command = [str(generator), "parquet", "-s", str(scale), "-T", self.name, "-o", str(arriving)]
            subprocess.run([*command, "--quiet", "--overwrite"], check=True)
            (arriving / f"{self.name}.parquet").replace(file)
            arriving.rmdir()
        return file

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """The first ``rows`` rows in batches, strings as plain Arrow strings."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        left = rows
        for batch in pq.ParquetFile(self.file(rows)).iter_batches(BATCH_ROWS):
            columns = [c.cast(pa.string()) if c.type == pa.string_view() else c for c in batch.columns]
            whole = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
            yield whole.slice(0, left)
            left -= whole.num_rows
            if left <= 0:
                return

    def arrow_schema(self) -> pa.Schema:
        """The columns as an exact copy holds them."""
        import pyarrow as pa

        types = {"decimal": pa.decimal128(15, 2), "date": pa.date32(), "text": pa.string()}
        types["timestamp"] = pa.timestamp("us")
        whole = {"BIGINT": pa.int64(), "INTEGER": pa.int32()}
        return pa.schema([(c.name, types.get(c.family) or whole[c.duckdb]) for c in self.columns])


def _big(name: str) -> Column:
    return Column(name, "integer", "bigint", "INTEGER", "BIGINT", "bigint")


def _whole(name: str) -> Column:
    return Column(name, "integer", "integer", "INTEGER", "INTEGER", "int")


def _amount(name: str) -> Column:
    return Column(name, "decimal", "numeric(15,2)", "DECIMAL(15,2)", "DECIMAL(15,2)", "decimal(15,2)")


def _date(name: str) -> Column:
    return Column(name, "date", "date", "DATE", "DATE", "date")


def _text(name: str, length: int) -> Column:
    return Column(name, "text", f"varchar({length})", "TEXT", "VARCHAR", f"varchar({length})")


ORDERS = Dataset(
    "orders",
    (
        _big("o_orderkey"),
        _big("o_custkey"),
        _text("o_orderstatus", 1),
        _amount("o_totalprice"),
        _date("o_orderdate"),
        _text("o_orderpriority", 15),
        _text("o_clerk", 15),
        _whole("o_shippriority"),
        _text("o_comment", 79),
    ),
    ("o_orderkey",),
    rows_per_scale=1_500_000,
    full_rows=1_500_000,
)
# as the benchmark of changes keeps them
DATED_ORDERS = replace(
    ORDERS,
    columns=(
        *ORDERS.columns,
        Column("updated_at", "timestamp", "timestamp", "TEXT", "TIMESTAMP", "datetime(6)"),
    ),
)
LINEITEM = Dataset(
    "lineitem",
    (
        _big("l_orderkey"),
        _big("l_partkey"),
        _big("l_suppkey"),
        _whole("l_linenumber"),
        _amount("l_quantity"),
        _amount("l_extendedprice"),
        _amount("l_discount"),
        _amount("l_tax"),
        _text("l_returnflag", 1),
        _text("l_linestatus", 1),
        _date("l_shipdate"),
        _date("l_commitdate"),
        _date("l_receiptdate"),
        _text("l_shipinstruct", 25),
        _text("l_shipmode", 10),
        _text("l_comment", 44),
    ),
    ("l_orderkey", "l_linenumber"),
    rows_per_scale=6_000_000,  # 6,001,215 and a little more in larger scales
    full_rows=10_000_000,
)
DATASETS = {dataset.name: dataset for dataset in (ORDERS, LINEITEM)}
