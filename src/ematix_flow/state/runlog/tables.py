"""The run log's tables and the upgrades that bring an older log, its slots and actions up to this version.

Independent of the database. A change of the tables here needs a new upgrade at the end of `UPGRADES`; a new
log is created directly from the tables, without upgrades.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa

from ematix_flow.errors import ConfigError
from ematix_flow.state.actions.tables import actions, holds
from ematix_flow.state.actions.tables import metadata as actions_metadata
from ematix_flow.state.runlog.records import LONGEST_OUTPUT
from ematix_flow.state.samples.tables import metadata as samples_metadata
from ematix_flow.state.samples.tables import samples
from ematix_flow.state.slots.tables import leases, slots
from ematix_flow.state.slots.tables import metadata as slots_metadata
from ematix_flow.state.sql.column_types import ExactText, UtcDateTime
from ematix_flow.state.sql.failures import open_connection, run_log_connection
from ematix_flow.state.sql.sqlite import memory_engine
from ematix_flow.state.sql.table_versions import make_schema, stored_version, version_table, write_version

RunLogUpgrade = Callable[["TableUpgrade"], None]


metadata = sa.MetaData()

version = version_table("run_log_version", metadata)

runs = sa.Table(
    "run_log",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("pipeline", ExactText(512), nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("mode", sa.String(255), nullable=False),
    sa.Column("path", sa.String(255)),
    sa.Column("trigger", sa.String(32), nullable=False, quote=True),
    sa.Column("slot", UtcDateTime),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("batch", sa.Text),
    sa.Column("overdue", sa.JSON(none_as_null=True)),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("started_at", UtcDateTime, nullable=False),
    sa.Column("finished_at", UtcDateTime),
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
    sa.Column("error_where", sa.Text),
    sa.Column("engine", sa.Text),
    sa.Column("code_version", sa.Text),
    sa.Column("metrics", sa.JSON, nullable=False),
    sa.Index("run_log_by_start", "started_at", "run_id"),
    sa.Index("run_log_by_pipeline", "pipeline", "started_at", "run_id"),
    sa.Index("run_log_by_status", "status", "started_at", "run_id"),
    sa.Index("run_log_by_outcome", "pipeline", "status", "started_at"),
)

# what a run logged, apart from its record: a list of runs need not read it
outputs = sa.Table(
    "run_log_output",
    metadata,
    sa.Column("run_id", sa.String(64), primary_key=True),
    sa.Column("text", sa.Text().with_variant(sa.Text(LONGEST_OUTPUT), "mysql", "mariadb"), nullable=False),
)

_MIGRATION_LOCK = "ematix_flow run_log"
_LOCK_SECONDS = 60


@contextmanager
def exclusive_migration(connection: sa.Connection) -> Iterator[None]:
    """While the block runs, no other process creates or changes our tables in this database."""
    dialect = connection.dialect.name
    if dialect == "postgresql":  # until the transaction ends
        longest = sa.func.set_config("lock_timeout", f"{_LOCK_SECONDS}s", sa.true())
        connection.execute(sa.select(longest))
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(_MIGRATION_LOCK))))
    if dialect not in ("mysql", "mariadb"):  # a file's write lock is held already
        yield
        return
    connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {_LOCK_SECONDS}")
    if connection.scalar(sa.select(sa.func.get_lock(_MIGRATION_LOCK, _LOCK_SECONDS))) != 1:
        raise ConfigError(
            f"another process has been creating the tables of the run log for {_LOCK_SECONDS} seconds",
            next_step="run it again when that has ended",
        )
    try:
        yield
    finally:
        connection.execute(sa.select(sa.func.release_lock(_MIGRATION_LOCK)))


class TableUpgrade:
    """The steps that an upgrade may use.

    A step that was already done is skipped: MySQL keeps half an upgrade.
    """

    def __init__(self, connection: sa.Connection, schema: str | None) -> None:
        self.connection, self._schema = connection, schema

    def add_column(self, name: str) -> None:
        """Add a column of the runs table as declared above."""
        there = runs.to_metadata(sa.MetaData(schema=self._schema))
        table = self.connection.dialect.identifier_preparer.format_table(there)
        if name not in self._columns(table):
            kind = runs.c[name].type.compile(self.connection.dialect)
            self.connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")

    def add_table(self, table: sa.Table) -> None:
        table.create(self.connection, checkfirst=True)

    def add_index(self, name: str) -> None:
        index = next(each for each in runs.indexes if each.name == name)
        if self.connection.dialect.name in ("mysql", "mariadb"):
            index.create(self.connection, checkfirst=True)
        else:
            self.connection.execute(sa.schema.CreateIndex(index, if_not_exists=True))

    def _columns(self, table: str) -> set[str]:
        found = self.connection.exec_driver_sql(f"SELECT * FROM {table} WHERE 1 = 0")
        return set(found.keys())


def _add_batch(upgrading: TableUpgrade) -> None:
    upgrading.add_column("batch")


def _add_overdue(upgrading: TableUpgrade) -> None:
    upgrading.add_column("overdue")


def _add_run_details(upgrading: TableUpgrade) -> None:
    for name in ("error_where", "engine", "code_version"):
        upgrading.add_column(name)
    upgrading.add_index("run_log_by_outcome")
    upgrading.add_table(outputs)


def _add_slots(upgrading: TableUpgrade) -> None:
    for table in (slots, leases):
        upgrading.add_table(table)


def _add_actions(upgrading: TableUpgrade) -> None:
    for table in (actions, holds):
        upgrading.add_table(table)


def _add_samples(upgrading: TableUpgrade) -> None:
    upgrading.add_table(samples)


# the first makes version 2 of version 1, the next version 3, …; a released one is never edited
UPGRADES: Sequence[RunLogUpgrade] = (
    _add_batch,
    _add_overdue,
    _add_run_details,
    _add_slots,
    _add_actions,
    _add_samples,
)
# the versions from which on every column of the runs, slots, actions and samples is there
RUNS_SINCE, SLOTS_SINCE, ACTIONS_SINCE, SAMPLES_SINCE = 4, 5, 6, 7


def is_current(stored: int, location: str, upgrades: Sequence[RunLogUpgrade] = UPGRADES) -> bool:
    """Whether the tables have this version. Raises ConfigError for a run log of a later version."""
    newest = 1 + len(upgrades)
    if stored > newest:
        raise ConfigError(
            f"the run log {location} has version {stored}, and this ematix-flow knows only up to {newest}",
            state="the run log is unchanged",
            next_step="upgrade ematix-flow-spark, or name another run log",
        )
    return stored == newest


def tables_missing(location: str) -> ConfigError:
    return ConfigError(
        f"the run log {location} has no tables of this version, and create_tables=false forbids new ones",
        next_step="open it once without create_tables=false, as a user who may create tables",
    )


def open_run_log_tables(
    engine: sa.Engine,
    location: str,
    *,
    schema: str | None = None,
    reader: sa.Engine | None = None,
    maker: sa.Engine | None = None,
    create_tables: bool = True,
    read_only: bool = False,
) -> tuple[sa.Engine, sa.Engine, int]:
    """The engines for writes and for queries, and the version of the tables, created or upgraded if needed.

    ``schema`` holds the tables. ``reader`` is the engine for queries and ``maker`` the one that creates and
    upgrades the tables, if they are not ``engine``. With ``read_only`` the tables stay as they are.
    """
    schemas = {None: schema}
    for_writes = engine.execution_options(schema_translate_map=schemas, writes=True)
    for_queries = (reader or engine).execution_options(schema_translate_map=schemas)
    for_tables = (maker or engine).execution_options(schema_translate_map=schemas, writes=True)
    with run_log_connection(for_queries, location) as connection:
        stored = stored_version(connection, version, schema)
    if not is_current(stored, location) and not read_only:
        if not create_tables:
            raise tables_missing(location)
        with run_log_connection(for_tables, location) as connection, connection.begin():
            migrate(connection, location, schema=schema)
        stored = 1 + len(UPGRADES)
    return for_writes, for_queries, stored


def empty_memory_database() -> sa.Engine:
    """Return an empty database in memory, in place of a store that does not exist yet."""
    engine = memory_engine()
    with open_connection(engine.execution_options(writes=True)) as connection, connection.begin():
        migrate(connection, "memory://")
    return engine


def version_too_old(stored: int, location: str) -> ConfigError:
    return ConfigError(
        f"the run log {location} has version {stored}, and this ematix-flow reads it from {RUNS_SINCE} on",
        state="the run log is unchanged: commands that only read it do not upgrade it",
        next_step="when all its users have this version, upgrade it by the next  flow run,  flow run-due  "
        "or  flow scheduler",
    )


def migrate(
    connection: sa.Connection,
    location: str,
    upgrades: Sequence[RunLogUpgrade] = UPGRADES,
    schema: str | None = None,
) -> None:
    """Create or upgrade the tables in the caller's transaction: all or nothing, if the database supports it.

    If several processes call this at once, one does the work and the others find it done.
    """
    with exclusive_migration(connection):
        make_schema(connection, schema)
        found = stored_version(connection, version, schema)
        if is_current(found, location, upgrades):
            return
        if found == 0:
            metadata.create_all(connection)
            slots_metadata.create_all(connection)
            actions_metadata.create_all(connection)
            samples_metadata.create_all(connection)
        else:
            for upgrade in upgrades[found - 1 :]:
                upgrade(TableUpgrade(connection, schema))
        write_version(connection, version, 1 + len(upgrades))
