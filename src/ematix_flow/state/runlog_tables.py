"""The run log's tables and the upgrades that bring an older log up to this version.

Free of any particular database. A change of the tables here goes with a new upgrade at the end of
`UPGRADES`; a new log is made as the tables say, without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa

from ematix_flow.errors import ConfigError
from ematix_flow.state.records import utc_now
from ematix_flow.state.sql_types import ExactText, UtcMoment

Upgrade = Callable[[sa.Connection], None]


metadata = sa.MetaData()

version = sa.Table(
    "run_log_version",
    metadata,
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("migrated_at", UtcMoment, nullable=False),
)

runs = sa.Table(
    "run_log",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("pipeline", ExactText(512), nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("mode", sa.String(255), nullable=False),
    sa.Column("path", sa.String(255)),
    sa.Column("trigger", sa.String(32), nullable=False, quote=True),
    sa.Column("slot", UtcMoment),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("batch", sa.Text),
    sa.Column("overdue", sa.JSON(none_as_null=True)),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("started_at", UtcMoment, nullable=False),
    sa.Column("finished_at", UtcMoment),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.BigInteger, nullable=False),
    sa.Column("rows_read", sa.BigInteger),
    sa.Column("rows_inserted", sa.BigInteger),
    sa.Column("rows_updated", sa.BigInteger),
    sa.Column("rows_deleted", sa.BigInteger),
    sa.Column("rows_unchanged", sa.BigInteger),
    sa.Column("source_from", sa.Text),
    sa.Column("source_to", sa.Text),
    sa.Column("error_type", sa.String(255)),
    sa.Column("error_message", sa.Text),
    sa.Column("metrics", sa.JSON, nullable=False),
    sa.Index("run_log_by_start", "started_at", "run_id"),
    sa.Index("run_log_by_pipeline", "pipeline", "started_at", "run_id"),
    sa.Index("run_log_by_status", "status", "started_at", "run_id"),
)


def make_schema(connection: sa.Connection, schema: str | None) -> None:
    if schema is not None and not sa.inspect(connection).has_schema(schema):
        connection.execute(sa.schema.CreateSchema(schema, if_not_exists=True))


def _add_batch(connection: sa.Connection) -> None:
    connection.execute(sa.text("ALTER TABLE run_log ADD COLUMN batch TEXT"))


def _add_overdue(connection: sa.Connection) -> None:
    connection.execute(sa.text("ALTER TABLE run_log ADD COLUMN overdue JSON"))


# the first makes version 2 of version 1, the next version 3, …; a released one is never edited
UPGRADES: Sequence[Upgrade] = (_add_batch, _add_overdue)


def stored_version(connection: sa.Connection, schema: str | None = None) -> int:
    """Which version the tables have; 0 when there are none."""
    if not sa.inspect(connection).has_table(version.name, schema):
        return 0
    return connection.scalar(sa.select(sa.func.max(version.c.version))) or 0


def is_current(found: int, location: str, upgrades: Sequence[Upgrade] = UPGRADES) -> bool:
    """Whether the tables are of this version. A log of a later version is refused, not guessed at."""
    newest = 1 + len(upgrades)
    if found > newest:
        raise ConfigError(
            f"the run log {location} has version {found}, and this ematix-flow knows only up to {newest}",
            state="the run log is unchanged",
            next_step="upgrade ematix-flow-spark, or name another run log",
        )
    return found == newest


def migrate(
    connection: sa.Connection,
    location: str,
    upgrades: Sequence[Upgrade] = UPGRADES,
    schema: str | None = None,
) -> None:
    """Make or upgrade the tables, all or nothing: the caller's transaction holds the write lock."""
    make_schema(connection, schema)
    found = stored_version(connection, schema)
    if is_current(found, location, upgrades):
        return
    if found == 0:
        metadata.create_all(connection)
    else:
        for upgrade in upgrades[found - 1 :]:
            upgrade(connection)
    connection.execute(sa.delete(version))
    connection.execute(sa.insert(version).values(version=1 + len(upgrades), migrated_at=utc_now()))
