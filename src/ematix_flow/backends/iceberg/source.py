"""Iceberg tables as a source: Spark reads the current snapshot or an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends.base import SparkSource
from ematix_flow.backends.iceberg.catalog_tables import CatalogTables
from ematix_flow.backends.iceberg.spark_catalog import open_catalog
from ematix_flow.backends.iceberg.table_names import Namespaces, TablePath, may_mean_metadata
from ematix_flow.backends.spark_sql.query_tables import TableName, TimeTravel, query_frame, select_columns_sql
from ematix_flow.errors import SourceFailed, did_you_mean
from ematix_flow.spec.connections.lakes import IcebergConnection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NO_SUCH_SNAPSHOT = ("Cannot find", "Invalid time travel")


class IcebergSource(SparkSource):
    """``FROM sales.orders`` is the table ``orders`` in ``sales`` below the connection's namespace."""

    def __init__(self, connection: IcebergConnection, namespaces: Namespaces, label: str) -> None:
        self._connection, self._namespaces, self._label = connection, namespaces, label
        self._tables = CatalogTables(namespaces)

    def table_query(self, table: str, columns: Sequence[tuple[str, str]]) -> str:
        return select_columns_sql(table, columns)

    def frame(self, spark: SparkSession, sql: str) -> DataFrame:
        open_catalog(spark, self._connection)
        return query_frame(
            spark,
            sql,
            lambda name: self._read(spark, name),
            lambda name, moment: self._read_at(spark, name, moment),
        )

    def _path(self, name: TableName) -> TablePath:
        try:
            return self._namespaces.full_path(name)
        except ValueError as error:
            raise SourceFailed(
                f"{'.'.join(name)!r} cannot be the name of an Iceberg table: {error}",
                next_step="name a table by its namespace, as in  FROM sales.orders",
            ) from error

    def _read(self, spark: SparkSession, name: TableName) -> DataFrame:
        path = self._path(name)
        snapshot = self._tables.find_snapshot(spark, path)
        if snapshot is not None:
            return self._tables.read_snapshot(spark, path, snapshot)
        of_another = len(path) > 1 and may_mean_metadata(path[-1])
        if of_another and self._tables.find_snapshot(spark, path[:-1]) is not None:
            return spark.table(self._tables.quoted_name(path))
        raise self._missing(spark, path)

    def _read_at(self, spark: SparkSession, name: TableName, moment: TimeTravel) -> DataFrame:
        """A version is a snapshot's id, or the name of a tag or a branch."""
        from pyspark.errors import AnalysisException, IllegalArgumentException

        path, value = self._path(name), moment.evaluate(spark)
        if self._tables.find_snapshot(spark, path) is None:
            raise self._missing(spark, path)
        option = "versionAsOf" if moment.kind == "version" else "timestampAsOf"
        try:
            return spark.read.option(option, value).table(self._tables.quoted_name(path))
        except (AnalysisException, IllegalArgumentException) as error:
            if not any(sign in str(error) for sign in _NO_SUCH_SNAPSHOT):
                raise
            raise SourceFailed(
                f"{'.'.join(name)!r} cannot be read at {moment.kind} {value}: {_first_line(error)}",
                next_step=f"its snapshots are the rows of  SELECT * FROM {'.'.join(name)}.snapshots",
            ) from error

    def _missing(self, spark: SparkSession, path: TablePath) -> SourceFailed:
        suggestion = did_you_mean(path[-1], self._tables.table_names(spark, path[:-1]))
        return SourceFailed(
            f"there is no Iceberg table {'.'.join(path)!r} in {self._label}.{suggestion}",
            next_step="name a table by its namespace, as in  FROM sales.orders",
        )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")
