"""Makes one snapshot of a table with pyiceberg, and lets the caller publish the metadata that has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

Publish = Callable[[TableMetadata], None]
# Iceberg's own default, which pyiceberg does not have: appends merge manifests when there are many
_MERGE = {"commit.manifest-merge.enabled": "true"}


def commit_files(
    base: TableMetadata,
    location: str | None,
    files: FileIO,
    *,
    added: Sequence[DataFile],
    removed: Sequence[DataFile] | None,
    properties: Mapping[str, str],
    publish: Publish,
) -> None:
    """Commit a snapshot on top of the base, whose metadata is at the location (None if it is nowhere yet).

    ``removed`` are the files that the new ones replace; None for an append.
    """
    catalog = _OneVersion(base, location, publish)
    # the properties are those of this transaction alone: the catalog applies the updates to its base
    metadata = base.model_copy(update={"properties": _MERGE | base.properties})
    table = Table(("table",), metadata, location or "", files, catalog)
    with table.transaction() as transaction:
        update = transaction.update_snapshot(snapshot_properties=dict(properties))
        snapshot = update.merge_append() if removed is None else update.overwrite()
        with snapshot:
            for each in removed or ():
                snapshot.delete_data_file(each)
            for each in added:
                snapshot.append_data_file(each)


class _OneVersion(NoopCatalog):
    """A catalog that commits one time, on the metadata that it began with."""

    def __init__(self, base: TableMetadata, location: str | None, publish: Publish) -> None:
        super().__init__("one version")
        self._base, self._location, self._publish = base, location, publish

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        for requirement in requirements:
            requirement.validate(self._base)
        metadata = update_table_metadata(self._base, updates, metadata_location=self._location)
        self._publish(metadata)
        return CommitTableResponse(metadata=metadata, **{"metadata-location": self._location or ""})
