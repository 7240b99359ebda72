"""The tables under a root: how each is laid out now, what a declaration changes, and making it so.

A folder that the user filled is adopted by the first change: its files become the first version, and
the folder itself is set aside whole.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ematix_flow.backends.base import LiveTable, Load, TableChange, TablePlan
from ematix_flow.backends.objectstore.diskfailures import told_of
from ematix_flow.backends.objectstore.filelayout import (
    DEFAULT_COMPRESSION,
    CsvDialect,
    FileLayout,
    bare,
    merged_columns,
)
from ematix_flow.backends.objectstore.inspection import (
    Holds,
    columns_of_files,
    compare,
    csv_dialect,
    holds_as_found,
    holds_as_written,
    require_format,
    users_files,
    users_partitions,
)
from ematix_flow.backends.objectstore.places import Place, data_files, place_of
from ematix_flow.backends.objectstore.readers import count_rows
from ematix_flow.backends.objectstore.tablestate import FileFacts, TableState
from ematix_flow.backends.objectstore.versions import (
    Version,
    current_version,
    link_files,
    publish,
    seal_version,
    settle,
    table_lock,
)
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.tables import TableSpec


class FilesTables:
    """Tables as folders of files of one format."""

    def __init__(self, root: Path, format: str) -> None:
        self.root, self.format = root, format

    def place(self, table: TableSpec) -> Place:
        place = place_of(self.root, table)
        place.require_separate()
        return place

    def inspect(self, table: TableSpec) -> LiveTable | None:
        place = self.place(table)
        with told_of(place.folder, f"{table.label} is unchanged"):
            layout = self._layout_there(place, table)
        if layout is None:
            return None
        return LiveTable(layout.columns, tuple(c.name for c in layout.columns if c.primary_key))

    def plan(self, table: TableSpec, live: LiveTable | None) -> TablePlan:
        place = self.place(table)
        if live is None:
            return TablePlan((TableChange("create_folder", str(place.folder)),))
        plan = compare(table, live, self._holds(place))
        if current_version(place) is not None:
            return plan
        count = len(users_files(place, self.format))
        words = f"{place.folder} (its {count:,} files stay, as the first version)"
        adopt = TableChange("create_folder", words)
        return replace(plan, changes=(adopt, *plan.changes))

    def change(self, table: TableSpec, plan: TablePlan) -> None:
        """Carry out a plan: a version for a new or adopted folder, columns that were added."""
        place = self.place(table)
        if not plan.changes:
            return
        with told_of(place.folder, f"{table.label} is unchanged"), table_lock(place):
            version = self.ensure(place, table)
            layout = version.state.layout
            columns = merged_columns(layout.columns, table.with_load_columns().columns)
            if len(columns) > len(layout.columns):
                state = replace(version.state, layout=replace(layout, columns=columns))
                path = link_files(place, data_files(version.data))
                publish(place, seal_version(place, path, version, state))

    def ensure(self, place: Place, table: TableSpec) -> Version:
        """The current version; made if there is none, of the user's files if there are some."""
        settle(place)
        version = current_version(place)
        if version is not None:
            return version
        state = self._users_state(place, table)
        if state is None:
            columns = tuple(bare(c) for c in table.with_load_columns().columns)
            state = TableState(place.name, FileLayout(self.format, columns))
        path = link_files(place, users_files(place, self.format))
        version = seal_version(place, path, None, state)
        publish(place, version)
        settle(place)
        return version

    def look_at(self, place: Place, table: TableSpec) -> Version | None:
        """What `ensure` would give, without making it; None when there is nothing."""
        version = current_version(place)
        if version is not None:
            return version
        state = self._users_state(place, table)
        return Version(place.folder, state, place.folder) if state is not None else None

    def _users_state(self, place: Place, table: TableSpec) -> TableState | None:
        """The state that a user's own files will have; declared columns in their declared types."""
        found = self._layout_there(place, table)
        if found is None:
            return None
        declared = {c.name: c for c in table.with_load_columns().columns}
        columns = tuple(bare(declared.get(c.name, c), nullable=True) for c in found.columns)
        facts = {
            file.name: FileFacts(count_rows(file.path, self.format, found.csv))
            for file in users_files(place, self.format)
        }
        return TableState(place.name, replace(found, columns=columns), facts)

    def layout_of(self, load: Load) -> FileLayout:
        """How a load's files are laid out: beside files that stay, as those are."""
        place, table = self.place(load.table), load.table
        declared = tuple(bare(c) for c in table.with_load_columns().columns)
        layout = FileLayout(
            format=self.format,
            columns=declared,
            partition_by=load.partition_by,
            csv=CsvDialect.from_options(load.files),
            compression=load.files.parquet_compression or DEFAULT_COMPRESSION,
        )
        there = self._layout_there(place, table)
        if there is None or load.mode == "truncate":
            return layout
        if data_files(place.folder):
            _require_same_shape(table, there, layout)
        holds = self._holds(place)
        for column in declared:
            found = there.column(column.name)
            if found is not None and not holds(column, found):
                raise SchemaMismatch(
                    f"column {column.name!r} of {table.label} is {found.type} in the files, "
                    f"declared as {column.type}",
                    state=f"{table.label} is unchanged",
                    next_step="declare it as the files have it, or rebuild the table with mode='truncate'",
                )
        return replace(layout, columns=merged_columns(there.columns, declared))

    def _layout_there(self, place: Place, table: TableSpec) -> FileLayout | None:
        """The layout of the table as it is, ours or not; None when there is no file to lay out."""
        version = current_version(place)
        if version is not None:
            require_format(place, version.state.layout.format, self.format)
            return version.state.layout
        files = users_files(place, self.format)
        if not files:
            return None
        dialect = csv_dialect(files, table) if self.format == "csv" else CsvDialect()
        columns = columns_of_files(files, self.format, dialect)
        return FileLayout(self.format, columns, users_partitions(files), dialect)

    def _holds(self, place: Place) -> Holds:
        if current_version(place) is not None:
            return holds_as_written
        return holds_as_found(self.format, users_partitions(users_files(place, self.format)))


def _require_same_shape(table: TableSpec, there: FileLayout, wanted: FileLayout) -> None:
    """Files of one folder share partitions and dialect, or no reader could read them together."""
    words = None
    if there.partition_by != wanted.partition_by:
        now, then = (f"by ({', '.join(layout.partition_by)})" for layout in (there, wanted))
        words = f"is partitioned {now}", then
    elif there.format == "csv" and there.csv != wanted.csv:
        words = f"has CSV files with {there.csv}", f"with {wanted.csv}"
    if words is not None:
        raise SchemaMismatch(
            f"the folder of {table.label} {words[0]}, and this load would write {words[1]}",
            state=f"{table.label} is unchanged",
            next_step="declare it as the folder is, or rebuild the table with mode='truncate'",
        )
