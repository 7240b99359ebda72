"""The tables of the dead letters, and the upgrades of older ones to this version.

Independent of any particular database; a user may choose the table's name. A change of the table needs a new
upgrade at the end of `UPGRADES`. New tables are created in their current form, without upgrades.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from ematix_flow.errors import ConfigError
from ematix_flow.state.sql.column_types import ExactText, UtcDateTime
from ematix_flow.state.sql.table_versions import make_schema, stored_version, version_table, write_version

SCHEMA = "ematix_flow"
TABLE = "dead_letters"

_MYSQL = ("mysql", "mariadb")
# in DuckDB an index would slow it down and block updates of indexed columns
_INDEXED = ("sqlite", "postgresql", *_MYSQL)


@dataclass(frozen=True)
class LetterTables:
    """``seq`` orders letters by arrival; ``lease`` is the token of its replay, until ``leased_until``.

    ``loading`` has the keys of the batches in which a replay loads the letter, ``loaded_in`` the labels of
    the targets that have it.
    """

    metadata: sa.MetaData
    letters: sa.Table
    version: sa.Table

    @property
    def label(self) -> str:
        return self.letters.fullname

    def stored_version(self, connection: sa.Connection) -> int:
        """Return the version of the tables; 0 if there are none."""
        return stored_version(connection, self.version, self.version.schema)


LetterUpgrade = Callable[[sa.Connection, LetterTables], None]


def _add_column(column: str, connection: sa.Connection, tables: LetterTables) -> None:
    """Add the column, unless an upgrade that was interrupted has added it."""
    letters = tables.letters
    nothing = sa.select(sa.text("*")).select_from(letters).where(sa.false())
    names = set(connection.execute(nothing).keys())
    if column not in names:
        name = connection.dialect.identifier_preparer.format_table(letters)
        kind = letters.c[column].type.compile(connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {column} {kind}")


# the first makes version 2 of version 1, the next version 3, …; a released one is never edited
UPGRADES: Sequence[LetterUpgrade] = (partial(_add_column, "loading"), partial(_add_column, "loaded_in"))


def letter_tables(schema: str | None, name: str) -> LetterTables:
    metadata = sa.MetaData(schema=schema)
    text = sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4", collation="utf8mb4_bin"), *_MYSQL)
    binary = sa.LargeBinary().with_variant(mysql.LONGBLOB(), *_MYSQL)
    letters = sa.Table(
        name,
        metadata,
        sa.Column("id", ExactText(64), primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("pipeline", ExactText(512), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("reason", text, nullable=False),
        sa.Column("source", text),
        sa.Column("partition", text, quote=True),
        sa.Column("position", text, quote=True),
        sa.Column("target", text),
        sa.Column("batch", text),
        sa.Column("event_ts", UtcDateTime),
        sa.Column("failed_at", UtcDateTime, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("payload", binary, nullable=False),
        sa.Column("payload_format", sa.String(64), nullable=False),
        sa.Column("payload_size", sa.BigInteger, nullable=False),
        sa.Column("whole", sa.Boolean, nullable=False),
        sa.Column("key", binary, quote=True),
        sa.Column("headers", text),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("lease", sa.String(32)),
        sa.Column("leased_until", UtcDateTime),
        sa.Column("loading", text),
        sa.Column("loaded_in", text),
    )
    sa.Index(None, letters.c.pipeline, letters.c.status, letters.c.seq, letters.c.id).ddl_if(
        callable_=_is_indexed
    )
    sa.Index(None, letters.c.seq, letters.c.id).ddl_if(callable_=_is_indexed)
    return LetterTables(metadata, letters, version_table(f"{name}_version", metadata))


def _is_indexed(*_: Any, dialect: sa.Dialect, **__: Any) -> bool:
    return dialect.name in _INDEXED


def is_current(stored: int, location: str, upgrades: Sequence[LetterUpgrade] = UPGRADES) -> bool:
    """Whether the tables have this version. Raises ConfigError for a later version."""
    newest = 1 + len(upgrades)
    if stored > newest:
        raise ConfigError(
            f"the dead letters in {location} have version {stored}; this ematix-flow knows up to {newest}",
            state="they are unchanged",
            next_step="upgrade ematix-flow-spark, or name another store",
        )
    return stored == newest


def migrate(
    connection: sa.Connection,
    tables: LetterTables,
    location: str,
    upgrades: Sequence[LetterUpgrade] = UPGRADES,
) -> None:
    """Create or upgrade the tables. If DDL commits by itself, tables of an earlier try are kept."""
    found = tables.stored_version(connection)
    if is_current(found, location, upgrades):
        return
    if found == 0:
        make_schema(connection, tables.letters.schema)
        tables.metadata.create_all(connection)
    else:
        for upgrade in upgrades[found - 1 :]:
            upgrade(connection, tables)
    write_version(connection, tables.version, 1 + len(upgrades))
