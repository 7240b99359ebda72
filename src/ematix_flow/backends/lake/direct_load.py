"""One load of a lake table whose tasks have written the table's own files: it needs no Spark.

The order of durable writes is that of `load`: the journal's entry, the table's commit, the journal's mark.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from ematix_flow import fault_points
from ematix_flow.backends.base import LedgerEntry, Load, LoadPlan, LoadResult
from ematix_flow.backends.incremental_loads import batch_key, made_no_progress, require_unmoved_watermark
from ematix_flow.backends.lake.direct_table import NO_VERSION, DirectTable, WrittenFile, WrittenRows
from ematix_flow.backends.lake.journal import Journal, LakeCommit
from ematix_flow.backends.lake.load import WITH_COMPANION, missing_table_error, unknown_load_error
from ematix_flow.backends.lake.table_format import ConcurrentCommit, LakeFormat
from ematix_flow.backends.sql.load_steps import (
    load_result,
    refuse_shrink,
    require_all_staged_rows,
    require_watermarks,
)
from ematix_flow.backends.stores.base import Store
from ematix_flow.backends.stores.ledger_records import new_ledger_entry
from ematix_flow.errors import TargetFailed
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.spec.watermarks import Watermark

_log = logging.getLogger(__name__)


def reason_for_spark(plan: LoadPlan) -> str | None:
    """Why a load of this plan needs Spark for every table; None if it does not."""
    if plan.mode not in ("append", "truncate") or plan.table.keeps != "rows":
        return f"mode {plan.mode} compares the rows with those of the table"
    if plan.range is not None and plan.mode != "append":
        return "an incremental load that is no append compares the rows with those of the table"
    if plan.gate is not None:
        return "Spark checks the expectations"
    created = ("create_table", plan.table.label)  # in a folder that is made with it: its schema
    changes = [change for change in plan.table_plan.changes if change.action != "create_schema"]
    if any((change.action, change.subject) != created for change in changes):
        return "the table is changed first"
    if plan.partition_by:
        return "the table is partitioned"
    return None


def leftovers_reason(format: LakeFormat, load: Load, journal: Journal) -> str | None:
    """What crashed loads have left that only Spark removes; None if there is nothing."""
    if journal.notes:
        return "a crashed load has left rows in a quarantine table"
    if journal.uncommitted:
        companions = [replace(load.table, keeps=keeps).companion() for keeps in WITH_COMPANION]
        if any(spec is not None and format.may_exist(spec) for spec in companions):
            return "a crashed load may have left events"
    return None


def check_rows(
    load: Load, journal: Journal, written: WrittenRows, staged: int, high: Watermark | None
) -> None:
    """Fail if rows are missing in staging or have no watermark, or if another run has moved the watermark.

    This run has moved it if its commit came through, and the answer to that was lost.
    """
    require_all_staged_rows(load, written.count, staged)
    wanted = load.plan.range
    if wanted is None:
        return
    require_watermarks(load, written.count, written.nulls)
    if not journal.has_batch(load.pipeline, load.target, batch_key(load, high)):
        require_unmoved_watermark(load, journal.watermark(load.pipeline, load.target, wanted.column))


class DirectLoad:
    """Commits ``files``, the chosen ones of what the tasks have written: ``staged`` rows.

    ``high`` is the highest watermark of an incremental load, ``held_rows`` the number of rows that the load
    replaces.
    """

    def __init__(
        self,
        format: LakeFormat,
        load: Load,
        journal: Journal,
        table: DirectTable,
        files: Sequence[WrittenFile],
        staged: int,
        held_rows: int,
        high: Watermark | None,
    ) -> None:
        self._format, self._load, self._journal, self._table = format, load, journal, table
        self._files, self._staged, self._held_rows, self._high = files, staged, held_rows, high

    def run(self) -> LoadResult:
        load, journal = self._load, self._journal
        if self._is_new and journal.last_number:
            raise missing_table_error(load, journal)
        newest = self._table.newest_load()
        if newest > journal.last_number:
            raise unknown_load_error(load, journal, newest)
        key = batch_key(load, self._high)
        if journal.has_batch(load.pipeline, load.target, key):
            return LoadResult(RowCounts(read=self._staged), duplicate=True)
        counts = {"insert": sum(file.rows for file in self._files), "update": 0, "delete": self._held_rows}
        refuse_shrink(load, counts)
        applied = load_result(load, self._staged, counts, self._high)
        if not made_no_progress(load.plan.range, applied):
            self._commit(new_ledger_entry(load, key, applied), self._high)
        return applied

    def _commit(self, entry: LedgerEntry, mark: Watermark | None) -> None:
        journal, table = self._journal, self._table
        commit = journal.next_commit()
        journal.store.require_locks_held()
        journal.write_entry(commit, entry, mark)
        fault_points.point("apply.ledger_written")
        if not table.is_current():
            raise ConcurrentCommit
        self._require_files()
        fault_points.point("apply.rows_written")
        journal.store.require_locks_held()
        fault_points.point("apply.before_commit")
        if self._replaces or self._files or self._is_new:
            table.commit(self._files, commit, replace=self._replaces)
        else:  # only the entry's mark records the batch
            journal.mark_committed(commit, entry, mark)
        fault_points.point("apply.after_commit")
        journal.mark_committed(commit, entry, mark)
        self._remove_leftovers(commit)

    @property
    def _is_new(self) -> bool:
        return self._table.version == NO_VERSION

    @property
    def _replaces(self) -> bool:
        return self._load.plan.mode == "truncate"

    def _require_files(self) -> None:
        """Fail if a file is gone. Maintenance, which removes what no version names, cannot run meanwhile."""
        store, _ = self._format.table_folder(self._load.table)
        folder = self._format.data_folder(self._load.table)
        gone = [file.name for file in self._files if not store.has_file(f"{folder}/{file.name}")]
        if gone:
            raise _gone_files_error(self._load, store, f"{folder}/{gone[0]}")

    def _remove_leftovers(self, commit: LakeCommit) -> None:
        """Shorten the table's log, and remove the entries of crashed loads, which can no longer commit."""
        try:
            self._table.tidy()
            self._journal.remove_uncommitted()
        except Exception as error:  # the load is committed: the next load removes them
            _log.warning("load %d of %s left files behind: %s", commit.number, self._load.table.label, error)


def _gone_files_error(load: Load, store: Store, path: str) -> TargetFailed:
    return TargetFailed(
        f"a file that this load has written is gone: {store.uri(path)}",
        state=f"{load.table.label} is unchanged",
        next_step="run it again; do not remove files of a table while a load runs, and let "
        "flow maintain --retain  keep them for longer than a load takes",
    )
