"""Iceberg's own procedures to keep a table in shape, and what they would do."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.lake.table import Compacted
from ematix_flow.backends.query_tables import quoted
from ematix_flow.backends.refusals import text
from ematix_flow.backends.upkeep import SAFE, Size

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

_SMALL = 128 * 1024 * 1024  # bytes; what is larger is not written anew each time that something was added
_ORPHANS = dt.timedelta(days=1)  # younger files may belong to a commit that is under way: Iceberg insists
_DELETED = 2  # the status of an entry whose file a snapshot no longer has
_COUNTED = (
    "deleted_data_files_count",
    "deleted_position_delete_files_count",
    "deleted_equality_delete_files_count",
)


class IcebergUpkeep:
    """Of one table, by its full name in SQL."""

    def __init__(self, spark: SparkSession, catalog: str, name: str) -> None:
        self._spark, self._catalog, self._name = spark, catalog, name

    def compact(self, zorder: Sequence[str]) -> Compacted:
        before = self._newest()
        options = {"min-file-size-bytes": str(_SMALL), "min-input-files": "2", "delete-file-threshold": "1"}
        order = ""
        if zorder:
            options["rewrite-all"] = "true"
            columns = ", ".join(quoted(column) for column in zorder)
            order = f", strategy => 'sort', sort_order => {text(f'zorder({columns})')}"
        pairs = ", ".join(f"{text(k)}, {text(v)}" for k, v in options.items())
        self._call("rewrite_data_files", f"{order}, options => map({pairs})")
        self._call("rewrite_manifests", "")
        return Compacted(before, self._newest())

    def would_compact(self, zorder: Sequence[str]) -> Compacted:
        """Files of one partition that are small are brought together when there are several."""
        small = "true" if zorder else f"file_size_in_bytes < {_SMALL}"
        rows = self._spark.table(f"{self._name}.files").where(small)
        divided = [name for name in ("spec_id", "partition") if name in rows.columns]
        counts = [row["count"] for row in rows.groupBy(*divided).count().collect()]
        return Compacted(self._newest(), None, sum(count for count in counts if count > 1 or zorder))

    def clean(self, retain: dt.timedelta | None) -> Size:
        kept = SAFE if retain is None else retain
        bytes_gone = self._removable(kept).bytes
        row = self._call("expire_snapshots", f", older_than => {_ago(kept)}, retain_last => 1")[0].asDict()
        orphans = self._orphans(kept, dry_run=False)
        return Size(sum(row.get(name) or 0 for name in _COUNTED) + orphans, bytes_gone)

    def would_clean(self, retain: dt.timedelta | None) -> Size:
        kept = SAFE if retain is None else retain
        found = self._removable(kept)
        return Size(found.files + self._orphans(kept, dry_run=True), found.bytes)

    # ------------------------------------------------------------------

    def _newest(self) -> Size:
        return self._sized(f"SELECT count(*), sum(file_size_in_bytes) FROM {self._name}.files")

    def _removable(self, kept: dt.timedelta) -> Size:
        """Files that the oldest snapshot which stays, and those after it, do without."""
        snapshots = f"{self._name}.snapshots"
        newest = f"SELECT max(committed_at) FROM {snapshots}"
        oldest = f"SELECT min(committed_at) FROM {snapshots} WHERE committed_at >= {_ago(kept)}"
        return self._sized(
            "SELECT count(*), sum(bytes) FROM (SELECT DISTINCT e.data_file.file_path AS path, "
            f"e.data_file.file_size_in_bytes AS bytes FROM {self._name}.all_entries AS e "
            f"JOIN {snapshots} AS s ON s.snapshot_id = e.snapshot_id "
            f"WHERE e.status = {_DELETED} AND s.committed_at <= coalesce(({oldest}), ({newest})))"
        )

    def _orphans(self, kept: dt.timedelta, *, dry_run: bool) -> int:
        """Files in the table's folder that no snapshot knows: what a write that died has left."""
        older = _ago(max(kept, _ORPHANS))
        shown = str(dry_run).lower()
        return len(self._call("remove_orphan_files", f", older_than => {older}, dry_run => {shown}"))

    def _sized(self, sql: str) -> Size:
        files, total = self._spark.sql(sql).collect()[0]
        return Size(int(files), int(total or 0))

    def _call(self, procedure: str, arguments: str) -> list[Row]:
        table = text(self._name)
        sql = f"CALL {quoted(self._catalog)}.system.{procedure}(table => {table}{arguments})"
        found: list[Any] = self._spark.sql(sql).collect()
        return found


def _ago(age: dt.timedelta) -> str:
    moment = dt.datetime.now(dt.timezone.utc) - age
    return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}'"
