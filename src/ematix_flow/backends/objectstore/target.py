"""Folders of files as a target: implements the commit protocol with versions of a table's folder."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ematix_flow import fault_points
from ematix_flow.backends.base import (
    LedgerEntry,
    LiveTable,
    Load,
    LoadResult,
    LoadRows,
    QuarantinedRows,
    QuarantineFilter,
    SameDatabaseRows,
    Staging,
    TablePlan,
)
from ematix_flow.backends.gated_target import GatedTarget, QuarantineCount
from ematix_flow.backends.objectstore.layout.file_layout import require_readable_names
from ematix_flow.backends.objectstore.layout.partition_folders import check_partition_columns
from ematix_flow.backends.objectstore.storage.local_storage import LocalStorageRoot
from ematix_flow.backends.objectstore.table.staging import FilesStaging
from ematix_flow.backends.objectstore.table.table_storage import StorageRoot
from ematix_flow.backends.objectstore.writing.expectation_gate import FilesGate
from ematix_flow.backends.objectstore.writing.load import FilesLoad, ReplayedRows
from ematix_flow.backends.objectstore.writing.quarantine import FilesQuarantine, RowChoice
from ematix_flow.backends.objectstore.writing.quarantine_reads import (
    count_rows_of_files,
    read_rows_of_files,
)
from ematix_flow.backends.objectstore.writing.tables import FilesTables
from ematix_flow.errors import Unsupported
from ematix_flow.spec.pipelines import FileOptions
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies.matching import Matching

if TYPE_CHECKING:
    import pyarrow as pa

MODES = ("append", "truncate")


class FilesTarget(GatedTarget):
    """Tables as folders of files of one format under one root."""

    def __init__(self, root: StorageRoot, format: str) -> None:
        self._root, self._format = root, format
        self._tables = FilesTables(root, format)

    def with_files(self, files: FileOptions) -> FilesTarget:
        found = copy.copy(self)
        found._tables = FilesTables(self._root, self._format, files)
        return found

    def inspect(self, table: TableSpec) -> LiveTable | None:
        return self._tables.inspect(table)

    def plan_table(
        self, table: TableSpec, live: LiveTable | None, matching: Matching | None = None
    ) -> TablePlan:
        require_readable_names(table, self._format)
        return self._tables.plan(table, live)

    def change_table(self, table: TableSpec, plan: TablePlan) -> None:
        self._tables.apply_plan(table, plan)

    def warnings(self) -> tuple[str, ...]:
        return self._root.remarks()

    # -------------------------------------------------------------- lock, ledger, watermark

    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> AbstractContextManager[None]:
        return self._root.lock(pipeline, target, run_id)

    def watermark(self, pipeline: str, target: str, column: str) -> Watermark | None:
        home = self._root.remembered_table(pipeline, target)
        version = home.current_version() if home is not None else None
        return version.state.watermark(pipeline, target, column) if version is not None else None

    def ledger(
        self, pipeline: str, target: str, *, run_id: str | None = None, limit: int = 100
    ) -> list[LedgerEntry]:
        home = self._root.remembered_table(pipeline, target)
        version = home.current_version() if home is not None else None
        if home is None or version is None:
            return []
        entries = home.ledger_entries(version, pipeline, target)
        return list(islice((e for e in entries if run_id is None or e.run_id == run_id), limit))

    # -------------------------------------------------------------- gate and quarantine

    def gate_dialect(self) -> str:
        return "duckdb"

    def count_quarantined(self, table: TableSpec, pipeline: str) -> list[QuarantineCount]:
        choice = RowChoice.of_filter(QuarantineFilter(pipeline))
        return count_rows_of_files(self._root.table_storage(table), choice)

    def read_quarantined(self, rows: QuarantinedRows, limit: int, offset: int) -> list[Mapping[str, Any]]:
        home, choice = self._root.table_storage(rows.table), RowChoice.of_filter(rows.chosen)
        return read_rows_of_files(home, choice, limit, offset)

    def purge_quarantined(self, rows: QuarantinedRows) -> int:
        with (
            self._root.explain_errors(f"{rows.table.label} is unchanged"),
            TemporaryDirectory(prefix="ematix-flow-") as scratch,
        ):
            quarantine = FilesQuarantine(self._tables, rows.table, "", Path(scratch))
            return quarantine.purge(RowChoice.of_filter(rows.chosen))

    # -------------------------------------------------------------- staging and apply

    def create_staging(self, load: Load, schema: pa.Schema) -> FilesStaging:
        if load.plan.mode not in MODES:
            raise Unsupported(
                f"tables of files support the modes {' and '.join(MODES)}, not {load.plan.mode!r}"
            )
        check_partition_columns(load.table.with_load_columns(), load.plan.partition_by)
        home = self._root.table_storage(load.table)
        with self._root.explain_errors(f"{load.table.label} is unchanged"):
            staging = self._root.new_staging(load, self._tables.layout_for(load))
            if not load.dry_run:
                self._root.remember_target(home, load.pipeline, load.target)
        return staging

    def apply(self, load: Load, rows: LoadRows) -> LoadResult:
        if isinstance(rows, SameDatabaseRows):
            raise Unsupported("a folder of files cannot compute rows itself", state="nothing was touched")
        if isinstance(rows, QuarantinedRows):
            return self._replay(load, rows)
        staging, home = rows.staging, self._root.table_storage(load.table)
        assert isinstance(staging, FilesStaging)
        with (
            self._root.explain_errors(f"{load.table.label} is unchanged"),
            staging.scratch_folder() as scratch,
        ):
            parts = [staging.read_part(part, scratch) for part in rows.parts]
            gate = FilesGate(self._tables, home, load, staging, scratch) if load.plan.gate else None
            if load.dry_run:
                there = self._tables.preview_version(home, load.table)
                return FilesLoad(home, load, staging, parts, there, scratch, gate).preview()
            with home.lock():
                base = self._tables.ensure_version(home, load.table)
                if gate is not None:
                    gate.settle(base)
                fault_points.point("apply.began")
                return FilesLoad(home, load, staging, parts, base, scratch, gate).commit()

    def _replay(self, load: Load, rows: QuarantinedRows) -> LoadResult:
        """Load rows of a quarantine table. Those that fail again stay there as they are."""
        home = self._root.table_storage(load.table)
        staging = self.create_staging(load, load.table.arrow_schema())
        try:
            with (
                self._root.explain_errors(f"{load.table.label} is unchanged"),
                staging.scratch_folder() as scratch,
                nullcontext() if load.dry_run else home.lock(),
            ):
                find = self._tables.preview_version if load.dry_run else self._tables.ensure_version
                base = find(home, load.table)
                gate = FilesGate(self._tables, home, load, staging, scratch)
                found = gate.check_replayed(rows, base, load.dry_run)
                part = staging.read_part(staging.write("replayed", found.batches), scratch)
                taken = ReplayedRows(rows, found.choice, part.summary.rows)
                work = FilesLoad(home, load, staging, [part], base, scratch, gate, taken)
                applied = work.preview() if load.dry_run else work.commit()
                read = part.summary.rows + found.quarantined
                return replace(applied, rows=replace(applied.rows, read=read), expectations=found.results)
        finally:
            self._root.drop_staging(staging)

    def drop_staging(self, staging: Staging) -> None:
        self._root.drop_staging(staging)

    def sweep_staging(self, pipeline: str, target: str) -> list[str]:
        home = self._root.remembered_table(pipeline, target)
        with self._root.explain_errors("the table is unchanged"):
            swept = self._root.sweep_staging(pipeline, target)
            if home is not None:
                swept += self._root.sweep_table(home, pipeline, target)
        return swept

    def run_sql(self, sql: str) -> int:
        raise Unsupported(
            "SQL cannot be run on a folder of files",
            next_step="compute it in the pipeline's own SQL, or in a pipeline that reads the folder",
        )


class LocalFilesTarget(FilesTarget):
    """The same target in a folder of a disk."""

    def __init__(self, root: Path, format: str) -> None:
        super().__init__(LocalStorageRoot(root), format)
