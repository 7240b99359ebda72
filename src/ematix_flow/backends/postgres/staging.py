"""Staging: one unlogged table an attempt, written by tasks with COPY BINARY, part by part.

The table's columns are numbered, so that no name of the user's reaches the bulk driver, and have the
very types in which Arrow values travel. Each row carries the number of its part: what an attempt wrote
whose message never arrived is there and is never read.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from ematix_flow.backends.base import Load, StagedPart, StagedRows
from ematix_flow.backends.postgres.connect import Address, bulk, execute_bulk
from ematix_flow.backends.postgres.dialect import PostgresDialect
from ematix_flow.backends.postgres.failures import ADBC_ERRORS, target_failure
from ematix_flow.backends.relational import STAGING_SCHEMA
from ematix_flow.errors import PlanError
from ematix_flow.spec.tables import TableSpec
from ematix_flow.strategies.sql import column

if TYPE_CHECKING:
    import pyarrow as pa

PART = "_ematix_part"
_SLUG = 24
# what tasks carry as text and the table stores as something else
_CAST = {"json": "JSON", "jsonb": "JSONB", "uuid": "UUID"}


@dataclass(frozen=True)
class PostgresStaging:
    """Picklable: an address, a table's name and the Arrow schema of what is written."""

    address: Address
    table: str
    schema: pa.Schema

    def write(self, part: str, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        """All batches in one transaction, streamed: memory holds about one of them."""
        import pyarrow as pa

        flow = _Flow(batches, part_number(part), self.schema)
        if flow.is_empty:
            return StagedPart(part, 0, 0)
        with bulk(self.address) as connection:
            try:
                # after a crash of the server the table is empty anyway: waiting for its disk buys nothing
                execute_bulk(connection, "SET LOCAL synchronous_commit = off")
                reader = pa.RecordBatchReader.from_batches(flow.schema, flow)
                with connection.cursor() as cursor:
                    cursor.adbc_ingest(self.table, reader, mode="append", db_schema_name=STAGING_SCHEMA)
                connection.commit()
            except ADBC_ERRORS as error:
                if flow.failure is not None:  # the driver's error only wraps what the batches raised
                    raise flow.failure from None
                names = {f"c{i}": name for i, name in enumerate(self.schema.names)}
                raise target_failure(error, names) from error
        return StagedPart(part, flow.rows, flow.bytes)


class _Flow:
    """The batches as the staging table takes them, counted; remembers the error that ended them."""

    def __init__(self, batches: Iterable[pa.RecordBatch], number: int, schema: pa.Schema) -> None:
        import pyarrow as pa

        self.schema = pa.schema(
            [pa.field(f"c{i}", field.type) for i, field in enumerate(schema)] + [pa.field(PART, pa.int64())]
        )
        self.rows = 0
        self.bytes = 0
        self.failure: BaseException | None = None
        self._number = number
        self._batches = iter(batches)
        self._first = next((batch for batch in self._batches if batch.num_rows), None)

    @property
    def is_empty(self) -> bool:
        return self._first is None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            batch = self._first
            while batch is not None:
                yield self._numbered(batch)
                self.rows += batch.num_rows
                self.bytes += batch.nbytes
                batch = next(self._batches, None)
        except BaseException as error:
            self.failure = error
            raise

    def _numbered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        numbers = pa.repeat(pa.scalar(self._number, pa.int64()), batch.num_rows)
        return pa.RecordBatch.from_arrays([*batch.columns, numbers], schema=self.schema)


def part_number(part: str) -> int:
    """A part's name as the 64-bit number that its rows carry."""
    return int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "big", signed=True)


def staging_prefix(pipeline: str, target: str) -> str:
    """How the names of all staging tables of this pipeline on this target begin."""
    slug = re.sub(r"[^a-z0-9]+", "_", pipeline.lower()).strip("_")[:_SLUG]
    digest = hashlib.blake2b(json.dumps([pipeline, target]).encode(), digest_size=6).hexdigest()
    return f"{slug}_{digest}_"


def new_staging(address: Address, load: Load, schema: pa.Schema) -> PostgresStaging:
    """A staging with a fresh name; `create_staging_sql` makes its table."""
    name = f"{staging_prefix(load.pipeline, load.target)}{load.run_id.hex[:8]}_{secrets.token_hex(4)}"
    return PostgresStaging(address, name, schema)


def create_staging_sql(staging: PostgresStaging, dialect: PostgresDialect) -> str:
    lines = [f"{dialect.quote(f'c{i}')} {wire_type(f.type)}" for i, f in enumerate(staging.schema)]
    lines.append(f"{dialect.quote(PART)} bigint NOT NULL")
    return (
        f"CREATE UNLOGGED TABLE {staging_name(staging.table, dialect)} ({', '.join(lines)}) "
        "WITH (autovacuum_enabled = false)"
    )


def staging_name(table: str, dialect: PostgresDialect) -> str:
    return dialect.render(dialect.table(STAGING_SCHEMA, table))


def wire_type(arrow_type: pa.DataType) -> str:
    """The column type whose binary form is exactly what the driver sends for an Arrow type."""
    import pyarrow as pa
    import pyarrow.types as t

    if t.is_decimal(arrow_type):
        return f"numeric({arrow_type.precision},{arrow_type.scale})"
    names: dict[Any, str] = {
        pa.int16(): "smallint",
        pa.int32(): "integer",
        pa.int64(): "bigint",
        pa.float32(): "real",
        pa.float64(): "double precision",
        pa.bool_(): "boolean",
        pa.string(): "text",
        pa.date32(): "date",
        pa.timestamp("us"): "timestamp",
        pa.timestamp("us", tz="UTC"): "timestamptz",
        pa.binary(): "bytea",
    }
    if arrow_type not in names:
        raise PlanError(f"PostgreSQL staging cannot take Arrow's {arrow_type}")
    return names[arrow_type]


def staged_rows(rows: StagedRows, table: TableSpec, dialect: PostgresDialect) -> exp.Select:
    """SELECT of the declared columns from the parts that were reported.

    Lengths and precisions are left to the INSERT: an explicit cast to them would cut and round.
    """
    assert isinstance(rows.staging, PostgresStaging)
    selected: list[exp.Expr] = []
    for index, item in enumerate(table.columns):
        value: exp.Expr = column(f"c{index}")
        if item.type.kind in _CAST:
            value = exp.cast(value, _CAST[item.type.kind], dialect=dialect.name)
        selected.append(exp.alias_(value, item.name, quoted=True))
    select = exp.select(*selected).from_(dialect.table(STAGING_SCHEMA, rows.staging.table))
    numbers: list[exp.Expr] = [exp.Literal.number(part_number(p.part)) for p in rows.parts if p.rows]
    if not numbers:
        return select.where(exp.false())
    return select.where(exp.In(this=column(PART), expressions=numbers))
