"""CREATE TABLE for MySQL: engine and collation, keys over text, and the two control tables."""

from __future__ import annotations

from dataclasses import replace

from ematix_flow.backends.mysql.dialect import MySQLDialect
from ematix_flow.backends.sql.control_tables import LEDGER, WATERMARKS
from ematix_flow.backends.sql.create_table import create_table_sql, unique_groups
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import DataType

_KEY_BYTES, _BYTES_A_CHARACTER, _OTHER_BYTES = 3072, 4, 20
_LONGEST_IN_KEY = 255
_SIZED = {"text": "string", "bytes": "bytes"}
_MAX_SCALE = 30  # MariaDB has 38
_INDEXED_CHARACTERS = 100  # characters of a batch key in the index


def table_options(dialect: MySQLDialect) -> str:
    """The options of every created table: transactions, all of Unicode, and exact comparison."""
    return f" ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = {dialect.collation}"


def with_key_lengths(table: TableSpec) -> TableSpec:
    """The table with a length for text and bytes in keys, as MySQL requires; longer values are refused."""
    limits: dict[str, int] = {}
    for group in (table.primary_key, table.merge_keys, *unique_groups(table)):
        endless = [name for name in group if table.column(name).type.kind in _SIZED]
        if endless:
            room = _KEY_BYTES - _OTHER_BYTES * (len(group) - len(endless))
            limit = min(_LONGEST_IN_KEY, room // _BYTES_A_CHARACTER // len(endless))
            limits |= {name: min(limit, limits.get(name, limit)) for name in endless}
    columns = tuple(
        replace(c, type=DataType(_SIZED[c.type.kind], length=limits[c.name])) if c.name in limits else c
        for c in table.columns
    )
    return replace(table, columns=columns)


def require_types(table: TableSpec, dialect: MySQLDialect) -> None:
    """Refuse decimals with a larger scale than the server has."""
    for column in table.columns:
        if not dialect.is_mariadb and (column.type.scale or 0) > _MAX_SCALE:
            raise SchemaMismatch(
                f"column {column.name!r} of {table.label} is {column.type}, and MySQL "
                f"keeps {_MAX_SCALE} places",
                where=table.where,
                state="nothing was touched",
                next_step=f"declare Numeric with a scale of at most {_MAX_SCALE}",
            )


def row_number_column(dialect: MySQLDialect) -> str:
    """A primary key for a table without one, which MySQL may require; it would slow MariaDB's inserts."""
    if dialect.is_mariadb:
        return ""
    return f", {dialect.quote(internal_name('row'))} BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY"


def control_tables_sql(dialect: MySQLDialect) -> list[str]:
    """CREATE TABLE of ledger and watermarks. The ledger's key is a digest: a batch key may be too long."""
    ledger, watermarks = with_key_lengths(LEDGER), with_key_lengths(WATERMARKS)
    plain = tuple(
        replace(c, type=DataType("text") if c.name == "batch_key" else c.type, primary_key=False)
        for c in ledger.columns
    )
    quote = dialect.quote
    digest, key = quote("batch_digest"), quote("batch_key")
    names = f"{quote('pipeline')}, {quote('target')}"
    body = create_table_sql(dialect, replace(ledger, columns=plain)).removesuffix("\n)")
    body += (
        f",\n  {quote('entry')} BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY"
        f",\n  {digest} BINARY(32) GENERATED ALWAYS AS (UNHEX(SHA2({key}, 256))) STORED"
        f",\n  UNIQUE ({names}, {digest}),\n  KEY ({names}, {key}({_INDEXED_CHARACTERS}))\n)"
    )
    return [body + table_options(dialect), create_table_sql(dialect, watermarks) + table_options(dialect)]
