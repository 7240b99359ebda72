"""The tables under a root: inspects their layout, plans changes and applies them.

The first change adopts a folder that a user has filled: its files become the first version.
"""

from __future__ import annotations

from dataclasses import replace

from ematix_flow.backends.base import LiveTable, Load, TableChange, TablePlan
from ematix_flow.backends.objectstore.formats.file_readers import count_rows
from ematix_flow.backends.objectstore.layout.file_layout import (
    DEFAULT_COMPRESSION,
    CsvDialect,
    FileLayout,
    merge_columns,
    storage_column,
)
from ematix_flow.backends.objectstore.table.table_state import FileFacts, TableState
from ematix_flow.backends.objectstore.table.table_storage import StorageRoot, TableStorage, TableVersion
from ematix_flow.backends.objectstore.writing.inspection import (
    CanHold,
    find_csv_dialect,
    found_files_can_hold,
    infer_columns,
    list_user_files,
    name_by_position,
    plan_columns,
    require_format,
    undeclared_as_text,
    user_partition_columns,
    written_files_can_hold,
)
from ematix_flow.errors import SchemaMismatch
from ematix_flow.spec.file_options import CsvReadOptions
from ematix_flow.spec.pipelines import FileOptions
from ematix_flow.spec.tables import TableSpec


class FilesTables:
    """Tables as folders of files of one format."""

    def __init__(self, root: StorageRoot, format: str, files: FileOptions | None = None) -> None:
        self.root, self.format = root, format
        self._reading = CsvReadOptions.from_file_options(files) if files is not None else CsvReadOptions()

    def inspect(self, table: TableSpec) -> LiveTable | None:
        home = self.root.table_storage(table)
        with self.root.explain_errors(f"{table.label} is unchanged"):
            layout = self._existing_layout(home, table)
        if layout is None:
            return None
        return LiveTable(layout.columns, tuple(c.name for c in layout.columns if c.primary_key))

    def plan(self, table: TableSpec, live: LiveTable | None) -> TablePlan:
        home = self.root.table_storage(table)
        if live is None:
            return TablePlan((TableChange("create_folder", home.display_name),))
        plan = plan_columns(table, live, self._can_hold(home))
        if home.current_version() is not None:
            return plan
        count = len(list_user_files(home, self.format))
        words = f"{home.display_name} (its {count:,} files stay, as the first version)"
        adopt = TableChange("create_folder", words)
        return replace(plan, changes=(adopt, *plan.changes))

    def apply_plan(self, table: TableSpec, plan: TablePlan) -> None:
        """Apply a plan: publish a version for a new or adopted folder, or for added columns."""
        home = self.root.table_storage(table)
        if not plan.changes:
            return
        with self.root.explain_errors(f"{table.label} is unchanged"), home.lock():
            version = self.ensure_version(home, table)
            layout = version.state.layout
            columns = merge_columns(layout.columns, table.with_load_columns().columns)
            if len(columns) > len(layout.columns) or home.current_version() is None:
                state = replace(version.state, layout=replace(layout, columns=columns))
                home.publish(version, [file.name for file in home.data_files(version)], (), state)

    def ensure_version(self, home: TableStorage, table: TableSpec) -> TableVersion:
        """The current version. If there is none, create it from the user's files, if any."""
        home.recover()
        version = home.current_version()
        if version is not None:
            return version
        state = self._user_files_state(home, table)
        if state is None:
            columns = tuple(storage_column(c) for c in table.with_load_columns().columns)
            state = TableState(home.name, FileLayout(self.format, columns))
        return home.adopt_user_files(state, list_user_files(home, self.format))

    def preview_version(self, home: TableStorage, table: TableSpec) -> TableVersion | None:
        """What `ensure_version` would return, without creating it; None if there is no file."""
        version = home.current_version()
        if version is not None:
            return version
        state = self._user_files_state(home, table)
        return home.preview_version(state) if state is not None else None

    def _user_files_state(self, home: TableStorage, table: TableSpec) -> TableState | None:
        """The state of a user's own files, with declared columns in their declared types."""
        found = self._existing_layout(home, table)
        if found is None:
            return None
        declared = {c.name: c for c in table.with_load_columns().columns}
        columns = tuple(storage_column(declared.get(c.name, c), nullable=True) for c in found.columns)
        facts = {
            file.name: FileFacts(count_rows(file.path, self.format, found.csv))
            for file in list_user_files(home, self.format)
        }
        return TableState(home.name, replace(found, columns=columns), facts)

    def layout_for(self, load: Load) -> FileLayout:
        """The layout of a load's files: that of the existing files, if they stay."""
        home, table = self.root.table_storage(load.table), load.table
        declared = tuple(storage_column(c) for c in table.with_load_columns().columns)
        layout = FileLayout(
            format=self.format,
            columns=declared,
            partition_by=load.plan.partition_by,
            csv=CsvDialect.from_options(load.plan.files),
            compression=load.plan.files.parquet_compression or DEFAULT_COMPRESSION,
        )
        there = self._existing_layout(home, table)
        if there is None or load.plan.mode == "truncate":
            return layout
        version = home.current_version()
        if version is None or home.data_files(version):
            _require_same_shape(table, there, layout)
        holds = self._can_hold(home)
        for column in declared:
            found = there.column(column.name)
            if found is not None and not holds(column, found):
                raise SchemaMismatch(
                    f"column {column.name!r} of {table.label} is {found.type} in the files, "
                    f"declared as {column.type}",
                    state=f"{table.label} is unchanged",
                    next_step="declare it as the files have it, or rebuild the table with mode='truncate'",
                )
        return replace(layout, columns=merge_columns(there.columns, declared))

    def _existing_layout(self, home: TableStorage, table: TableSpec) -> FileLayout | None:
        """The layout of the existing files, written by this product or another; None if there are none."""
        version = home.current_version()
        if version is not None:
            require_format(home, version.state.layout.format, self.format)
            return version.state.layout
        files = list_user_files(home, self.format)
        if not files:
            return None
        dialect = find_csv_dialect(files, table, self._reading) if self.format == "csv" else CsvDialect()
        columns = infer_columns(files, self.format, dialect)
        if self.format == "csv":
            named = columns if dialect.header else name_by_position(columns, table)
            columns = undeclared_as_text(named, table)
        return FileLayout(self.format, columns, user_partition_columns(files), dialect)

    def _can_hold(self, home: TableStorage) -> CanHold:
        if home.current_version() is not None:
            return written_files_can_hold
        return found_files_can_hold(self.format, user_partition_columns(list_user_files(home, self.format)))


def existing_files(home: TableStorage, version: TableVersion) -> dict[str, FileFacts]:
    """The files that are in the folder now. Rows of files that the state does not list are counted."""
    state = version.state
    return {
        file.name: state.files.get(file.name)
        or FileFacts(count_rows(file.path, state.layout.format, state.layout.csv))
        for file in home.data_files(version)
    }


def _require_same_shape(table: TableSpec, there: FileLayout, wanted: FileLayout) -> None:
    """Refuse another partitioning or dialect: readers could not read the files of the folder together."""
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
