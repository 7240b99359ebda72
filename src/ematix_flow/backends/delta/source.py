"""Delta tables as a source: found by folder, and read by Spark in their current or an earlier version."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ematix_flow.backends.base import SparkSource
from ematix_flow.backends.delta.log_versions import LOG, first_and_last_version
from ematix_flow.backends.delta.table_lookup import DeltaTables
from ematix_flow.backends.spark_sql.query_tables import TableName, TimeTravel, query_frame, select_columns_sql
from ematix_flow.backends.spark_sql.row_refusals import text_literal
from ematix_flow.backends.stores.base import Store
from ematix_flow.errors import SourceFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NO_SUCH_VERSION = (
    "DELTA_VERSION_NOT_FOUND",
    "DELTA_TIMESTAMP_",
    "DELTA_TIME_TRAVEL_",
    "DELTA_UNSUPPORTED_TIME_TRAVEL",
)

# a table whose protocol lacks a feature that it uses, or names one that this Spark does not know
_UNSUPPORTED_FEATURES = re.compile(
    r"\[DELTA_(?:UNSUPPORTED_)?FEATURES_[A-Z_]+\] ([^\n]+?)\.?(?: SQLSTATE|\n|$)"
)
_UNCHANGED_SINCE = "DELTA_TIMESTAMP_GREATER_THAN_COMMIT"


class DeltaSource(SparkSource):
    """Tables under one root, read by Spark: ``FROM sales.orders`` is the folder ``sales/orders``."""

    def __init__(self, store: Store) -> None:
        self._store, self._tables = store, DeltaTables(store)

    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        return select_columns_sql(table, columns)

    def frame(self, spark: SparkSession, sql: str) -> DataFrame:
        return query_frame(
            spark,
            sql,
            lambda name: self._read_now(spark, name),
            lambda name, moment: self._read_at(spark, name, moment),
        )

    def _read_now(self, spark: SparkSession, name: TableName) -> DataFrame:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        folder = self._tables.find_folder(name)
        try:
            return spark.read.format("delta").load(self._store.uri(folder))
        except (Py4JJavaError, PySparkException) as error:
            reason = _UNSUPPORTED_FEATURES.search(str(error))
            if reason is None:
                raise
            raise SourceFailed(
                f"the Delta table {'.'.join(name)!r} cannot be read: {reason[1]}",
                next_step="let its writer list in the table's protocol all that the table uses, or write it "
                "again without: a column that takes nulls needs no 'invariants'",
            ) from error

    def _read_at(self, spark: SparkSession, name: TableName, moment: TimeTravel) -> DataFrame:
        from pyspark.errors import AnalysisException, IllegalArgumentException

        folder, value = self._tables.find_folder(name), moment.evaluate(spark)
        # read before Delta resolves the version: for a time after the last commit, no newer commit is read
        first, last = first_and_last_version(self._store, folder)
        option = "versionAsOf" if moment.kind == "version" else "timestampAsOf"
        try:
            frame = self._load(spark, folder, option, value)
        except (AnalysisException, IllegalArgumentException) as error:
            if _UNCHANGED_SINCE in str(error) and not _is_in_future(spark, value):
                frame = self._load(spark, folder, "versionAsOf", str(last))
            elif any(sign in str(error) for sign in _NO_SUCH_VERSION):
                raise SourceFailed(
                    f"{'.'.join(name)!r} cannot be read at {moment.kind} {value}: "
                    f"{_message_text(str(error))}",
                    next_step=f"name a version from {first} to {last}, or a time from the first of them on",
                ) from error
            else:
                raise
        self._require_files(name, folder, moment, frame)
        return frame

    def _load(self, spark: SparkSession, folder: str, option: str, value: str) -> DataFrame:
        return spark.read.format("delta").option(option, value).load(self._store.uri(folder))

    def _require_files(self, name: TableName, folder: str, moment: TimeTravel, frame: DataFrame) -> None:
        """Refuse a version whose files are gone: the log keeps a version longer than its files."""
        wanted = {unquote(path.rsplit("/", 1)[-1]) for path in frame.inputFiles()}
        there = {path.rsplit("/", 1)[-1] for path, _ in self._store.files_below(folder, without=(LOG,))}
        gone = len(wanted - there)
        if gone:
            raise SourceFailed(
                f"{'.'.join(name)!r} can no longer be read at {moment}: {gone} of its {len(wanted)} files "
                "were removed when the table was maintained",
                next_step="name a later time;  flow maintain --retain  sets how long files are kept",
            )


def _is_in_future(spark: SparkSession, time: str) -> bool:
    asked = f"SELECT CAST({text_literal(time)} AS TIMESTAMP) > current_timestamp()"
    return bool(spark.sql(asked).collect()[0][0])


def _message_text(text: str) -> str:
    """Delta's message in one line, without the name of the error."""
    text_line = " ".join(text.split(" SQLSTATE")[0].split())
    return (text_line.split("] ", 1)[-1] if text_line.startswith("[") else text_line).rstrip(".")
