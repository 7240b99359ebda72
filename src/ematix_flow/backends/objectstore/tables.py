"""The tables under a root: how each is laid out now, what a declaration changes, and making it so.

A folder that the user filled is adopted by the first change: its files become the first version.
"""

from __future__ import annotations

from dataclasses import replace

from ematix_flow.backends.base import LiveTable, Load, TableChange, TablePlan
from ematix_flow.backends.objectstore.filelayout import (
    DEFAULT_COMPRESSION,
    CsvDialect,
    FileLayout,
    bare,
    merged_columns,
)
from ematix_flow.backends.objectstore.homes import FilesRoot, TableHome, Version
from ematix_flow.backends.objectstore.inspection import (
    Holds,
    columns_of_files,
    compare,
    csv_dialect,
    holds_as_found,
    holds_as_written,
    named_by_position,
    require_format,
    text_unless_declared,
    users_files,
    users_partitions,
)
from ematix_flow.backends.objectstore.readers import count_rows
from ematix_flow.backends.objectstore.tablestate import FileFacts, TableState
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.files import CsvReading
from ematix_flow.spec.pipelines import FileOptions
from ematix_flow.spec.tables import TableSpec


class FilesTables:
    """Tables as folders of files of one format."""

    def __init__(self, root: FilesRoot, format: str, files: FileOptions | None = None) -> None:
        self.root, self.format = root, format
        self._reading = CsvReading.of(files) if files is not None else CsvReading()

    def inspect(self, table: TableSpec) -> LiveTable | None:
        home = self.root.home(table)
        with self.root.told(f"{table.label} is unchanged"):
            layout = self._layout_there(home, table)
        if layout is None:
            return None
        return LiveTable(layout.columns, tuple(c.name for c in layout.columns if c.primary_key))

    def plan(self, table: TableSpec, live: LiveTable | None) -> TablePlan:
        home = self.root.home(table)
        if live is None:
            return TablePlan((TableChange("create_folder", home.shown),))
        plan = compare(table, live, self._holds(home))
        if home.current() is not None:
            return plan
        count = len(users_files(home, self.format))
        words = f"{home.shown} (its {count:,} files stay, as the first version)"
        adopt = TableChange("create_folder", words)
        return replace(plan, changes=(adopt, *plan.changes))

    def change(self, table: TableSpec, plan: TablePlan) -> None:
        """Carry out a plan: a version for a new or adopted folder, columns that were added."""
        home = self.root.home(table)
        if not plan.changes:
            return
        with self.root.told(f"{table.label} is unchanged"), home.locked():
            version = self.ensure(home, table)
            layout = version.state.layout
            columns = merged_columns(layout.columns, table.with_load_columns().columns)
            if len(columns) > len(layout.columns) or home.current() is None:
                state = replace(version.state, layout=replace(layout, columns=columns))
                home.publish(version, [file.name for file in home.files(version)], (), state)

    def ensure(self, home: TableHome, table: TableSpec) -> Version:
        """The current version, or what the first load starts from: the user's files if there are some."""
        home.settle()
        version = home.current()
        if version is not None:
            return version
        state = self._users_state(home, table)
        if state is None:
            columns = tuple(bare(c) for c in table.with_load_columns().columns)
            state = TableState(home.name, FileLayout(self.format, columns))
        return home.begin(state, users_files(home, self.format))

    def look_at(self, home: TableHome, table: TableSpec) -> Version | None:
        """What `ensure` would give, without making it; None when there is nothing."""
        version = home.current()
        if version is not None:
            return version
        state = self._users_state(home, table)
        return home.as_version(state) if state is not None else None

    def _users_state(self, home: TableHome, table: TableSpec) -> TableState | None:
        """The state that a user's own files will have; declared columns in their declared types."""
        found = self._layout_there(home, table)
        if found is None:
            return None
        declared = {c.name: c for c in table.with_load_columns().columns}
        columns = tuple(bare(declared.get(c.name, c), nullable=True) for c in found.columns)
        facts = {
            file.name: FileFacts(count_rows(file.path, self.format, found.csv))
            for file in users_files(home, self.format)
        }
        return TableState(home.name, replace(found, columns=columns), facts)

    def layout_of(self, load: Load) -> FileLayout:
        """How a load's files are laid out: beside files that stay, as those are."""
        home, table = self.root.home(load.table), load.table
        declared = tuple(bare(c) for c in table.with_load_columns().columns)
        layout = FileLayout(
            format=self.format,
            columns=declared,
            partition_by=load.partition_by,
            csv=CsvDialect.from_options(load.files),
            compression=load.files.parquet_compression or DEFAULT_COMPRESSION,
        )
        there = self._layout_there(home, table)
        if there is None or load.mode == "truncate":
            return layout
        version = home.current()
        if version is None or home.files(version):
            _require_same_shape(table, there, layout)
        holds = self._holds(home)
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

    def _layout_there(self, home: TableHome, table: TableSpec) -> FileLayout | None:
        """The layout of the table as it is, ours or not; None when there is no file to lay out."""
        version = home.current()
        if version is not None:
            require_format(home, version.state.layout.format, self.format)
            return version.state.layout
        files = users_files(home, self.format)
        if not files:
            return None
        dialect = csv_dialect(files, table, self._reading) if self.format == "csv" else CsvDialect()
        columns = columns_of_files(files, self.format, dialect)
        if self.format == "csv":
            named = columns if dialect.header else named_by_position(columns, table)
            columns = text_unless_declared(named, table)
        return FileLayout(self.format, columns, users_partitions(files), dialect)

    def _holds(self, home: TableHome) -> Holds:
        if home.current() is not None:
            return holds_as_written
        return holds_as_found(self.format, users_partitions(users_files(home, self.format)))


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
