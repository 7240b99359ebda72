"""Looking at the tables of a catalog: whether one is there, its columns, partitions and current snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.backends.iceberg.names import Namespaces, Path, may_mean_metadata
from ematix_flow.backends.lake.table import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_SNAPSHOT = "none"  # as the catalog shows a table that nothing was ever written to
_MISSING = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "NoSuchNamespaceException")
_PARTS = "# Partitioning"
_COLUMNS = "# Partition Information"


class CatalogTables:
    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    def name(self, path: Path) -> str:
        return self._namespaces.sql(path)

    def look(self, spark: SparkSession, path: Path) -> Snapshot | None:
        """The table as it is now; None when there is none."""
        from pyspark.errors import AnalysisException

        if may_mean_metadata(path[-1]) and path[-1] not in self.names(spark, path[:-1]):
            return None
        try:
            schema = spark.table(self.name(path)).schema
            version = self.version(spark, path)
        except AnalysisException as error:
            if any(sign in str(error) for sign in _MISSING):
                return None
            raise
        return Snapshot(version, schema)

    def version(self, spark: SparkSession, path: Path) -> str:
        """The id of the current snapshot."""
        shown = spark.sql(f"SHOW TBLPROPERTIES {self.name(path)}").collect()
        return str({row[0]: row[1] for row in shown}.get("current-snapshot-id", NO_SNAPSHOT))

    def read(self, spark: SparkSession, path: Path, snapshot: Snapshot) -> DataFrame:
        """The rows of that moment.

        A moment has the columns that it had. When one was renamed since, only the table as it is now has
        the names that are asked for.
        """
        now = spark.table(self.name(path))
        if snapshot.version == NO_SNAPSHOT:
            return now
        then = spark.read.option("versionAsOf", snapshot.version).table(self.name(path))
        return then if set(then.columns) <= set(snapshot.schema.names) else now

    def partitions(self, spark: SparkSession, path: Path) -> tuple[str, ...]:
        """The columns, or what of them (``days(at)``), that its files are divided by."""
        rows = [tuple(row) for row in spark.sql(f"DESCRIBE TABLE {self.name(path)}").collect()]
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

    def has_namespace(self, spark: SparkSession, path: Path) -> bool:
        return spark.catalog.databaseExists(self.name(path))

    def names(self, spark: SparkSession, namespace: Path) -> list[str]:
        """The names of the tables in a namespace; none when there is no such namespace.

        Nor of those in no namespace: a catalog may have some, and does not list them.
        """
        if not namespace or not self.has_namespace(spark, namespace):
            return []
        return [row["tableName"] for row in spark.sql(f"SHOW TABLES IN {self.name(namespace)}").collect()]


def _unquoted(name: str) -> str:
    if name.startswith("`") and name.endswith("`") and len(name) > 1:
        return name[1:-1].replace("``", "`")
    return name
