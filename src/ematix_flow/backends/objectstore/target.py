"""A folder of files as a target: the commit protocol over versions of a table's folder."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow import faults
from ematix_flow.backends.base import (
    Applied,
    LedgerEntry,
    LiveTable,
    Load,
    SameDatabaseRows,
    StagedRows,
    Staging,
    TablePlan,
    Target,
)
from ematix_flow.backends.objectstore.diskfailures import told_of
from ematix_flow.backends.objectstore.loading import FilesLoad
from ematix_flow.backends.objectstore.partitions import check_partition_columns
from ematix_flow.backends.objectstore.places import HIDDEN, stem
from ematix_flow.backends.objectstore.staging import FilesStaging
from ematix_flow.backends.objectstore.tables import FilesTables
from ematix_flow.backends.objectstore.tablestate import ledger_entries
from ematix_flow.backends.objectstore.versions import (
    Version,
    current_version,
    remember_target,
    remembered_target,
    remove_replaced,
    remove_unpublished,
    settle,
    table_lock,
)
from ematix_flow.errors import Unsupported
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.state.locks import hold_file_lock
from ematix_flow.strategies.matching import Matching

if TYPE_CHECKING:
    import pyarrow as pa

MODES = ("append", "truncate")

_log = logging.getLogger(__name__)


class LocalFilesTarget(Target):
    """Tables as folders of files of one format under one root."""

    def __init__(self, root: Path, format: str) -> None:
        self._root = root
        self._tables = FilesTables(root, format)

    def inspect(self, table: TableSpec) -> LiveTable | None:
        return self._tables.inspect(table)

    def plan_table(
        self, table: TableSpec, live: LiveTable | None, matching: Matching | None = None
    ) -> TablePlan:
        return self._tables.plan(table, live)

    def change_table(self, table: TableSpec, plan: TablePlan) -> None:
        self._tables.change(table, plan)

    # -------------------------------------------------------------- lock, ledger, watermark

    @contextmanager
    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> Iterator[None]:
        folder = self._root / HIDDEN / "locks"
        with told_of(folder, "this run has not begun; the target is untouched"):
            folder.mkdir(parents=True, exist_ok=True)
        with hold_file_lock(folder, pipeline, target, str(run_id)):
            yield

    def watermark(self, pipeline: str, target: str, column: str) -> Watermark | None:
        version = self._version_of(pipeline, target)
        return version.state.watermark(pipeline, target, column) if version is not None else None

    def ledger(
        self, pipeline: str, target: str, *, run_id: str | None = None, limit: int = 100
    ) -> list[LedgerEntry]:
        version = self._version_of(pipeline, target)
        if version is None:
            return []
        entries = ledger_entries(version.path, version.state, pipeline, target)
        return list(islice((e for e in entries if run_id is None or e.run_id == run_id), limit))

    def _version_of(self, pipeline: str, target: str) -> Version | None:
        place = remembered_target(self._root, pipeline, target)
        return current_version(place) if place is not None else None

    # -------------------------------------------------------------- staging and apply

    def create_staging(self, load: Load, schema: pa.Schema) -> FilesStaging:
        if load.mode not in MODES:
            raise Unsupported(f"files know the modes {' and '.join(MODES)}, not {load.mode!r}")
        check_partition_columns(load.table.with_load_columns(), load.partition_by)
        place = self._tables.place(load.table)
        attempt = f"{load.run_id.hex[:12]}-{uuid.uuid4().hex[:8]}"
        folder = self._staging_root / f"{stem(load.pipeline, load.target)}_{attempt}"
        with told_of(folder, f"{load.table.label} is unchanged"):
            layout = self._tables.layout_of(load)
            folder.mkdir(parents=True)
            if not load.dry_run:
                remember_target(place, load.pipeline, load.target)
        return FilesStaging(
            folder=str(folder),
            attempt=attempt,
            layout=layout,
            run_id=str(load.run_id),
            loaded_at=load.loaded_at,
            mark=load.range.column if load.range else None,
            low=load.range.low if load.range and load.mode == "append" else None,
        )

    def apply(self, load: Load, rows: SameDatabaseRows | StagedRows) -> Applied:
        if isinstance(rows, SameDatabaseRows):
            raise Unsupported("a folder of files cannot compute rows itself", state="nothing was touched")
        staging, place = _ours(rows.staging), self._tables.place(load.table)
        parts = [staging.read(part) for part in rows.parts]
        with told_of(place.folder, f"{load.table.label} is unchanged"):
            if load.dry_run:
                there = self._tables.look_at(place, load.table)
                return FilesLoad(place, load, staging, parts, there).rehearse()
            with table_lock(place):
                base = self._tables.ensure(place, load.table)
                faults.point("apply.began")
                return FilesLoad(place, load, staging, parts, base).carry_out()

    def drop_staging(self, staging: Staging) -> None:
        folder = Path(_ours(staging).folder)
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError as error:  # a load that is committed must not be called failed; the next run sweeps
            _log.warning("staging %s could not be removed and is left to the next run: %s", folder, error)

    def sweep(self, pipeline: str, target: str) -> list[str]:
        place = remembered_target(self._root, pipeline, target)
        swept: list[str] = []
        with told_of(self._root, "the table is unchanged"):
            if self._staging_root.is_dir():
                for folder in sorted(self._staging_root.glob(f"{stem(pipeline, target)}_*")):
                    shutil.rmtree(folder)
                    swept.append(f"staging {folder.name}")
            if place is not None and place.home.is_dir():
                with table_lock(place):
                    settle(place)
                    left = remove_unpublished(place)
                    swept += [f"unpublished version {name} of {place.name}" for name in left]
                    remove_replaced(place)
        return swept

    def run_sql(self, sql: str) -> int:
        raise Unsupported(
            "SQL cannot be run on a folder of files",
            next_step="compute it in the pipeline's own SQL, or in a pipeline that reads the folder",
        )

    @property
    def _staging_root(self) -> Path:
        return self._root / HIDDEN / "staging"


def _ours(staging: Staging) -> FilesStaging:
    assert isinstance(staging, FilesStaging)
    return staging
