"""The staging table as the driver sees it: its name, its columns, and the rows that count."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from ematix_flow.backends.base import Load, StagedRows
from ematix_flow.backends.postgres.address import PostgresAddress
from ematix_flow.backends.postgres.dialect import PostgresDialect
from ematix_flow.backends.postgres.staging import PART, PostgresStaging
from ematix_flow.backends.sql.control_tables import STAGING_SCHEMA
from ematix_flow.errors import PlanError
from ematix_flow.spec.generated_names import distinct_name, part_number
from ematix_flow.spec.tables import TableSpec
from ematix_flow.strategies.sql import column

if TYPE_CHECKING:
    import pyarrow as pa

_SLUG = 24
# what tasks carry as text and the table stores as something else
_CAST = {"json": "JSON", "jsonb": "JSONB", "uuid": "UUID"}


def staging_prefix(pipeline: str, target: str) -> str:
    """How the names of all staging tables of this pipeline on this target begin."""
    return distinct_name(pipeline, target, length=_SLUG) + "_"


def new_staging(address: PostgresAddress, load: Load, schema: pa.Schema) -> PostgresStaging:
    """A staging with a new name; `create_staging_sql` creates its table."""
    name = f"{staging_prefix(load.pipeline, load.target)}{load.run_id.hex[:8]}_{secrets.token_hex(4)}"
    return PostgresStaging(address, STAGING_SCHEMA, name, schema)


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
    """The column type whose binary form the driver sends for an Arrow type."""
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


def select_staged_rows(rows: StagedRows, table: TableSpec, dialect: PostgresDialect) -> exp.Select:
    """SELECT of the declared columns from the reported parts.

    The INSERT checks lengths and precisions: an explicit cast would cut and round.
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
