"""Finds Delta tables under a root by name: ``sales.orders`` is ``sales/orders``."""

from __future__ import annotations

from collections.abc import Iterable

from ematix_flow.backends.delta.log_versions import is_table
from ematix_flow.backends.lake.direct_staging import is_direct_file
from ematix_flow.backends.spark_sql.query_tables import TableName
from ematix_flow.backends.stores.base import Store
from ematix_flow.backends.stores.table_folders import is_hidden, path_segments
from ematix_flow.errors import SourceFailed, SourceMissing, did_you_mean

_LOOKED_INTO = 20  # folders of a folder, to find the table that was meant


class DeltaTables:
    def __init__(self, store: Store) -> None:
        self._store = store

    def find_folder(self, name: TableName) -> str:
        """The folder of the table. SourceFailed suggests a similar table if there is none."""
        try:
            folder = "/".join(part for each in name for part in path_segments(each))
        except ValueError as error:
            raise SourceFailed(f"{'.'.join(name)!r} cannot be the name of a Delta table: {error}") from error
        if not is_table(self._store, folder):
            raise self._missing_error(name, folder)
        return folder

    def _missing_error(self, name: TableName, folder: str) -> SourceFailed:
        shown, root = ".".join(name), self._store.uri("")
        if find_plain_file(self._store, folder) is not None:
            return SourceFailed(
                f"the folder of {shown!r} in {root} has files, but is not a Delta table: "
                "it has no _delta_log",
                next_step="read plain files with an object_store_local or object_store_s3 connection",
            )
        suggestion = did_you_mean(folder.replace("/", "."), self._similar_tables(folder))
        return SourceMissing(
            f"there is no Delta table {shown!r} in {root}.{suggestion}",
            next_step="name a table by its folders, as in  FROM sales.orders",
        )

    def _similar_tables(self, folder: str) -> list[str]:
        """Tables near a missing one: in the same folder, with the same name elsewhere, or one level below."""
        above, _, last = folder.rpartition("/")
        neighbours = self._folders(above)
        if above and not neighbours:
            neighbours = [f"{each}/{last}" for each in self._folders("")]
        found: list[str] = []
        for each in neighbours:
            found += [each] if is_table(self._store, each) else self._folders(each)
        return [each.replace("/", ".") for each in found]

    def _folders(self, folder: str) -> list[str]:
        names = [name for name in self._store.folders(folder) if not is_hidden(name)]
        return [f"{folder}/{name}".lstrip("/") for name in names[:_LOOKED_INTO]]


def find_plain_file(store: Store, folder: str, inside: Iterable[str] | None = None) -> str | None:
    """A data file or a partition folder in a folder that is not a Delta table.

    Files that a first load has written count only from its commit on.

    ``inside`` are the folders in it, if they are known.
    """
    files = (name for name in store.names(folder) if not is_hidden(name) and not is_direct_file(name))
    partitions = (name for name in (store.folders(folder) if inside is None else inside) if "=" in name)
    return next(files, None) or next(partitions, None)
