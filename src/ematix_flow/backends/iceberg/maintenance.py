"""Maintenance of an Iceberg table with Iceberg's procedures, and previews of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.lake.table_format import CompactionResult
from ematix_flow.backends.maintenance import SAFE_RETENTION, FileTotals
from ematix_flow.backends.spark_sql.query_tables import quote_name
from ematix_flow.backends.spark_sql.row_refusals import text_literal

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

_SMALL = 128 * 1024 * 1024  # bytes; larger files are not rewritten whenever rows are added
_ORPHANS = dt.timedelta(days=1)  # younger files may belong to a commit that is under way: Iceberg insists
_DELETED = 2  # the status of an entry whose file a snapshot no longer has
_COUNTED = (
    "deleted_data_files_count",
    "deleted_position_delete_files_count",
    "deleted_equality_delete_files_count",
)


class IcebergMaintenance:
    """Maintenance of one table, given by its full name in SQL."""

    def __init__(self, spark: SparkSession, catalog: str, name: str) -> None:
        self._spark, self._catalog, self._name = spark, catalog, name

    def compact(self, zorder: Sequence[str]) -> CompactionResult:
        before = self._newest_size()
        options = {"min-file-size-bytes": str(_SMALL), "min-input-files": "2", "delete-file-threshold": "1"}
        order = ""
        if zorder:
            options["rewrite-all"] = "true"
            columns = ", ".join(quote_name(column) for column in zorder)
            order = f", strategy => 'sort', sort_order => {text_literal(f'zorder({columns})')}"
        pairs = ", ".join(f"{text_literal(k)}, {text_literal(v)}" for k, v in options.items())
        self._call_procedure("rewrite_data_files", f"{order}, options => map({pairs})")
        self._call_procedure("rewrite_manifests", "")
        return CompactionResult(before, self._newest_size())

    def preview_compact(self, zorder: Sequence[str]) -> CompactionResult:
        """Count the small files that would be merged: several in one partition."""
        small = "true" if zorder else f"file_size_in_bytes < {_SMALL}"
        rows = self._spark.table(f"{self._name}.files").where(small)
        divided = [name for name in ("spec_id", "partition") if name in rows.columns]
        counts = [row["count"] for row in rows.groupBy(*divided).count().collect()]
        return CompactionResult(
            self._newest_size(), None, sum(count for count in counts if count > 1 or zorder)
        )

    def remove_old_files(self, retain: dt.timedelta | None) -> FileTotals:
        kept = SAFE_RETENTION if retain is None else retain
        bytes_gone = self._removable_size(kept).bytes
        row = self._call_procedure(
            "expire_snapshots", f", older_than => {_timestamp_before(kept)}, retain_last => 1"
        )[0].asDict()
        orphans = self._remove_orphans(kept, dry_run=False)
        return FileTotals(sum(row.get(name) or 0 for name in _COUNTED) + orphans, bytes_gone)

    def preview_remove_old_files(self, retain: dt.timedelta | None) -> FileTotals:
        kept = SAFE_RETENTION if retain is None else retain
        found = self._removable_size(kept)
        return FileTotals(found.files + self._remove_orphans(kept, dry_run=True), found.bytes)

    # ------------------------------------------------------------------

    def _newest_size(self) -> FileTotals:
        return self._query_size(f"SELECT count(*), sum(file_size_in_bytes) FROM {self._name}.files")

    def _removable_size(self, retention: dt.timedelta) -> FileTotals:
        """The size of the files that neither the oldest remaining snapshot nor a later one needs."""
        snapshots = f"{self._name}.snapshots"
        newest = f"SELECT max(committed_at) FROM {snapshots}"
        oldest = (
            f"SELECT min(committed_at) FROM {snapshots} WHERE committed_at >= {_timestamp_before(retention)}"
        )
        return self._query_size(
            "SELECT count(*), sum(bytes) FROM (SELECT DISTINCT e.data_file.file_path AS path, "
            f"e.data_file.file_size_in_bytes AS bytes FROM {self._name}.all_entries AS e "
            f"JOIN {snapshots} AS s ON s.snapshot_id = e.snapshot_id "
            f"WHERE e.status = {_DELETED} AND s.committed_at <= coalesce(({oldest}), ({newest})))"
        )

    def _remove_orphans(self, retention: dt.timedelta, *, dry_run: bool) -> int:
        """Remove files in the table's folder that belong to no snapshot, such as those of a crashed write."""
        older = _timestamp_before(max(retention, _ORPHANS))
        shown = str(dry_run).lower()
        return len(
            self._call_procedure("remove_orphan_files", f", older_than => {older}, dry_run => {shown}")
        )

    def _query_size(self, sql: str) -> FileTotals:
        files, total = self._spark.sql(sql).collect()[0]
        return FileTotals(int(files), int(total or 0))

    def _call_procedure(self, procedure: str, arguments: str) -> list[Row]:
        table = text_literal(self._name)
        sql = f"CALL {quote_name(self._catalog)}.system.{procedure}(table => {table}{arguments})"
        found: list[Any] = self._spark.sql(sql).collect()
        return found


def _timestamp_before(age: dt.timedelta) -> str:
    moment = dt.datetime.now(dt.timezone.utc) - age
    return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}'"
