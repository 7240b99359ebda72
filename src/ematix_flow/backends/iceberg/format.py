"""Iceberg tables as the lake's core sees them: named in a catalog, one snapshot a statement, the commit's
token in the snapshot's summary."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.iceberg.dialect import IcebergDialect
from ematix_flow.backends.iceberg.folders import METADATA, is_table, snapshot_summaries
from ematix_flow.backends.iceberg.names import Namespaces, Path
from ematix_flow.backends.iceberg.tables import CatalogTables
from ematix_flow.backends.iceberg.upkeep import IcebergUpkeep
from ematix_flow.backends.lake.actions import Changes, fresh_view, merge_sql
from ematix_flow.backends.lake.journal import Commit
from ematix_flow.backends.lake.session import with_settings
from ematix_flow.backends.lake.table import Compacted, LakeFormat, Snapshot
from ematix_flow.backends.query_tables import Name
from ematix_flow.backends.stores.base import Store
from ematix_flow.backends.stores.folders import folders_below
from ematix_flow.backends.table_plans import column_definition
from ematix_flow.backends.upkeep import Size
from ematix_flow.errors import PlanError, SourceFailed
from ematix_flow.spec.naming import distinct_name
from ematix_flow.spec.tables import ColumnSpec, TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TOKEN, _NUMBER = "ematix_flow.token", "ematix_flow.number"
_STAND_INS = {  # a value of each type that is not a number
    "STRING": "''",
    "BINARY": "''",
    "BOOLEAN": "false",
    "DATE": "DATE '1970-01-01'",
    "TIMESTAMP": "TIMESTAMP '1970-01-01 00:00:00'",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ '1970-01-01 00:00:00'",
}
_ON_WRITE, _IN_SESSION = "snapshot-property.", "spark.sql.iceberg.snapshot-property."
_JOURNALS = ".ematix_flow/iceberg"
_OVERTAKEN = re.compile(
    r"CommitFailedException|ValidationException: [^\n]*"
    r"(?:[Cc]onflict|[Mm]issing (?:required|data) files|new delete)"
)
_UNKNOWN = "CommitStateUnknownException"


class IcebergFormat(LakeFormat):
    """Journals lie in the tables' folders, where those follow from the names; else in the store, with
    ``journals`` telling this catalog's from those of another one in the same place. ``warehouse`` is where
    tables are the folders of their names, if they are."""

    name = "Iceberg"

    def __init__(
        self, namespaces: Namespaces, store: Store, *, journals: str | None, warehouse: Store | None = None
    ) -> None:
        self._namespaces, self._store, self._journals = namespaces, store, journals
        self._warehouse = warehouse
        self._tables = CatalogTables(namespaces)
        self._dialect = IcebergDialect()

    def path(self, table: TableSpec) -> Path:
        """The table's full name; PlanError for one that cannot be."""
        try:
            return self._namespaces.full((table.schema, table.name) if table.schema else (table.name,))
        except ValueError as error:
            raise PlanError(
                f"{table.label!r} cannot be the name of an Iceberg table: {error}",
                where=table.where,
                next_step="choose another schema or name",
            ) from error

    def table(self, table: TableSpec) -> exp.Table:
        return self._namespaces.table(self.path(table))

    def named(self, name: Name) -> str:
        try:
            return self._namespaces.sql(self._namespaces.full(name))
        except ValueError as error:
            shown = ".".join(name)
            raise SourceFailed(f"{shown!r} cannot be the name of an Iceberg table: {error}") from error

    def folder(self, table: TableSpec) -> tuple[Store, str]:
        path = self.path(table)
        if self._journals is None:
            return self._store, "/".join(path)
        return self._store, f"{_JOURNALS}/{distinct_name(path[-1], self._journals, *path)}"

    def require_separate(self, table: TableSpec) -> None:
        store, path = self._warehouse, self.path(table)
        if store is None:
            return
        own = "/".join(path)
        around = ["/".join(path[:size]) for size in range(1, len(path))]
        found = next((folder for folder in around if is_table(store, folder)), None)
        if found is None and not is_table(store, own):
            below = (folder for folder, inside in folders_below(store, own, table) if METADATA in inside)
            found = next((folder for folder in below if is_table(store, folder)), None)
        if found is not None:
            raise PlanError(
                f"{'.'.join(path)!r} and {found.replace('/', '.')!r} would lie one in the other in "
                f"{store.uri('')}, and both are Iceberg tables",
                where=table.where,
                next_step="choose another schema or name",
            )

    def snapshot(self, spark: SparkSession, table: TableSpec) -> Snapshot | None:
        return self._tables.look(spark, self.path(table))

    def frame(self, spark: SparkSession, table: TableSpec, snapshot: Snapshot) -> DataFrame:
        return self._tables.read(spark, self.path(table), snapshot)

    def is_current(self, spark: SparkSession, table: TableSpec, snapshot: Snapshot | None) -> bool:
        now = self._tables.look(spark, self.path(table))
        return (now.version if now else None) == (snapshot.version if snapshot else None)

    def partitions(self, spark: SparkSession, table: TableSpec) -> tuple[str, ...]:
        return self._tables.partitions(spark, self.path(table))

    def missing_namespaces(self, spark: SparkSession, table: TableSpec) -> list[str]:
        """Those that the table needs and that are not there, outermost first, as SQL names them."""
        path = self.path(table)
        levels = [path[:size] for size in range(1, len(path))]
        return [self._tables.name(p) for p in levels if not self._tables.has_namespace(spark, p)]

    def create_sql(self, table: TableSpec, partition_by: Sequence[str]) -> str:
        lines = [column_definition(self._dialect, item) for item in table.columns]
        name = self._dialect.render(self.table(table))
        sql = f"CREATE TABLE IF NOT EXISTS {name} (\n  " + ",\n  ".join(lines) + "\n) USING iceberg"
        if partition_by:
            sql += f" PARTITIONED BY ({', '.join(self._dialect.quote(n) for n in partition_by)})"
        return sql

    # -------------------------------------------------------------- commits

    def create_with_rows(
        self,
        spark: SparkSession,
        table: TableSpec,
        partition_by: Sequence[str],
        rows: DataFrame,
        commit: Commit,
    ) -> None:
        quote, view = self._dialect.quote, fresh_view("rows")
        columns = [
            quote(c.name) if c.nullable else f"{self._never_null(c)} AS {quote(c.name)}"
            for c in table.columns
        ]
        sql = f"CREATE TABLE {self._name(table)} USING iceberg"
        if partition_by:
            sql += f" PARTITIONED BY ({', '.join(quote(name) for name in partition_by)})"
        rows.createOrReplaceTempView(view)
        try:
            with with_settings(spark, _carried(_IN_SESSION, commit)):
                spark.sql(f"{sql} AS SELECT {', '.join(columns)} FROM {view}")
        finally:
            spark.catalog.dropTempView(view)

    def _never_null(self, item: ColumnSpec) -> str:
        """The column as one that holds no null, as the table declares it; a null fails the load.

        Spark takes a column for such a one when a value stands in for its nulls.
        """
        native = self._dialect.native_type(item.type)
        stand_in = f"CAST({_STAND_INS.get(native, '0')} AS {native})"
        return f"coalesce({self._dialect.quote(item.name)}, CAST(assert_true(false) AS {native}), {stand_in})"

    def append(self, spark: SparkSession, table: TableSpec, rows: DataFrame, commit: Commit) -> None:
        rows.writeTo(self._name(table)).options(**_carried(_ON_WRITE, commit)).append()

    def replace(self, spark: SparkSession, table: TableSpec, rows: DataFrame, commit: Commit) -> None:
        from pyspark.sql import functions as f

        rows.writeTo(self._name(table)).options(**_carried(_ON_WRITE, commit)).overwrite(f.lit(True))

    def merge(self, spark: SparkSession, table: TableSpec, changes: Changes, commit: Commit) -> None:
        view = fresh_view("changes")
        changes.frame.createOrReplaceTempView(view)
        try:
            with with_settings(spark, _carried(_IN_SESSION, commit)):
                spark.sql(merge_sql(self._dialect, self.table(table), view, changes))
        finally:
            spark.catalog.dropTempView(view)

    def has_commit(self, spark: Callable[[], SparkSession], table: TableSpec, token: str) -> bool:
        if self._warehouse is not None:
            summaries = snapshot_summaries(self._warehouse, "/".join(self.path(table)))
            if summaries is not None:
                return any(summary.get(_TOKEN) == token for summary in summaries)
        if self.snapshot(spark(), table) is None:
            return False
        snapshots = spark().table(f"{self._name(table)}.snapshots")
        return snapshots.where(snapshots["summary"][_TOKEN] == token).limit(1).count() > 0

    def newest_load(self, spark: SparkSession, table: TableSpec) -> int:
        number = f"max(CAST(summary['{_NUMBER}'] AS BIGINT))"
        return int(spark.table(f"{self._name(table)}.snapshots").selectExpr(number).collect()[0][0] or 0)

    def is_conflict(self, error: Exception) -> bool:
        told = f"{error}\n{getattr(error, '_stackTrace', None) or getattr(error, '_stacktrace', None) or ''}"
        return _UNKNOWN not in told and _OVERTAKEN.search(told) is not None

    def _name(self, table: TableSpec) -> str:
        return self._tables.name(self.path(table))

    # -------------------------------------------------------------- upkeep

    def compact(
        self, spark: SparkSession, table: TableSpec, zorder: Sequence[str], *, dry_run: bool
    ) -> Compacted:
        upkeep = self._upkeep(spark, table)
        return upkeep.would_compact(zorder) if dry_run else upkeep.compact(zorder)

    def clean(
        self, spark: SparkSession, table: TableSpec, retain: dt.timedelta | None, *, dry_run: bool
    ) -> Size:
        upkeep = self._upkeep(spark, table)
        return upkeep.would_clean(retain) if dry_run else upkeep.clean(retain)

    def _upkeep(self, spark: SparkSession, table: TableSpec) -> IcebergUpkeep:
        return IcebergUpkeep(spark, self._namespaces.catalog, self._name(table))


def _carried(prefix: str, commit: Commit) -> dict[str, str]:
    return {f"{prefix}{_TOKEN}": commit.token, f"{prefix}{_NUMBER}": str(commit.number)}
