"""What a table format brings: where a table is, what it looks like, and its one commit."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.lake.journal import LakeCommit
from ematix_flow.backends.lake.row_changes import RowChanges
from ematix_flow.backends.maintenance import SAFE_RETENTION, FileTotals
from ematix_flow.backends.spark_sql.query_tables import TableName
from ematix_flow.backends.stores.base import Store
from ematix_flow.spec.tables import TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class TableSnapshot:
    """A table at one moment. ``version`` is the format's own name of it."""

    version: str
    schema: StructType


@dataclass(frozen=True)
class CompactionResult:
    """The files of the newest version. After a dry run ``small`` are those that would be written anew."""

    before: FileTotals
    after: FileTotals | None
    small: int = 0


class ConcurrentCommit(Exception):
    """Another writer committed to the table after it was read: the load is to be computed anew."""


class LakeFormat(ABC):
    """One table format under one connection. A method that needs Spark takes the session it works in."""

    name: str  # as a person knows it
    levels = "."  # between the parts of a schema that has several

    @abstractmethod
    def table_expression(self, table: TableSpec) -> exp.Table:
        """How SQL names it. PlanError for a name that cannot be one."""

    @abstractmethod
    def sql_name(self, name: TableName) -> str:
        """How SQL names the table that a user's statement calls so. SourceFailed when there is none."""

    @abstractmethod
    def table_folder(self, table: TableSpec) -> tuple[Store, str]:
        """Where the table lies, also before it is there: a store and the folder in it."""

    def require_separate(self, table: TableSpec) -> None:
        """PlanError for a table whose folder lies in another's, or around it: its upkeep would be theirs."""
        return

    @abstractmethod
    def snapshot(self, spark: SparkSession, table: TableSpec) -> TableSnapshot | None:
        """The table as it is now; None when there is none."""

    @abstractmethod
    def read_snapshot(self, spark: SparkSession, table: TableSpec, snapshot: TableSnapshot) -> DataFrame:
        """Its rows at that moment, or at a later one: then `is_current` says so before anything is done."""

    @abstractmethod
    def is_current(self, spark: SparkSession, table: TableSpec, snapshot: TableSnapshot | None) -> bool:
        """Whether nobody has committed to the table since; None is a table that is not there."""

    @abstractmethod
    def partition_columns(self, spark: SparkSession, table: TableSpec) -> tuple[str, ...]:
        """The columns that the files of a table which is there are divided by."""

    @abstractmethod
    def create_sql(self, table: TableSpec, partition_by: Sequence[str]) -> str:
        """The statement that makes the table, safe when it is there."""

    def create(self, spark: SparkSession, table: TableSpec, partition_by: Sequence[str]) -> None:
        """Make the table that `create_sql` tells of, unless it is there. Our journal lies there already."""
        spark.sql(self.create_sql(table, partition_by))

    @abstractmethod
    def create_with_rows(
        self,
        spark: SparkSession,
        table: TableSpec,
        partition_by: Sequence[str],
        rows: DataFrame,
        commit: LakeCommit,
    ) -> None:
        """Make the table with its first rows, of exactly its columns, in one commit; fails if it is there."""

    def prepare_column_change(self, spark: SparkSession, table: TableSpec, action: str, column: str) -> None:
        """Called before a column of the table is added or gets a wider type."""
        return

    @abstractmethod
    def append(self, spark: SparkSession, table: TableSpec, rows: DataFrame, commit: LakeCommit) -> None:
        """Add rows in one commit."""

    @abstractmethod
    def replace(self, spark: SparkSession, table: TableSpec, rows: DataFrame, commit: LakeCommit) -> None:
        """Put these rows in the place of all others, in one commit."""

    @abstractmethod
    def merge(self, spark: SparkSession, table: TableSpec, changes: RowChanges, commit: LakeCommit) -> None:
        """Carry out the changes in one commit."""

    @abstractmethod
    def has_commit(self, spark: Callable[[], SparkSession], table: TableSpec, token: str) -> bool:
        """Whether one of the table's commits carries the token. ``spark`` is asked where no file tells."""

    @abstractmethod
    def newest_load(self, spark: SparkSession, table: TableSpec) -> int:
        """The highest number of a load that the table's newest commits carry; 0 when none does."""

    def refuse_rows(self, spark: SparkSession, table: TableSpec, changes: RowChanges) -> None:
        """RowRejected when a rule of the table refuses a row that the changes write. Writes nothing."""
        return

    @abstractmethod
    def is_conflict(self, error: Exception) -> bool:
        """Whether a commit failed because another writer was first: then nothing of it was done."""

    # -------------------------------------------------------------- upkeep

    @abstractmethod
    def compact(
        self, spark: SparkSession, table: TableSpec, zorder: Sequence[str], *, dry_run: bool
    ) -> CompactionResult:
        """Bring small files together, in one commit that changes no row."""

    def retention(self, spark: SparkSession, table: TableSpec) -> dt.timedelta:
        """How long files stay that the newest version of a table which is there does not need."""
        return SAFE_RETENTION

    @abstractmethod
    def remove_old_files(
        self, spark: SparkSession, table: TableSpec, retain: dt.timedelta | None, *, dry_run: bool
    ) -> FileTotals:
        """Remove files that only versions older than ``retain`` need, or none; None: as the table says."""
