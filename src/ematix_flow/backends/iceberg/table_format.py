"""Iceberg tables for the lake target: named in a catalog, one snapshot per statement, the commit's token in
the snapshot's summary."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.iceberg.catalog_tables import CatalogTables
from ematix_flow.backends.iceberg.dialect import IcebergDialect
from ematix_flow.backends.iceberg.direct_table import DATA, HadoopDirectTables
from ematix_flow.backends.iceberg.hadoop_tables import METADATA, is_table
from ematix_flow.backends.iceberg.maintenance import IcebergMaintenance
from ematix_flow.backends.iceberg.marked_commits import (
    append_rows,
    commit_changes,
    folder_has_commit,
    has_commit,
    is_conflict,
    newest_load,
    replace_rows,
    session_settings,
)
from ematix_flow.backends.iceberg.table_names import Namespaces, TablePath
from ematix_flow.backends.lake.direct_table import DirectTable, SparkNeeded
from ematix_flow.backends.lake.journal import LakeCommit
from ematix_flow.backends.lake.row_changes import RowChanges, new_view_name
from ematix_flow.backends.lake.spark_sql_session import temporary_settings
from ematix_flow.backends.lake.table_format import (
    CompactionResult,
    LakeFormat,
    NewTable,
    TableField,
    TableSnapshot,
)
from ematix_flow.backends.maintenance import FileTotals
from ematix_flow.backends.spark_sql.query_tables import TableName
from ematix_flow.backends.sql.create_table import column_definition
from ematix_flow.backends.stores.base import Store
from ematix_flow.backends.stores.table_folders import folders_below
from ematix_flow.errors import PlanError, SourceFailed
from ematix_flow.spec.generated_names import distinct_name
from ematix_flow.spec.tables import ColumnSpec, TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STAND_INS = {  # a value of each type that is not a number
    "STRING": "''",
    "BINARY": "''",
    "BOOLEAN": "false",
    "DATE": "DATE '1970-01-01'",
    "TIMESTAMP": "TIMESTAMP '1970-01-01 00:00:00'",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ '1970-01-01 00:00:00'",
}
_JOURNALS = ".ematix_flow/iceberg"


class IcebergFormat(LakeFormat):
    """``store`` holds the journals: in the tables' folders where these follow from the names, else under
    ``journals``, which is unique for this catalog. ``warehouse`` is set if tables are the folders of their
    names. ``direct`` finds the tables into which files are committed as they are."""

    name = "Iceberg"
    committer = "pyiceberg"

    def __init__(
        self,
        namespaces: Namespaces,
        store: Store,
        *,
        journals: str | None,
        warehouse: Store | None = None,
        direct: HadoopDirectTables | SparkNeeded,
    ) -> None:
        self._namespaces, self._store, self._journals = namespaces, store, journals
        self._warehouse, self._direct = warehouse, direct
        self._tables = CatalogTables(namespaces)
        self._dialect = IcebergDialect()

    def table_path(self, table: TableSpec) -> TablePath:
        """The table's full name; PlanError if it is not valid."""
        try:
            return self._namespaces.full_path((table.schema, table.name) if table.schema else (table.name,))
        except ValueError as error:
            raise PlanError(
                f"{table.label!r} cannot be the name of an Iceberg table: {error}",
                where=table.where,
                next_step="choose another schema or name",
            ) from error

    def table_expression(self, table: TableSpec) -> exp.Table:
        return self._namespaces.table_expression(self.table_path(table))

    def sql_name(self, name: TableName) -> str:
        try:
            return self._namespaces.quoted_name(self._namespaces.full_path(name))
        except ValueError as error:
            shown = ".".join(name)
            raise SourceFailed(f"{shown!r} cannot be the name of an Iceberg table: {error}") from error

    def table_folder(self, table: TableSpec) -> tuple[Store, str]:
        path = self.table_path(table)
        if self._journals is None:
            return self._store, "/".join(path)
        return self._store, f"{_JOURNALS}/{distinct_name(path[-1], self._journals, *path)}"

    def data_folder(self, table: TableSpec) -> str:
        return f"{self.table_folder(table)[1]}/{DATA}"

    def require_separate(self, table: TableSpec) -> None:
        store, path = self._warehouse, self.table_path(table)
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
                f"{'.'.join(path)!r} and {found.replace('/', '.')!r} would be one inside the other in "
                f"{store.uri('')}, and both are Iceberg tables",
                where=table.where,
                next_step="choose another schema or name",
            )

    def snapshot(self, spark: SparkSession, table: TableSpec) -> TableSnapshot | None:
        return self._tables.find_snapshot(spark, self.table_path(table))

    def read_snapshot(self, spark: SparkSession, table: TableSpec, snapshot: TableSnapshot) -> DataFrame:
        return self._tables.read_snapshot(spark, self.table_path(table), snapshot)

    def is_current(self, spark: SparkSession, table: TableSpec, snapshot: TableSnapshot | None) -> bool:
        now = self._tables.find_snapshot(spark, self.table_path(table))
        return (now.version if now else None) == (snapshot.version if snapshot else None)

    def partition_columns(self, spark: SparkSession, table: TableSpec) -> tuple[str, ...]:
        return self._tables.partition_columns(spark, self.table_path(table))

    def missing_namespaces(self, spark: SparkSession, table: TableSpec) -> list[str]:
        """The namespaces that the table needs and that do not exist, outermost first, quoted for SQL."""
        path = self.table_path(table)
        levels = [path[:size] for size in range(1, len(path))]
        return [self._tables.quoted_name(p) for p in levels if not self._tables.has_namespace(spark, p)]

    def create_sql(self, table: TableSpec, partition_by: Sequence[str]) -> str:
        lines = [column_definition(self._dialect, item) for item in table.columns]
        name = self._dialect.render(self.table_expression(table))
        sql = f"CREATE TABLE IF NOT EXISTS {name} (\n  " + ",\n  ".join(lines) + "\n) USING iceberg"
        if partition_by:
            sql += f" PARTITIONED BY ({', '.join(self._dialect.quote(n) for n in partition_by)})"
        return sql

    # -------------------------------------------------------------- commits

    def create_with_rows(self, spark: SparkSession, new: NewTable) -> None:
        quote, view = self._dialect.quote, new_view_name("rows")
        columns = [
            quote(c.name) if c.nullable else f"{self._not_null_column(c)} AS {quote(c.name)}"
            for c in new.spec.columns
        ]
        sql = f"CREATE TABLE {self._name(new.spec)} USING iceberg"
        if new.partition_by:
            sql += f" PARTITIONED BY ({', '.join(quote(name) for name in new.partition_by)})"
        new.rows.createOrReplaceTempView(view)
        try:
            with temporary_settings(spark, session_settings(new.commit)):
                spark.sql(f"{sql} AS SELECT {', '.join(columns)} FROM {view}")
        finally:
            spark.catalog.dropTempView(view)

    def _not_null_column(self, item: ColumnSpec) -> str:
        """The column as NOT NULL, as the table declares it; a null fails the load.

        Spark treats a column as NOT NULL when a default replaces its nulls.
        """
        native = self._dialect.native_type(item.type)
        stand_in = f"CAST({_STAND_INS.get(native, '0')} AS {native})"
        return f"coalesce({self._dialect.quote(item.name)}, CAST(assert_true(false) AS {native}), {stand_in})"

    def append(self, spark: SparkSession, table: TableSpec, rows: DataFrame, commit: LakeCommit) -> None:
        append_rows(self._name(table), rows, commit)

    def replace(self, spark: SparkSession, table: TableSpec, rows: DataFrame, commit: LakeCommit) -> None:
        replace_rows(self._name(table), rows, commit)

    def merge(self, spark: SparkSession, table: TableSpec, changes: RowChanges, commit: LakeCommit) -> None:
        commit_changes(spark, self._dialect, self.table_expression(table), changes, commit)

    def has_commit(self, spark: Callable[[], SparkSession], table: TableSpec, token: str) -> bool:
        if self._warehouse is not None:
            found = folder_has_commit(self._warehouse, "/".join(self.table_path(table)), token)
            if found is not None:
                return found
        return self.snapshot(spark(), table) is not None and has_commit(spark(), self._name(table), token)

    def newest_load(self, spark: SparkSession, table: TableSpec) -> int:
        return newest_load(spark, self._name(table))

    def may_exist(self, table: TableSpec) -> bool:
        return self._warehouse is None or is_table(self._warehouse, "/".join(self.table_path(table)))

    def direct_table(
        self, table: TableSpec, *, replaces: bool, may_be_old: bool = False
    ) -> DirectTable | SparkNeeded | None:
        if isinstance(self._direct, SparkNeeded):
            return self._direct
        return self._direct.find("/".join(self.table_path(table)), table.columns, replaces=replaces)

    def direct_fields(self, table: TableSpec) -> Sequence[TableField] | None:
        if isinstance(self._direct, SparkNeeded):
            return None
        return self._direct.fields("/".join(self.table_path(table)))

    def commits_after(self, data_folder: str, version: int) -> str | None:
        if isinstance(self._direct, SparkNeeded):
            return None
        return self._direct.committed_after(data_folder.removesuffix(f"/{DATA}"), version)

    def is_conflict(self, error: Exception) -> bool:
        return is_conflict(error)

    def _name(self, table: TableSpec) -> str:
        return self._tables.quoted_name(self.table_path(table))

    # -------------------------------------------------------------- maintenance

    def compact(
        self, spark: SparkSession, table: TableSpec, zorder: Sequence[str], *, dry_run: bool
    ) -> CompactionResult:
        maintenance = self._maintenance(spark, table)
        return maintenance.preview_compact(zorder) if dry_run else maintenance.compact(zorder)

    def remove_old_files(
        self, spark: SparkSession, table: TableSpec, retain: dt.timedelta | None, *, dry_run: bool
    ) -> FileTotals:
        maintenance = self._maintenance(spark, table)
        return (
            maintenance.preview_remove_old_files(retain) if dry_run else maintenance.remove_old_files(retain)
        )

    def _maintenance(self, spark: SparkSession, table: TableSpec) -> IcebergMaintenance:
        return IcebergMaintenance(spark, self._namespaces.catalog, self._name(table))
