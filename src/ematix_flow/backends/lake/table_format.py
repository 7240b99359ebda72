"""The interface of a table format (Delta, Iceberg): where a table is, its columns, and its commits."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.lake.direct_table import DirectTable, SparkNeeded
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
    """A snapshot of a table. ``version`` is the format's own name for it."""

    version: str
    schema: StructType


@dataclass(frozen=True)
class TableField:
    """A column of a table, with its type as Spark names it."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True)
class CompactionResult:
    """The files of the newest version. After a dry run, ``small`` is the number of files that would be
    rewritten."""

    before: FileTotals
    after: FileTotals | None
    small: int = 0


class ConcurrentCommit(Exception):
    """Another writer committed to the table after it was read: the load must be computed again."""


@dataclass(frozen=True)
class NewTable:
    """A table that does not exist yet, and the first rows, which have exactly its columns."""

    spec: TableSpec
    partition_by: Sequence[str]
    rows: DataFrame
    commit: LakeCommit


class LakeFormat(ABC):
    """One table format under one connection. A method that needs Spark takes the session."""

    name: str  # as a person knows it
    levels = "."  # between the parts of a schema that has several
    committer = ""  # what commits into the tables of `direct_table`, as a person knows it
    finds_rows = False  # whether these tables answer `rows_at`

    @abstractmethod
    def table_expression(self, table: TableSpec) -> exp.Table:
        """The table's name in SQL; PlanError if it is not valid."""

    @abstractmethod
    def sql_name(self, name: TableName) -> str:
        """The SQL name of a table in a user's statement; SourceFailed if there is no such table."""

    @abstractmethod
    def table_folder(self, table: TableSpec) -> tuple[Store, str]:
        """The store and the folder of the table, which may not exist yet."""

    def data_folder(self, table: TableSpec) -> str:
        """The folder of the table's files in its store."""
        return self.table_folder(table)[1]

    def require_separate(self, table: TableSpec) -> None:
        """Refuse a table inside another table's folder, or around one: maintenance of one would affect the
        other."""
        return

    @abstractmethod
    def snapshot(self, spark: SparkSession, table: TableSpec) -> TableSnapshot | None:
        """The table's current snapshot; None if there is no table."""

    @abstractmethod
    def read_snapshot(self, spark: SparkSession, table: TableSpec, snapshot: TableSnapshot) -> DataFrame:
        """The rows of that snapshot or a later one. `is_current` detects a later one before the commit."""

    @abstractmethod
    def is_current(self, spark: SparkSession, table: TableSpec, snapshot: TableSnapshot | None) -> bool:
        """Whether there is no commit since that snapshot. None means that the table does not exist."""

    @abstractmethod
    def partition_columns(self, spark: SparkSession, table: TableSpec) -> tuple[str, ...]:
        """The partition columns of an existing table."""

    @abstractmethod
    def create_sql(self, table: TableSpec, partition_by: Sequence[str]) -> str:
        """The statement that creates the table if it does not exist."""

    def create(self, spark: SparkSession, table: TableSpec, partition_by: Sequence[str]) -> None:
        """Create the table of `create_sql` if it does not exist. Our journal is already in its folder."""
        spark.sql(self.create_sql(table, partition_by))

    @abstractmethod
    def create_with_rows(self, spark: SparkSession, new: NewTable) -> None:
        """Create the table with its first rows in one commit; fails if it exists."""

    def prepare_column_change(self, spark: SparkSession, table: TableSpec, action: str, column: str) -> None:
        """Called before a column of the table is added or gets a wider type."""
        return

    @abstractmethod
    def append(self, spark: SparkSession, table: TableSpec, rows: DataFrame, commit: LakeCommit) -> None:
        """Add rows in one commit."""

    @abstractmethod
    def replace(self, spark: SparkSession, table: TableSpec, rows: DataFrame, commit: LakeCommit) -> None:
        """Replace all rows with these, in one commit."""

    @abstractmethod
    def merge(self, spark: SparkSession, table: TableSpec, changes: RowChanges, commit: LakeCommit) -> None:
        """Apply the changes in one commit."""

    @abstractmethod
    def has_commit(self, spark: Callable[[], SparkSession], table: TableSpec, token: str) -> bool:
        """Whether a commit of the table carries the token. ``spark`` is used if files alone cannot tell."""

    @abstractmethod
    def newest_load(self, spark: SparkSession, table: TableSpec) -> int:
        """The highest load number in the table's newest commits; 0 if there is none."""

    def may_exist(self, table: TableSpec) -> bool:
        """Whether the table may exist, as far as files tell without Spark."""
        return True

    def direct_table(
        self, table: TableSpec, *, replaces: bool, may_be_old: bool = False
    ) -> DirectTable | SparkNeeded | None:
        """The table to commit files into as they are, or why Spark must write them. None: never possible.

        ``replaces``: the files replace all rows. ``may_be_old``: a table that is already open will do, which
        may lack newer commits.
        """
        return None

    def direct_fields(self, table: TableSpec) -> Sequence[TableField] | None:
        """The columns of an existing table, if they are known without Spark."""
        return None

    def commits_after(self, data_folder: str, version: int) -> str | None:
        """The text of all commits of a direct table after that version; None if it is not complete."""
        return None

    def refuse_rows(self, spark: SparkSession, table: TableSpec, changes: RowChanges) -> None:
        """Raise RowRejected if a rule of the table refuses a row of the changes. Writes nothing."""
        return

    @abstractmethod
    def is_conflict(self, error: Exception) -> bool:
        """Whether a commit failed because another writer was first; then nothing of it is applied."""

    # -------------------------------------------------------------- maintenance

    @abstractmethod
    def compact(
        self, spark: SparkSession, table: TableSpec, zorder: Sequence[str], *, dry_run: bool
    ) -> CompactionResult:
        """Merge small files, in one commit that changes no row."""

    def retention(self, spark: SparkSession, table: TableSpec) -> dt.timedelta:
        """How long an existing table keeps files that its newest version does not need."""
        return SAFE_RETENTION

    @abstractmethod
    def remove_old_files(
        self, spark: SparkSession, table: TableSpec, retain: dt.timedelta | None, *, dry_run: bool
    ) -> FileTotals:
        """Remove files that only versions older than ``retain`` need, or none need. None: the table's own
        retention."""
