"""Maintenance of a Delta table with OPTIMIZE and VACUUM, and previews of both."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ematix_flow.backends.delta.log_versions import LOG
from ematix_flow.backends.lake.journal import FOLDER
from ematix_flow.backends.lake.spark_sql_session import temporary_settings
from ematix_flow.backends.lake.table_format import CompactionResult
from ematix_flow.backends.maintenance import SAFE_RETENTION, FileTotals
from ematix_flow.backends.spark_sql.query_tables import quote_name
from ematix_flow.backends.stores.base import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL = 128 * 1024 * 1024  # bytes; larger files are not rewritten whenever rows are added
_OPTIMIZE = {"spark.databricks.delta.optimize.minFileSize": str(_SMALL)}
_VACUUM = {
    # how many tasks list folders; Spark's default is 10,000, even for few folders
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
    # otherwise VACUUM adds two commits that change nothing to the table's log
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # otherwise Delta ignores RETAIN, unless it is 0, and uses the table's own retention
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
}
_RETENTION = "delta.deletedFileRetentionDuration"
_AMOUNT = re.compile(r"([+-]?\d+(?:\.\d+)?)\s+(week|day|hour|minute|second|millisecond|microsecond)s?\b")
_UNCHECKED = {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}


class DeltaMaintenance:
    """Maintenance of one table, given by its folder in a store and its name in SQL."""

    def __init__(self, spark: SparkSession, store: Store, folder: str, name: str) -> None:
        self._spark, self._store, self._folder, self._name = spark, store, folder, name

    def compact(self, zorder: Sequence[str]) -> CompactionResult:
        order = f" ZORDER BY ({', '.join(quote_name(column) for column in zorder)})" if zorder else ""
        with temporary_settings(self._spark, _OPTIMIZE):
            metrics = self._spark.sql(f"OPTIMIZE {self._name}{order}").collect()[0]["metrics"]
        added, removed = metrics["filesAdded"], metrics["filesRemoved"]
        after = self._newest_size()
        gone, new = (
            FileTotals(f["totalFiles"], f["totalSize"]) if f else FileTotals() for f in (removed, added)
        )
        return CompactionResult(after + gone - new, after)

    def preview_compact(self, zorder: Sequence[str]) -> CompactionResult:
        """Count the small files that would be merged: several in one partition."""
        sizes = dict(self._data_files())
        frame = self._spark.read.format("delta").load(self._store.uri(self._folder))
        newest = {self._relative_path(path): 0 for path in frame.inputFiles()}
        newest = {path: sizes.get(path, 0) for path in newest}
        small = [path for path, size in newest.items() if size < _SMALL or zorder]
        folders = Counter(path.rpartition("/")[0] for path in small)
        rewritten = sum(count for count in folders.values() if count > 1 or zorder)
        return CompactionResult(FileTotals(len(newest), sum(newest.values())), None, rewritten)

    def remove_old_files(self, retain: dt.timedelta | None) -> FileTotals:
        before = self._total_size()
        if retain is not None and retain > self.retention():
            # otherwise Delta forgets replaced files before that time, and deletes them as unknown files
            kept = f"'{_RETENTION}' = 'interval {int(retain.total_seconds())} seconds'"
            self._spark.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ({kept})")
        with temporary_settings(self._spark, self._vacuum_settings(retain)):
            self._spark.sql(self._vacuum_sql(retain))
        return before - self._total_size()

    def preview_remove_old_files(self, retain: dt.timedelta | None) -> FileTotals:
        with temporary_settings(self._spark, self._vacuum_settings(retain)):
            found = self._spark.sql(f"{self._vacuum_sql(retain)} DRY RUN").collect()
        sizes = dict(self._data_files())
        gone = [sizes[path] for row in found if (path := self._relative_path(row["path"])) in sizes]
        return FileTotals(len(gone), sum(gone))

    def retention(self) -> dt.timedelta:
        """How long the table keeps files that its newest version does not need."""
        properties = self._spark.sql(f"DESCRIBE DETAIL {self._name}").select("properties").collect()[0][0]
        declared = properties.get(_RETENTION)
        return SAFE_RETENTION if declared is None else parse_interval(declared)

    # ------------------------------------------------------------------

    def _vacuum_sql(self, retain: dt.timedelta | None) -> str:
        hours = "" if retain is None else f" RETAIN {retain.total_seconds() / 3600:.6f} HOURS"
        return f"VACUUM {self._name}{hours}"

    def _vacuum_settings(self, retain: dt.timedelta | None) -> Mapping[str, str]:
        """Turn off Delta's check for a shorter retention than the table's own: the user has forced it."""
        return _VACUUM if retain is None or retain >= self.retention() else _VACUUM | _UNCHECKED

    def _newest_size(self) -> FileTotals:
        detail = self._spark.sql(f"DESCRIBE DETAIL {self._name}").collect()[0]
        return FileTotals(detail["numFiles"], detail["sizeInBytes"])

    def _total_size(self) -> FileTotals:
        sizes = [size for _, size in self._data_files()]
        return FileTotals(len(sizes), sum(sizes))

    def _data_files(self) -> Iterator[tuple[str, int]]:
        """All files except Delta's log, our journal, and Hadoop's checksums."""
        for path, size in self._store.files_below(self._folder, without=(LOG, FOLDER)):
            if not path.rpartition("/")[2].startswith("."):
                yield path, size

    def _relative_path(self, uri: str) -> str:
        """The path of a file relative to the table's folder."""
        inside = f"/{self._folder}/"
        return unquote(uri).rpartition(inside)[2] if inside in unquote(uri) else uri


def parse_interval(interval: str) -> dt.timedelta:
    """Parse the interval of a table property, such as ``interval 1 week 12 hours``. It has no months."""
    amounts = _AMOUNT.findall(interval.lower())
    return sum((dt.timedelta(**{f"{unit}s": float(count)}) for count, unit in amounts), dt.timedelta(0))
