"""The direct loads of a lake target: decides which loads need no Spark, and removes the files of those that
did not commit."""

from __future__ import annotations

import logging

from ematix_flow.backends.base import Load, LoadPlan, LoadResult, StagedRows
from ematix_flow.backends.lake.direct_load import DirectLoad, check_rows, leftovers_reason, reason_for_spark
from ematix_flow.backends.lake.direct_staging import DirectStaging
from ematix_flow.backends.lake.direct_table import DirectTable, SparkNeeded, WrittenRows
from ematix_flow.backends.lake.first_rows import choose_files
from ematix_flow.backends.lake.journal import Journal
from ematix_flow.backends.lake.table_format import LakeFormat
from ematix_flow.backends.lake.watermark_rows import WatermarkRange
from ematix_flow.backends.stores.base import Store

_log = logging.getLogger(__name__)


class DirectLoads:
    def __init__(self, format: LakeFormat, store: Store) -> None:
        self._format, self._store = format, store
        self._committed: dict[str, set[str]] = {}  # the parts that a load has committed, by its staging

    def commit_method(self, plan: LoadPlan) -> tuple[str, str] | None:
        """The method of a load and the reason, for its plan. None for a format that has one only."""
        found = self._find_table(plan)
        if found is None:
            return None
        if isinstance(found, SparkNeeded):
            return ("spark", found.reason)
        return ("direct", f"tasks write the table's files, and {self._format.committer} commits them")

    def new_staging(self, load: Load, folder: str) -> DirectStaging | None:
        """Staging in the table's folder; None if the load needs Spark."""
        if load.dry_run or load.dead_letters:
            return None
        table = self._find_table(load.plan, may_be_old=True)  # `apply` takes the newest
        if not isinstance(table, DirectTable):
            return None
        by_name = {column.name: column for column in load.table.with_load_columns().columns}
        columns = tuple(by_name[name] for name in table.column_names if name in by_name)
        return DirectStaging(
            self._store,
            folder,
            load.plan.staged,
            self._format.data_folder(load.table),
            columns,
            str(load.run_id),
            loaded_at=load.loaded_at,
            version=table.version,
            watermarks=_watermark_range(load.plan),
            file_schema=table.file_schema(columns),
        )

    def _find_table(self, plan: LoadPlan, *, may_be_old: bool = False) -> DirectTable | SparkNeeded | None:
        replaces, wanted = plan.mode == "truncate", plan.table.with_load_columns()
        reason = reason_for_spark(plan)
        if reason is None and plan.range is not None and not self._format.finds_rows:
            reason = "an incremental load compares its first rows with those of the table"
        if reason is None:
            return self._format.direct_table(wanted, replaces=replaces, may_be_old=may_be_old)
        return SparkNeeded(reason) if self._format.committer else None

    # ------------------------------------------------------------------ applying

    def apply(
        self, load: Load, journal: Journal, rows: StagedRows, staging: DirectStaging
    ) -> LoadResult | None:
        """Commit the files; None if the load needs Spark by now. The caller holds the table's lock."""
        table = self._find_suitable_table(load.plan, staging)
        reason = leftovers_reason(self._format, load, journal)
        held = table.count_rows() if isinstance(table, DirectTable) and load.plan.mode == "truncate" else 0
        if not isinstance(table, DirectTable) or reason or held is None or load.dead_letters:
            _log_reason(load, table.reason if isinstance(table, SparkNeeded) else reason)
            return None
        written = WrittenRows.of(part.note for part in rows.parts)
        staged = sum(part.rows for part in rows.parts)
        range = staging.watermarks
        high = range.highest_of(written.highest) if range is not None else None
        check_rows(load, journal, written, staged, high)
        chosen = choose_files(load, table, staging, rows.parts)
        if isinstance(chosen, SparkNeeded):
            _log_reason(load, chosen.reason)
            return None
        applied = DirectLoad(self._format, load, journal, table, chosen.files, staged, held, high).run()
        if not applied.duplicate:
            self._committed[staging.folder] = set(chosen.parts)
        return applied

    def _find_suitable_table(
        self, plan: LoadPlan, staging: DirectStaging
    ) -> DirectTable | SparkNeeded | None:
        """The table, if the staged files have its columns as it has them now."""
        table = self._find_table(plan)
        if isinstance(table, DirectTable):
            wanted = table.file_schema(staging.columns)
            if not wanted.equals(staging.file_schema, check_metadata=True):
                return SparkNeeded("the table's columns have changed since the files were written")
        return table

    # ------------------------------------------------------------------ files that did not commit

    def drop(self, staging: DirectStaging) -> None:
        """Remove the files of the attempt that no commit of the table names."""
        committed = self._committed.pop(staging.folder, None)
        if committed is not None:
            staging.remove_files(staging.begun_parts() - committed)
        else:
            self._remove_uncommitted(staging)

    def sweep(self, folder: str, attempt: str) -> bool:
        """The same for an attempt of a dead run. False if that run could still commit."""
        staging = self._left_staging(folder, attempt)
        if staging is None:
            return True
        if (
            self._store.locks_expire
            and self._format.commits_after(staging.data_folder, staging.version) == ""
        ):
            return not staging.begun_parts()  # only a newer version makes sure that its commit fails
        self._remove_uncommitted(staging)
        return True

    def _left_staging(self, folder: str, attempt: str) -> DirectStaging | None:
        path = f"{folder}/{attempt}"
        markers = self._store.names(path)  # a task that outlived its run may have written the only one
        note = self._store.read(f"{path}/{markers[0]}") if markers else ""
        return DirectStaging.from_note(self._store, path, note) if note else None

    def _remove_uncommitted(self, staging: DirectStaging) -> None:
        parts = staging.begun_parts()
        if not parts:
            return
        texts = self._format.commits_after(staging.data_folder, staging.version)
        if texts is None:  # the log is too short to tell: maintenance removes the files when they are old
            _log.warning("files of attempt %s stay in %s", staging.attempt, staging.data_folder)
            return
        staging.remove_files(parts, texts)


def _watermark_range(plan: LoadPlan) -> WatermarkRange | None:
    return WatermarkRange.of(plan.range, plan.table) if plan.range is not None else None


def _log_reason(load: Load, reason: str | None) -> None:
    _log.info("Spark commits the load of %s: %s", load.table.label, reason)
