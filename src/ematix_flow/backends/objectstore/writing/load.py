"""One load into a folder of files: computes what changes, and publishes the version with the result.

Data, ledger entry and watermark are part of that version, so publishing it commits all of them at once. Rows
for the quarantine table are published before, and count from that commit on. The caller holds the table's
lock.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ematix_flow.backends.base import Load, LoadResult, QuarantinedRows
from ematix_flow.backends.incremental_loads import batch_key, made_no_progress, require_unmoved_watermark
from ematix_flow.backends.objectstore.formats.file_writers import RollingFileWriter, WrittenFile
from ematix_flow.backends.objectstore.layout.file_layout import merge_columns
from ematix_flow.backends.objectstore.layout.table_paths import DataFile
from ematix_flow.backends.objectstore.table.staging import FilesStaging, WrittenPart, highest_watermark
from ematix_flow.backends.objectstore.table.table_state import FileFacts, TableState
from ematix_flow.backends.objectstore.table.table_storage import TableStorage, TableVersion
from ematix_flow.backends.objectstore.writing import boundary_rows
from ematix_flow.backends.objectstore.writing.expectation_gate import FilesGate, PassedParts
from ematix_flow.backends.objectstore.writing.quarantine import RowChoice
from ematix_flow.backends.objectstore.writing.tables import existing_files
from ematix_flow.backends.stores.ledger_records import new_ledger_entry
from ematix_flow.errors import RowRejected, TargetFailed
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.strategies.shrink_limit import check_shrink

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ReplayedRows:
    """What a load takes out of a quarantine table: the rows of ``choice``, which were read to be loaded."""

    rows: QuarantinedRows
    choice: RowChoice
    read: int


@dataclass(frozen=True)
class _NewFile:
    """A data file that the load adds."""

    file: DataFile
    facts: FileFacts


@dataclass(frozen=True)
class _LoadChange:
    """What a load changes: the files that stay, the new files, and the counts."""

    kept: dict[str, FileFacts]
    new: tuple[_NewFile, ...]
    applied: LoadResult


class FilesLoad:
    """A staged load and the table's current version (None: there is no table yet).

    ``scratch`` is an empty local folder for files that are made here. ``gate`` checks the rows, unless they
    are ``replayed`` and were checked before.
    """

    def __init__(
        self,
        home: TableStorage,
        load: Load,
        staging: FilesStaging,
        parts: Sequence[WrittenPart],
        base: TableVersion | None,
        scratch: Path,
        gate: FilesGate | None = None,
        replayed: ReplayedRows | None = None,
    ) -> None:
        self._home, self._load, self._staging, self._parts = home, load, staging, parts
        self._base, self._scratch = base, scratch
        self._gate, self._replayed = gate, replayed
        self._rows_in = sum(part.summary.rows for part in parts)
        self._high = highest_watermark(parts, staging)
        self._require_watermarks()

    def preview(self) -> LoadResult:
        """The counts of the load; the table does not change."""
        return self._duplicate_result() or self._compute_change(self._check()).applied

    def commit(self) -> LoadResult:
        """Build the load's version and publish it. A load without new rows makes no version."""
        base, load = self._base, self._load
        assert base is not None
        if load.plan.range is not None:
            require_unmoved_watermark(
                load, base.state.watermark(load.pipeline, load.target, load.plan.range.column)
            )
        if (duplicate := self._duplicate_result()) is not None:
            return duplicate
        self._require_same_layout(base)
        passed = self._check()
        change = self._compute_change(passed)
        if self._is_idle(change, passed, base):
            if (
                self._home.current_version() is None
            ):  # the table exists from its first load on, even without rows
                self._home.publish(base, (), (), replace(base.state, layout=self._staging.layout))
            return LoadResult(RowCounts(read=self._rows_in), expectations=passed.results)
        self._change_quarantine(passed, base)
        new = [new.file for new in change.new]
        self._home.publish(base, list(change.kept), new, self._next_state(base, change))
        self._settle_quarantine()
        return change.applied

    def _is_idle(self, change: _LoadChange, passed: PassedParts, base: TableVersion) -> bool:
        """Whether an incremental load found nothing new."""
        if self._load.plan.range is None or change.applied.rows.inserted:
            return False
        if not passed.quarantined:
            return True
        no_progress = made_no_progress(self._load.plan.range, change.applied)
        return no_progress and self._gate is not None and not self._gate.must_write(passed, base)

    # -------------------------------------------------------------- the gate

    def _check(self) -> PassedParts:
        if self._gate is None or self._replayed is not None:
            return PassedParts(tuple(self._parts))
        return self._gate.check(self._parts)

    def _change_quarantine(self, passed: PassedParts, base: TableVersion) -> None:
        if self._gate is None:
            return
        if self._replayed is None:
            self._gate.set_aside(passed, base, self._high)
        else:
            taken = self._replayed
            self._gate.take_out(taken.rows, taken.choice, taken.read, base)

    def _settle_quarantine(self) -> None:
        if self._gate is None:
            return
        try:
            self._gate.settle_own()
        except Exception as error:  # the load is committed: the next load settles it
            label = self._load.table.label
            _log.warning("the quarantine table of %s is settled by the next load: %s", label, error)

    def _duplicate_result(self) -> LoadResult | None:
        """The result for a batch that is already committed; None otherwise."""
        base, load = self._base, self._load
        if base is None:
            return None
        key = batch_key(load, self._high)
        known = self._home.has_batch(base, load.pipeline, load.target, key)
        return LoadResult(RowCounts(read=self._rows_in), duplicate=True) if known else None

    # -------------------------------------------------------------- what changes

    def _compute_change(self, passed: PassedParts) -> _LoadChange:
        load, there = self._load, existing_files(self._home, self._base) if self._base is not None else {}
        new = [file for part in passed.parts for file in self._describe_files(part.data, part.summary.files)]
        if any(part.summary.rows_set_aside for part in passed.parts):
            new += self._boundary_files(passed, there)
        before, inserted = _total_rows(there.values()), _total_rows(file.facts for file in new)
        replaces = load.plan.mode == "truncate"
        if replaces:
            check_shrink(
                load.table.label,
                before,
                inserted,
                max_shrink=load.plan.max_shrink,
                allow_empty=load.plan.allow_empty,
                set_aside={each.rule: each.quarantined for each in passed.results},
            )
        counts = RowCounts(read=self._rows_in, inserted=inserted, deleted=before if replaces else 0)
        applied = LoadResult(counts, self._high, expectations=passed.results)
        return _LoadChange({} if replaces else there, tuple(new), applied)

    def _boundary_files(self, passed: PassedParts, there: dict[str, FileFacts]) -> list[_NewFile]:
        """Write files with the rows at the bound that the table does not hold yet."""
        low, folder = self._staging.lower_bound, self._scratch / "ties"
        assert low is not None
        aside = [part.set_aside_file for part in passed.parts if part.set_aside_file is not None]
        if self._base is None:
            files, layout = [], self._staging.layout
        else:
            files = [file for file in self._home.data_files(self._base) if file.name in there]
            files, layout = (
                boundary_rows.files_at_bound(files, self._base.state, low),
                self._base.state.layout,
            )
        shutil.rmtree(folder, ignore_errors=True)  # a preview may have written here before
        rolling = RollingFileWriter(
            folder, self._staging.file_prefix("ties"), self._staging.layout, low.column
        )
        try:
            for batch in boundary_rows.missing_rows(aside, files, layout, self._load.table, low, folder):
                rolling.write(self._staging.add_load_columns(batch))
            written = rolling.close()
            return self._describe_files(
                [DataFile(folder / file.name, file.name) for file in written], written
            )
        except BaseException:
            rolling.abandon()
            raise

    def _describe_files(self, data: Iterable[DataFile], files: Iterable[WrittenFile]) -> list[_NewFile]:
        mark = self._staging.watermark_column
        return [
            _NewFile(
                where,
                FileFacts(file.rows, {mark: file.highest} if mark and file.highest is not None else {}),
            )
            for where, file in zip(data, files, strict=True)
        ]

    # -------------------------------------------------------------- the new state

    def _next_state(self, base: TableVersion, change: _LoadChange) -> TableState:
        load, applied = self._load, change.applied
        entry = new_ledger_entry(load, batch_key(load, self._high), applied)
        state = replace(
            base.state,
            layout=self._staging.layout,
            files={**change.kept, **{new.file.name: new.facts for new in change.new}},
            ledger=(*base.state.ledger, entry),
            quarantines=self._gate.tokens(base) if self._gate is not None else base.state.quarantines,
        )
        if self._high is not None:
            state = state.with_watermark(load.pipeline, load.target, self._high)
        return state

    # -------------------------------------------------------------- what must hold

    def _require_watermarks(self) -> None:
        unmarked = sum(part.summary.rows_without_watermark for part in self._parts)
        if unmarked and self._load.plan.range is not None:
            raise RowRejected(
                f"{unmarked:,} of {self._rows_in:,} rows have no watermark "
                f"in column {self._load.plan.range.column!r}",
                state=f"{self._load.table.label} is unchanged",
                next_step="filter these rows out in the source SQL, or choose a column that is never null",
            )

    def _require_same_layout(self, base: TableVersion) -> None:
        """Refuse a load if another one has changed columns, partitions or dialect since staging began."""
        if self._load.plan.mode == "truncate":
            return
        there, staged = base.state.layout, self._staging.layout
        declared = self._load.table.with_load_columns().columns
        expected = [(c.name, c.type) for c in merge_columns(there.columns, declared)]
        changed = None
        if expected != [(c.name, c.type) for c in staged.columns]:
            changed = "columns"
        elif base.state.files and there.partition_by != staged.partition_by:
            changed = "partitions"
        elif base.state.files and there.format == "csv" and there.csv != staged.csv:
            changed = "CSV dialect"
        if changed is not None:
            raise TargetFailed(
                f"another load changed the {changed} of {self._load.table.label} while this one ran",
                state=f"{self._load.table.label} is as that load left it",
                next_step="run it again",
            )


def _total_rows(facts: Iterable[FileFacts]) -> int:
    return sum(fact.rows for fact in facts)
