"""Commits a batch to a Delta table with its mark, and finds the marks of earlier commits in the table's log.

A commit carries our load number as ``txn`` of the table, so that Delta refuses a number that exists, and lets
only one of two concurrent commits through. Its user metadata is the commit's token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.delta.log_versions import LOG, list_versions
from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.backends.lake.journal import LakeCommit
from ematix_flow.backends.lake.row_changes import RowChanges, merge_sql, new_view_name
from ematix_flow.backends.lake.spark_sql_session import temporary_settings
from ematix_flow.backends.stores.base import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APPLICATION = "ematix_flow"
_COMMITS_TO_SEARCH = 30  # the newest commits are read from the log itself, older ones from the history
_LOAD_NUMBER = re.compile(rf'"txn":\{{"appId":"{APPLICATION}","version":(\d+)')
_WRITE = "spark.databricks.delta.write"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


def commit_rows(
    uri: str,
    rows: DataFrame,
    commit: LakeCommit,
    mode: str,
    *,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> None:
    """Write the rows to the table's folder in one commit. ``mode`` is that of Spark's writer."""
    rows.write.format("delta").mode(mode).partitionBy(*partition_by).options(
        **(properties or {}),
        partitionOverwriteMode="static",  # delete all rows, for any setting of the session
        txnAppId=APPLICATION,
        txnVersion=commit.number,
        userMetadata=commit.token,
    ).save(uri)


def commit_changes(
    spark: SparkSession, dialect: LakeDialect, table: exp.Table, changes: RowChanges, commit: LakeCommit
) -> None:
    """Apply the changes by one MERGE, in one commit."""
    view = new_view_name("changes")
    changes.frame.createOrReplaceTempView(view)
    try:
        with temporary_settings(spark, _commit_settings(commit)):
            spark.sql(merge_sql(dialect, table, view, changes))
    finally:
        spark.catalog.dropTempView(view)


def _commit_settings(commit: LakeCommit) -> dict[str, str]:
    """Settings with which the next statement of a session commits with the number and the token."""
    return {
        f"{_WRITE}.txnAppId": APPLICATION,
        f"{_WRITE}.txnVersion": str(commit.number),
        _METADATA: commit.token,
    }


def has_commit(spark: Callable[[], SparkSession], store: Store, folder: str, table: str, token: str) -> bool:
    """Whether a commit carries the token. ``table`` is the table's name in SQL."""
    versions = list_versions(store, folder)
    for version in reversed(versions[-_COMMITS_TO_SEARCH:]):
        if token in store.read(f"{folder}/{LOG}/{version:020d}.json").split("\n", 1)[0]:
            return True
    if len(versions) <= _COMMITS_TO_SEARCH:
        return False
    history = spark().sql(f"DESCRIBE HISTORY {table}")
    return history.where(history["userMetadata"] == token).limit(1).count() > 0


def newest_load(store: Store, folder: str) -> int:
    """The highest load number in the newest commits; 0 if there is none."""
    for version in reversed(list_versions(store, folder)[-_COMMITS_TO_SEARCH:]):
        found = load_number(store.read(f"{folder}/{LOG}/{version:020d}.json"))
        if found:
            return found
    return 0


def load_number(commit: str) -> int:
    """The load number in the text of a commit; 0 if it has none."""
    found = _LOAD_NUMBER.search(commit)
    return int(found[1]) if found else 0
