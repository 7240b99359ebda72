"""Staging and work tables on the server: their names, their columns, and the rows to load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.base import Load, StagedRows
from ematix_flow.backends.mysql.address import MySQLAddress
from ematix_flow.backends.mysql.create_table import row_number_column, table_options
from ematix_flow.backends.mysql.dialect import MySQLDialect
from ematix_flow.backends.mysql.staging import MySQLStaging, staging_column
from ematix_flow.backends.sql.control_tables import STAGING_SCHEMA
from ematix_flow.backends.sql_servers import staging_tables
from ematix_flow.backends.sql_servers.staged_batches import PART
from ematix_flow.backends.sql_servers.staging_tables import select_parts, staging_name
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.sql import column

if TYPE_CHECKING:
    import pyarrow as pa

_NAME_LENGTH = 20  # of the pipeline and the target, within MySQL's 64 characters
_DOCUMENTS = ("json", "jsonb")


def staging_prefix(pipeline: str, target: str) -> str:
    return staging_tables.staging_prefix(pipeline, target, _NAME_LENGTH)


def new_table_name(load: Load, suffix: str = "") -> str:
    return staging_tables.new_table_name(load, _NAME_LENGTH, suffix)


def new_staging(address: MySQLAddress, load: Load, schema: pa.Schema, *, local_infile: bool) -> MySQLStaging:
    """A staging with a new name; `create_staging_sql` creates its table."""
    kinds = {item.name: item.type.kind for item in load.plan.staged.columns}
    return MySQLStaging(address, STAGING_SCHEMA, new_table_name(load), schema, kinds, local_infile)


def create_staging_sql(staging: MySQLStaging, table: TableSpec, dialect: MySQLDialect) -> str:
    lines = []
    for index, item in enumerate(table.columns):
        staged = staging_column(index, item.name)
        is_text = item.type.kind in _DOCUMENTS and staged != item.name
        stored = DataType("text") if is_text else item.type
        lines.append(f"{dialect.quote(staged)} {dialect.native_type(stored)}")
    lines.append(f"{dialect.quote(PART)} BIGINT NOT NULL")
    columns = ", ".join(lines) + row_number_column(dialect)
    return f"CREATE TABLE {staging_name(staging.table, dialect)} ({columns}){table_options(dialect)}"


def select_staged_rows(rows: StagedRows, table: TableSpec, dialect: MySQLDialect) -> exp.Select:
    """SELECT of the declared columns from the reported parts."""
    assert isinstance(rows.staging, MySQLStaging)
    selected: list[exp.Expr] = []
    for index, item in enumerate(table.columns):
        staged = staging_column(index, item.name)
        value: exp.Expr = column(staged)
        if staged == item.name:
            selected.append(value)
            continue
        if item.type.kind in _DOCUMENTS and not dialect.is_mariadb:
            value = exp.cast(value, "JSON", dialect=dialect.name)
        selected.append(exp.alias_(value, item.name, quoted=True))
    return select_parts(selected, rows.staging.table, rows.parts, dialect)
