"""Iceberg tables of a ``hadoop`` catalog into which pyiceberg commits files.

A snapshot carries the same marks as one of Spark's (`commits`). It is for exactly the next version of the
table, so that of two writers only one succeeds, and nothing is repeated on a version that was not looked at.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.iceberg.data_files import data_file
from ematix_flow.backends.iceberg.direct_rules import (
    FORMAT_VERSIONS,
    NEW_TABLE_PROPERTIES,
    file_schema,
    plain_fields,
    reason_for_spark,
    table_schema,
)
from ematix_flow.backends.iceberg.hadoop_commits import (
    newest_version,
    publish_version,
    version_path,
    write_hint,
)
from ematix_flow.backends.iceberg.marked_commits import newest_load_of, snapshot_properties
from ematix_flow.backends.lake.direct_table import NO_VERSION, DirectTable, SparkNeeded, WrittenFile
from ematix_flow.backends.lake.journal import LakeCommit
from ematix_flow.backends.lake.table_format import ConcurrentCommit, TableField
from ematix_flow.backends.stores.local_store import LocalStore
from ematix_flow.spec.tables import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table.metadata import TableMetadata

_log = logging.getLogger(__name__)
DATA = "data"  # the folder of the files, in the table's folder
_DECODED = re.compile(r"[%\\?#]")  # of a URI


@dataclass(frozen=True)
class _OpenTable:
    """A version of a table, with the text of its metadata, by which it is known to be the same."""

    version: int
    text: str
    metadata: TableMetadata


class HadoopDirectTables:
    """The tables of one warehouse, whose address for Spark is ``root``."""

    def __init__(self, warehouse: LocalStore, root: str) -> None:
        self._store, self._root = warehouse, root.rstrip("/")
        self._open: dict[str, _OpenTable] = {}

    def find(
        self, folder: str, columns: Sequence[ColumnSpec], *, replaces: bool
    ) -> DirectTable | SparkNeeded:
        """The table in a folder, or why Spark must write these columns into it."""
        reason = self._unreachable_reason(folder)
        found = SparkNeeded(reason) if reason else self._read(folder)
        if isinstance(found, SparkNeeded):
            return found
        if found is None:
            return HadoopDirectTable(self._store, folder, self._new(folder, columns))
        reason = self._location_reason(folder, found.metadata) or reason_for_spark(found.metadata, columns)
        table = HadoopDirectTable(self._store, folder, found)
        reason = reason or (table.reason_not_to_replace() if replaces else None)
        return SparkNeeded(reason) if reason else table

    def fields(self, folder: str) -> Sequence[TableField] | None:
        """The columns of the table, if they are all plain."""
        found = None if self._unreachable_reason(folder) else self._read(folder)
        return plain_fields(found.metadata) if isinstance(found, _OpenTable) else None

    def committed_after(self, folder: str, version: int) -> str | None:
        """A text with the paths of all files that later snapshots have added; empty if that version is the
        newest. None if it cannot be told."""
        if newest_version(self._store, folder) in (version, None):
            return ""
        found = None if self._unreachable_reason(folder) else self._read(folder)
        if not isinstance(found, _OpenTable):
            return None
        table = HadoopDirectTable(self._store, folder, found)
        paths = table.paths_without_snapshots(self._snapshots_of(folder, version, found))
        return None if paths is None else "\n".join([f"version {found.version}", *paths])

    def _snapshots_of(self, folder: str, version: int, newest: _OpenTable) -> set[int]:
        """The ids of the snapshots that the table had at that version; empty if it does not tell."""
        if version > newest.version:  # another table by now
            return set()
        try:
            found = json.loads(self._store.read(version_path(folder, version)))
        except FileNotFoundError:
            return set()
        return {snapshot["snapshot-id"] for snapshot in found.get("snapshots", ())}

    def _unreachable_reason(self, folder: str) -> str | None:
        if importlib.util.find_spec("pyiceberg") is None:
            return 'pyiceberg is not installed (pip install "ematix-flow-spark[iceberg]")'
        unclear = _DECODED.search(self._store.uri(folder))
        if unclear:
            return f"pyiceberg may read {unclear[0]!r} in the name of a folder as something else"
        return None

    def _location_reason(self, folder: str, metadata: TableMetadata) -> str | None:
        if _plain_location(metadata.location) != _plain_location(f"{self._root}/{folder}"):
            return f"the table says that its files are in {metadata.location}"
        snapshot = metadata.current_snapshot()
        if snapshot is not None and not snapshot.manifest_list.startswith(f"{metadata.location}/"):
            return "the table has manifests in another place"
        return None

    def _read(self, folder: str) -> _OpenTable | SparkNeeded | None:
        """The table as it is now; None if there is no table."""
        version = newest_version(self._store, folder)
        if version is None:
            return None
        try:
            text = self._store.read(version_path(folder, version))
        except FileNotFoundError:
            return SparkNeeded("the metadata of the table is compressed, or has just been replaced")
        there = self._open.get(folder)
        if there is not None and (there.version, there.text) == (version, text):
            return there
        found = _parse_metadata(text)
        if isinstance(found, SparkNeeded):
            return found
        self._open[folder] = _OpenTable(version, text, found)
        return self._open[folder]

    def _new(self, folder: str, columns: Sequence[ColumnSpec]) -> _OpenTable:
        from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
        from pyiceberg.table.metadata import new_table_metadata
        from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

        metadata = new_table_metadata(
            table_schema(columns),
            UNPARTITIONED_PARTITION_SPEC,
            UNSORTED_SORT_ORDER,
            f"{self._root}/{folder}",
            dict(NEW_TABLE_PROPERTIES),
        )
        return _OpenTable(NO_VERSION, "", metadata)


class HadoopDirectTable(DirectTable):
    def __init__(self, store: LocalStore, folder: str, found: _OpenTable) -> None:
        from ematix_flow.backends.iceberg.table_files import TableFiles

        self._store, self._folder, self._found = store, folder, found
        self._files = TableFiles(store, folder, found.metadata.location)

    @property
    def version(self) -> int:
        return self._found.version

    @property
    def column_names(self) -> Sequence[str]:
        return [field.name for field in self._found.metadata.schema().fields]

    def file_schema(self, columns: Sequence[ColumnSpec]) -> pa.Schema:
        return file_schema(self._found.metadata.schema(), columns)

    def is_current(self) -> bool:
        newest = newest_version(self._store, self._folder)
        if newest is None or self.version == NO_VERSION:
            return newest is None and self.version == NO_VERSION
        return newest == self.version and self._has_text(newest, self._found.text)

    def newest_load(self) -> int:
        return newest_load_of(snapshot.summary or {} for snapshot in self._found.metadata.snapshots)

    def count_rows(self) -> int | None:
        counts = [_live_rows(manifest) for manifest in self._manifests()]
        return None if None in counts else sum(count for count in counts if count is not None)

    def reason_not_to_replace(self) -> str | None:
        from pyiceberg.manifest import ManifestContent

        manifests = self._manifests()
        if any(manifest.content != ManifestContent.DATA for manifest in manifests):
            return "the table has files of deleted rows"
        if not all(self._files.has(manifest.manifest_path) for manifest in manifests):
            return "the table has manifests in another place"
        return None

    def commit(self, files: Sequence[WrittenFile], commit: LakeCommit, *, replace: bool) -> None:
        from ematix_flow.backends.iceberg.snapshots import commit_files

        metadata = self._found.metadata
        data, schema = f"{metadata.location}/{DATA}", metadata.schema()
        try:
            commit_files(
                metadata,
                self._metadata_location,
                self._files,
                added=[data_file(file, data, schema, metadata.default_spec_id) for file in files],
                removed=self._live_files() if replace else None,
                properties=snapshot_properties(commit),
                publish=self._publish,
            )
        except ConcurrentCommit:
            self._files.remove_written()
            raise
        write_hint(self._store, self._folder, self._next_version)

    def tidy(self) -> None:
        return

    def paths_without_snapshots(self, known: Collection[int]) -> list[str] | None:
        """The paths of all files in snapshots but these; None if some are listed in another place."""
        lists = [each for each in self._found.metadata.snapshots if each.snapshot_id not in known]
        if not all(self._files.has(each.manifest_list) for each in lists):
            return None
        manifests = {m.manifest_path: m for each in lists for m in each.manifests(self._files)}
        new = [each for each in manifests.values() if each.added_snapshot_id not in known]
        if not all(self._files.has(each.manifest_path) for each in new):
            return None
        return [e.data_file.file_path for each in new for e in each.fetch_manifest_entry(self._files)]

    # ------------------------------------------------------------------

    @property
    def _next_version(self) -> int:
        return 1 if self.version == NO_VERSION else self.version + 1

    @property
    def _metadata_location(self) -> str | None:
        if self.version == NO_VERSION:
            return None
        return f"{self._found.metadata.location}/{version_path('', self.version).lstrip('/')}"

    def _publish(self, metadata: TableMetadata) -> None:
        """Commit the metadata as the next version; ConcurrentCommit if that is another writer's."""
        version, text = self._next_version, metadata.model_dump_json()
        try:
            publish_version(self._store, self._folder, version, text)
        except FileExistsError as error:
            raise ConcurrentCommit from error
        if not self._has_text(version, text):  # a writer that renames may have replaced it
            raise ConcurrentCommit

    def _has_text(self, version: int, text: str) -> bool:
        try:
            return self._store.read(version_path(self._folder, version)) == text
        except FileNotFoundError:
            return False

    def _manifests(self) -> Sequence[ManifestFile]:
        snapshot = self._found.metadata.current_snapshot()
        return snapshot.manifests(self._files) if snapshot is not None else []

    def _live_files(self) -> list[DataFile]:
        entries = [entry for each in self._manifests() for entry in each.fetch_manifest_entry(self._files)]
        return [entry.data_file for entry in entries]


def _parse_metadata(text: str) -> TableMetadata | SparkNeeded:
    from pyiceberg.table.metadata import TableMetadataUtil

    before = json.loads(text)
    if before.get("format-version") not in FORMAT_VERSIONS:
        return SparkNeeded(f"the table has format version {before.get('format-version')}")
    if before.get("current-snapshot-id") == -1:  # as Iceberg may write that there is none
        del before["current-snapshot-id"]
    try:
        metadata = TableMetadataUtil.parse_raw(text)
    except Exception as error:  # Spark may read what pyiceberg cannot
        return SparkNeeded(f"pyiceberg cannot read the table: {str(error).splitlines()[0]}")
    if not _keeps_all(before, json.loads(metadata.model_dump_json())):
        return SparkNeeded("the table has metadata that pyiceberg does not know")
    return metadata


def _live_rows(manifest: ManifestFile) -> int | None:
    counts = (manifest.added_rows_count, manifest.existing_rows_count)
    return None if None in counts else sum(count for count in counts if count is not None)


def _plain_location(location: str) -> str:
    """The location of a folder on a disk as a path. Both ``file:/a`` and ``file:///a`` are in use."""
    return re.sub(r"^file:/*", "/", location)


def _keeps_all(before: Any, after: Any) -> bool:
    """Whether JSON that was read and written again still has all that it had."""
    if isinstance(before, dict):
        return isinstance(after, dict) and all(_keeps_all(v, after.get(k)) for k, v in before.items())
    if isinstance(before, list):
        same = isinstance(after, list) and len(before) == len(after)
        return same and all(_keeps_all(old, new) for old, new in zip(before, after, strict=True))
    return bool(before == after)
