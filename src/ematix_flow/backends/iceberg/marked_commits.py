"""Commits a batch to an Iceberg table with its mark, and finds the marks of earlier commits in its snapshots.

The mark is the commit's token and load number, in the snapshot's summary. Tables are named as SQL has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.iceberg.dialect import IcebergDialect
from ematix_flow.backends.iceberg.hadoop_tables import snapshot_summaries
from ematix_flow.backends.lake.journal import LakeCommit
from ematix_flow.backends.lake.row_changes import RowChanges, merge_sql, new_view_name
from ematix_flow.backends.lake.spark_sql_session import temporary_settings
from ematix_flow.backends.stores.base import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TOKEN, _NUMBER = "ematix_flow.token", "ematix_flow.number"
_ON_WRITE, _IN_SESSION = "snapshot-property.", "spark.sql.iceberg.snapshot-property."
_CONFLICT = re.compile(
    r"CommitFailedException|ValidationException: [^\n]*"
    r"(?:[Cc]onflict|[Mm]issing (?:required|data) files|new delete)"
)
_UNKNOWN = "CommitStateUnknownException"


def append_rows(table: str, rows: DataFrame, commit: LakeCommit) -> None:
    """Add the rows in one commit."""
    rows.writeTo(table).options(**_commit_settings(_ON_WRITE, commit)).append()


def replace_rows(table: str, rows: DataFrame, commit: LakeCommit) -> None:
    """Replace all rows in one commit."""
    from pyspark.sql import functions as f

    rows.writeTo(table).options(**_commit_settings(_ON_WRITE, commit)).overwrite(f.lit(True))


def commit_changes(
    spark: SparkSession, dialect: IcebergDialect, table: exp.Table, changes: RowChanges, commit: LakeCommit
) -> None:
    """Apply the changes by one MERGE, in one commit."""
    view = new_view_name("changes")
    changes.frame.createOrReplaceTempView(view)
    try:
        with temporary_settings(spark, session_settings(commit)):
            spark.sql(merge_sql(dialect, table, view, changes))
    finally:
        spark.catalog.dropTempView(view)


def session_settings(commit: LakeCommit) -> dict[str, str]:
    """Settings with which the next statement of a session commits with the mark."""
    return _commit_settings(_IN_SESSION, commit)


def snapshot_properties(commit: LakeCommit) -> dict[str, str]:
    """The mark, as the snapshot's summary has it."""
    return _commit_settings("", commit)


def newest_load_of(summaries: Iterable[Mapping[str, str]]) -> int:
    """The highest load number in summaries of snapshots; 0 if there is none."""
    return max((int(summary.get(_NUMBER) or 0) for summary in summaries), default=0)


def _commit_settings(prefix: str, commit: LakeCommit) -> dict[str, str]:
    return {f"{prefix}{_TOKEN}": commit.token, f"{prefix}{_NUMBER}": str(commit.number)}


def folder_has_commit(warehouse: Store, folder: str, token: str) -> bool | None:
    """Whether a snapshot of the table in this folder carries the token; None if its files do not tell."""
    summaries = snapshot_summaries(warehouse, folder)
    return None if summaries is None else any(summary.get(_TOKEN) == token for summary in summaries)


def has_commit(spark: SparkSession, table: str, token: str) -> bool:
    """Whether a snapshot of the table, which exists, carries the token."""
    snapshots = spark.table(f"{table}.snapshots")
    return snapshots.where(snapshots["summary"][_TOKEN] == token).limit(1).count() > 0


def newest_load(spark: SparkSession, table: str) -> int:
    """The highest load number in the table's snapshots; 0 if there is none."""
    number = f"max(CAST(summary['{_NUMBER}'] AS BIGINT))"
    return int(spark.table(f"{table}.snapshots").selectExpr(number).collect()[0][0] or 0)


def is_conflict(error: Exception) -> bool:
    """Whether a commit failed because another one came first, and nothing was committed."""
    message = f"{error}\n{getattr(error, '_stackTrace', None) or getattr(error, '_stacktrace', None) or ''}"
    return _UNKNOWN not in message and _CONFLICT.search(message) is not None
