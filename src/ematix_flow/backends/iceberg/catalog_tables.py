"""Inspects the tables of a catalog: whether a table exists, its columns, partitions and current snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ematix_flow.backends.iceberg.table_names import Namespaces, TablePath, may_mean_metadata
from ematix_flow.backends.lake.table_format import TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_SNAPSHOT = "none"  # as the catalog shows a table that nothing was ever written to
_MISSING = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "NoSuchNamespaceException")
_PARTS = "# Partitioning"
_COLUMNS = "# Partition Information"


class CatalogTables:
    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    def quoted_name(self, path: TablePath) -> str:
        return self._namespaces.quoted_name(path)

    def find_snapshot(self, spark: SparkSession, path: TablePath) -> TableSnapshot | None:
        """The table's current snapshot; None if there is no table."""
        from pyspark.errors import AnalysisException

        if may_mean_metadata(path[-1]) and path[-1] not in self.table_names(spark, path[:-1]):
            return None
        try:
            schema = spark.table(self.quoted_name(path)).schema
            version = self.current_version(spark, path)
        except AnalysisException as error:
            if any(sign in str(error) for sign in _MISSING):
                return None
            raise
        return TableSnapshot(version, schema)

    def current_version(self, spark: SparkSession, path: TablePath) -> str:
        """The id of the current snapshot."""
        shown = spark.sql(f"SHOW TBLPROPERTIES {self.quoted_name(path)}").collect()
        return str({row[0]: row[1] for row in shown}.get("current-snapshot-id", NO_SNAPSHOT))

    def read_snapshot(self, spark: SparkSession, path: TablePath, snapshot: TableSnapshot) -> DataFrame:
        """The rows of a snapshot with the columns that the table has now.

        Iceberg reads a snapshot with the columns of its time. If they have changed since, this reads the
        current table, whose columns Iceberg finds in the files by their ids.
        """
        if snapshot.version == NO_SNAPSHOT or not self._has_current_columns(spark, path, snapshot.version):
            return spark.table(self.quoted_name(path))
        return spark.read.option("versionAsOf", snapshot.version).table(self.quoted_name(path))

    def _has_current_columns(self, spark: SparkSession, path: TablePath, version: str) -> bool:
        """Whether the columns of the table are still those of the snapshot, also in their ids and order.

        Spark Connect does not show ids: it compares names, types and order.
        """
        java: Any = spark
        if getattr(java, "_jvm", None) is None:
            then = spark.read.option("versionAsOf", version).table(self.quoted_name(path))
            return bool(then.schema == spark.table(self.quoted_name(path)).schema)
        table = java._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            java._jsparkSession, self.quoted_name(path)
        )
        found = table.snapshot(int(version))
        return found is not None and found.schemaId() == table.schema().schemaId()

    def partition_columns(self, spark: SparkSession, path: TablePath) -> tuple[str, ...]:
        """The partition columns or expressions, such as ``days(at)``."""
        rows = [tuple(row) for row in spark.sql(f"DESCRIBE TABLE {self.quoted_name(path)}").collect()]
        found: list[str] = []
        place = ""
        for first, second, *_ in rows:
            if first.startswith("#"):
                place = first if first != "# col_name" else place
            elif place == _PARTS and first.startswith("Part "):
                found.append(_unquoted(second))
            elif place == _COLUMNS and first:
                found.append(_unquoted(first))
        return tuple(found)

    def has_namespace(self, spark: SparkSession, path: TablePath) -> bool:
        return spark.catalog.databaseExists(self.quoted_name(path))

    def table_names(self, spark: SparkSession, namespace: TablePath) -> list[str]:
        """The names of the tables in a namespace; empty if there is no such namespace.

        Tables outside any namespace are not listed: a catalog does not list them.
        """
        if not namespace or not self.has_namespace(spark, namespace):
            return []
        return [
            row["tableName"] for row in spark.sql(f"SHOW TABLES IN {self.quoted_name(namespace)}").collect()
        ]


def _unquoted(name: str) -> str:
    if name.startswith("`") and name.endswith("`") and len(name) > 1:
        return name[1:-1].replace("``", "`")
    return name
