"""Delta tables for the lake target: addressed by path, one commit per statement (`marked_commits`)."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.delta import marked_commits
from ematix_flow.backends.delta.direct_rules import needs_mapping
from ematix_flow.backends.delta.direct_table import DeltaDirectTables, commits_after
from ematix_flow.backends.delta.log_versions import LOG, is_table, list_versions
from ematix_flow.backends.delta.maintenance import DeltaMaintenance
from ematix_flow.backends.delta.row_rules import read_rules, refuse_broken_rows
from ematix_flow.backends.delta.table_lookup import DeltaTables, find_plain_file
from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.backends.lake.direct_table import DirectTable, SparkNeeded
from ematix_flow.backends.lake.frame_columns import conform_frame
from ematix_flow.backends.lake.journal import FOLDER, LakeCommit
from ematix_flow.backends.lake.row_changes import RowChanges
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
from ematix_flow.backends.stores.table_folders import folders_below, is_hidden, table_folder
from ematix_flow.errors import PlanError
from ematix_flow.spec.tables import TableSpec
from ematix_flow.strategies.sql import identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CONFLICTS = (
    "DELTA_CONCURRENT",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
    "io.delta.exceptions.Concurrent",
)
_WRITTEN = re.compile(r"part-.*\.parquet|[^/]*=[^/]*")  # what a first load that died leaves without a log


class DeltaFormat(LakeFormat):
    name = "Delta Lake"
    levels = "/"
    committer = "delta-rs"
    finds_rows = True

    def __init__(self, store: Store) -> None:
        self._store = store
        self._dialect = LakeDialect()
        self._direct = DeltaDirectTables(store)
        self._separate: set[str] = set()  # folders of tables that were found to be separate

    def table_expression(self, table: TableSpec) -> exp.Table:
        return exp.Table(this=identifier(self._uri(table)), db=identifier("delta"))

    def sql_name(self, name: TableName) -> str:
        return f"delta.{self._dialect.quote(self._store.uri(DeltaTables(self._store).find_folder(name)))}"

    def table_folder(self, table: TableSpec) -> tuple[Store, str]:
        return self._store, "/".join(table_folder(table))

    def _uri(self, table: TableSpec) -> str:
        return self._store.uri("/".join(table_folder(table)))

    def _versions(self, table: TableSpec) -> list[int]:
        return list_versions(self._store, "/".join(table_folder(table)))

    def require_separate(self, table: TableSpec) -> None:
        parts = table_folder(table)
        around = ["/".join(parts[:size]) for size in range(1, len(parts))]
        own = "/".join(parts)
        if own in self._separate:
            return
        is_there = is_table(self._store, own)
        # a table has its own folders, possibly many
        within = [f"{own}/{n}" for n in self._store.folders(own) if not is_hidden(n)] if is_there else []
        for folder in (*around, *within):
            if is_table(self._store, folder):
                raise _nested_table_error(table, own, folder)
        has_journal = not is_there and bool(self._store.names(f"{own}/{FOLDER}"))
        for folder, inside in () if is_there else folders_below(self._store, own, table):
            if folder != own and LOG in inside and is_table(self._store, folder):
                raise _nested_table_error(table, own, folder)
            other = find_plain_file(self._store, folder, inside)
            if other is not None and not (has_journal and _WRITTEN.fullmatch(other)):
                shown = f"{folder}/{other}".removeprefix(f"{own}/")
                raise PlanError(
                    f"{self._uri(table)} is not a Delta table and contains {shown!r}, "
                    "which maintenance would remove",
                    where=table.where,
                    next_step="move its content away, or choose another schema or name",
                )
        if is_there:
            self._separate.add(own)

    def snapshot(self, spark: SparkSession, table: TableSpec) -> TableSnapshot | None:
        versions = self._versions(table)
        if not versions:
            return None
        return TableSnapshot(str(versions[-1]), self._read(spark, table).schema)

    def read_snapshot(self, spark: SparkSession, table: TableSpec, snapshot: TableSnapshot) -> DataFrame:
        # not by its version: Delta caches the newest state of a table and recomputes any other
        return self._read(spark, table)

    def is_current(self, spark: SparkSession, table: TableSpec, snapshot: TableSnapshot | None) -> bool:
        versions = self._versions(table)
        return str(versions[-1]) == snapshot.version if snapshot and versions else not (snapshot or versions)

    def _read(self, spark: SparkSession, table: TableSpec) -> DataFrame:
        return spark.read.format("delta").load(self._uri(table))

    def partition_columns(self, spark: SparkSession, table: TableSpec) -> tuple[str, ...]:
        detail = spark.sql(f"DESCRIBE DETAIL {self._dialect.render(self.table_expression(table))}")
        return tuple(detail.select("partitionColumns").collect()[0][0])

    def create_sql(self, table: TableSpec, partition_by: Sequence[str]) -> str:
        # staging refuses nulls; a constraint that Spark cannot read back could never be compared or relaxed
        lines = [column_definition(self._dialect, replace(item, nullable=True)) for item in table.columns]
        name = self._dialect.render(self.table_expression(table))
        sql = f"CREATE TABLE IF NOT EXISTS {name} (\n  " + ",\n  ".join(lines) + "\n) USING delta"
        if partition_by:
            sql += f" PARTITIONED BY ({', '.join(self._dialect.quote(n) for n in partition_by)})"
        for key, value in _table_properties(table.column_names).items():
            sql += f" TBLPROPERTIES ('{key}' = '{value}')"
        return sql

    def create(self, spark: SparkSession, table: TableSpec, partition_by: Sequence[str]) -> None:
        # CREATE TABLE would take a folder with any file, such as our journal, for an existing table
        empty = conform_frame(spark, None, table).write.format("delta").mode("ignore")
        empty.options(**_table_properties(table.column_names)).partitionBy(*partition_by).save(
            self._uri(table)
        )

    def create_with_rows(self, spark: SparkSession, new: NewTable) -> None:
        marked_commits.commit_rows(
            self._uri(new.spec),
            new.rows,
            new.commit,
            "error",
            partition_by=new.partition_by,
            properties=_table_properties(new.spec.column_names),
        )

    def prepare_column_change(self, spark: SparkSession, table: TableSpec, action: str, column: str) -> None:
        wanted = (
            {"delta.enableTypeWidening": "true"} if action == "widen_column" else _table_properties([column])
        )
        name = self._dialect.render(self.table_expression(table))
        there = spark.sql(f"DESCRIBE DETAIL {name}").select("properties").collect()[0][0] if wanted else {}
        for key, value in wanted.items():
            if there.get(key) != value:
                spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{key}' = '{value}')")

    # -------------------------------------------------------------- commits

    def append(self, spark: SparkSession, table: TableSpec, rows: DataFrame, commit: LakeCommit) -> None:
        marked_commits.commit_rows(self._uri(table), rows, commit, "append")

    def replace(self, spark: SparkSession, table: TableSpec, rows: DataFrame, commit: LakeCommit) -> None:
        marked_commits.commit_rows(self._uri(table), rows, commit, "overwrite")

    def merge(self, spark: SparkSession, table: TableSpec, changes: RowChanges, commit: LakeCommit) -> None:
        marked_commits.commit_changes(spark, self._dialect, self.table_expression(table), changes, commit)

    def has_commit(self, spark: Callable[[], SparkSession], table: TableSpec, token: str) -> bool:
        name = self._dialect.render(self.table_expression(table))
        return marked_commits.has_commit(spark, self._store, "/".join(table_folder(table)), name, token)

    def newest_load(self, spark: SparkSession, table: TableSpec) -> int:
        return marked_commits.newest_load(self._store, "/".join(table_folder(table)))

    def may_exist(self, table: TableSpec) -> bool:
        return bool(self._versions(table))

    def direct_table(
        self, table: TableSpec, *, replaces: bool, may_be_old: bool = False
    ) -> DirectTable | SparkNeeded | None:
        folder = "/".join(table_folder(table))
        return self._direct.find(folder, table.columns, replaces=replaces, may_be_old=may_be_old)

    def direct_fields(self, table: TableSpec) -> Sequence[TableField] | None:
        return self._direct.fields("/".join(table_folder(table)))

    def commits_after(self, data_folder: str, version: int) -> str | None:
        return commits_after(self._store, data_folder, version)

    def refuse_rows(self, spark: SparkSession, table: TableSpec, changes: RowChanges) -> None:
        if self._versions(table):
            rules = read_rules(spark, self._uri(table))
            refuse_broken_rows(rules, table, self._read(spark, table), changes)

    def is_conflict(self, error: Exception) -> bool:
        message = str(error)
        return any(sign in message for sign in _CONFLICTS)

    # -------------------------------------------------------------- maintenance

    def compact(
        self, spark: SparkSession, table: TableSpec, zorder: Sequence[str], *, dry_run: bool
    ) -> CompactionResult:
        maintenance = self._maintenance(spark, table)
        return maintenance.preview_compact(zorder) if dry_run else maintenance.compact(zorder)

    def retention(self, spark: SparkSession, table: TableSpec) -> dt.timedelta:
        return self._maintenance(spark, table).retention()

    def remove_old_files(
        self, spark: SparkSession, table: TableSpec, retain: dt.timedelta | None, *, dry_run: bool
    ) -> FileTotals:
        maintenance = self._maintenance(spark, table)
        return (
            maintenance.preview_remove_old_files(retain) if dry_run else maintenance.remove_old_files(retain)
        )

    def _maintenance(self, spark: SparkSession, table: TableSpec) -> DeltaMaintenance:
        name = self._dialect.render(self.table_expression(table))
        return DeltaMaintenance(spark, self._store, "/".join(table_folder(table)), name)


def _nested_table_error(table: TableSpec, own: str, folder: str) -> PlanError:
    return PlanError(
        f"{own!r} and {folder!r} would be one inside the other, and both are Delta tables",
        where=table.where,
        next_step="choose another schema or name",
    )


def _table_properties(columns: Iterable[str]) -> dict[str, str]:
    mapped = any(needs_mapping(name) for name in columns)
    return {"delta.columnMapping.mode": "name"} if mapped else {}
