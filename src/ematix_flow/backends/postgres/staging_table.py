"""The staging table on the server: its name, its columns, and the rows to load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlglot import exp

from ematix_flow.backends.base import Load, StagedRows
from ematix_flow.backends.postgres.address import PostgresAddress
from ematix_flow.backends.postgres.dialect import PostgresDialect
from ematix_flow.backends.postgres.staging import PostgresStaging
from ematix_flow.backends.sql.control_tables import STAGING_SCHEMA
from ematix_flow.backends.sql_servers import staging_tables
from ematix_flow.backends.sql_servers.staged_batches import PART
from ematix_flow.backends.sql_servers.staging_tables import new_table_name, select_parts, staging_name
from ematix_flow.errors import PlanError
from ematix_flow.spec.tables import TableSpec
from ematix_flow.strategies.sql import column

if TYPE_CHECKING:
    import pyarrow as pa

_NAME_LENGTH = 24  # of the pipeline and the target, within PostgreSQL's 63 bytes
# types that staging keeps as text
_CAST = {"json": "JSON", "jsonb": "JSONB", "uuid": "UUID"}


def staging_prefix(pipeline: str, target: str) -> str:
    return staging_tables.staging_prefix(pipeline, target, _NAME_LENGTH)


def new_staging(address: PostgresAddress, load: Load, schema: pa.Schema) -> PostgresStaging:
    """A staging with a new name; `create_staging_sql` creates its table."""
    return PostgresStaging(address, STAGING_SCHEMA, new_table_name(load, _NAME_LENGTH), schema)


def create_staging_sql(staging: PostgresStaging, dialect: PostgresDialect) -> str:
    lines = [f"{dialect.quote(f'c{i}')} {wire_type(f.type)}" for i, f in enumerate(staging.schema)]
    lines.append(f"{dialect.quote(PART)} bigint NOT NULL")
    return (
        f"CREATE UNLOGGED TABLE {staging_name(staging.table, dialect)} ({', '.join(lines)}) "
        "WITH (autovacuum_enabled = false)"
    )


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
    return select_parts(selected, rows.staging.table, rows.parts, dialect)
