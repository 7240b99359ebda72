"""The tables of a history in a database, and the upgrade of those that an earlier version made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

VERSION = 2  # version 1 has neither the figures of assertions nor the metadata of runs
# a length lets MySQL choose a type that is large enough; other databases refuse one
_JSON = sa.Text().with_variant(sa.Text(10_000_000), "mysql", "mariadb")


class ExactText(sa.types.TypeDecorator[str]):
    """A short text that is compared exactly: MySQL's own types ignore case, accents or trailing blanks."""

    impl = sa.String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(sa.VARBINARY(4 * self.length))
        return dialect.type_descriptor(sa.Text())

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> object:
        return value.encode() if value is not None and dialect.name in ("mysql", "mariadb") else value

    def process_result_value(self, value: object, dialect: sa.Dialect) -> str | None:
        return bytes(value).decode() if isinstance(value, bytes | bytearray) else value  # type: ignore[return-value]


@dataclass(frozen=True)
class HistoryTables:
    """The tables under the names that a database gives them."""

    metadata: sa.MetaData
    runs: sa.Table
    assertions: sa.Table
    version: sa.Table


def history_tables(prefix: str = "", schema: str | None = None, *, foreign_key: bool = True) -> HistoryTables:
    """``prefix`` distinguishes them where tables of other programs are in the same schema."""
    metadata = sa.MetaData(schema=schema)
    id_type = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    runs = sa.Table(
        f"{prefix}runs",
        metadata,
        sa.Column("id", id_type, primary_key=True, autoincrement=foreign_key),
        sa.Column("probe_name", ExactText(500), nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("schema_name", sa.Text),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("started_at", sa.String(40), nullable=False),
        sa.Column("finished_at", sa.String(40), nullable=False),
        sa.Column("metadata", _JSON),
        mysql_charset="utf8mb4",
    )
    reference = [sa.ForeignKey(runs.c.id, ondelete="CASCADE")] if foreign_key else []
    assertions = sa.Table(
        f"{prefix}assertions",
        metadata,
        sa.Column("id", id_type, primary_key=True, autoincrement=foreign_key),
        sa.Column("run_id", id_type, *reference, nullable=False),
        sa.Column("assertion_index", sa.Integer, nullable=False),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("name", ExactText(500)),
        sa.Column("kind", sa.String(64)),
        sa.Column("failing", sa.BigInteger),
        sa.Column("checked", sa.BigInteger),
        sa.Column("measures", _JSON),
        sa.Column("samples", _JSON),
        mysql_charset="utf8mb4",
    )
    version = sa.Table(f"{prefix}history_version", metadata, sa.Column("version", sa.Integer, nullable=False))
    # a key of MySQL holds 3,072 bytes: the first 250 bytes of a name are enough there
    sa.Index(f"{prefix}runs_by_probe", runs.c.probe_name, runs.c.id, mysql_length={"probe_name": 250})
    sa.Index(f"{prefix}assertions_by_run", assertions.c.run_id)
    return HistoryTables(metadata, runs, assertions, version)


ADDED_IN_2 = {"runs": ("metadata",), "assertions": ("kind", "failing", "checked", "measures", "samples")}


def upgrade_to_2(connection: sa.Connection, tables: HistoryTables) -> None:
    """Add the columns of version 2 to the tables of version 1, in the caller's transaction."""
    preparer = connection.dialect.identifier_preparer
    for table, names in ((tables.runs, ADDED_IN_2["runs"]), (tables.assertions, ADDED_IN_2["assertions"])):
        there = {column["name"] for column in sa.inspect(connection).get_columns(table.name, table.schema)}
        for name in names:
            if name not in there:
                kind = table.c[name].type.compile(connection.dialect)
                connection.exec_driver_sql(
                    f"ALTER TABLE {preparer.format_table(table)} ADD COLUMN {preparer.quote(name)} {kind}"
                )
        for index in table.indexes:
            index.create(connection, checkfirst=True)
