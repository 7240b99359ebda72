"""One load of one lake table: runs the strategy on views of one snapshot, then makes one commit.

The table does not change before everything has been computed and checked. The order of durable writes: the
journal's entry, changes of the table's columns, events of a history, rows for the quarantine table, the
table's commit, the journal's mark.
Readers see only the commit, and until then nothing of the load counts. The commit of a first load also
creates the table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow import fault_points
from ematix_flow.backends.base import LedgerEntry, Load, LoadResult
from ematix_flow.backends.incremental_loads import batch_key, made_no_progress, require_unmoved_watermark
from ematix_flow.backends.lake.companion_table import CompanionTable
from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.backends.lake.expectation_gate import LakeGate
from ematix_flow.backends.lake.frame_columns import conform_frame
from ematix_flow.backends.lake.journal import Journal, LakeCommit
from ematix_flow.backends.lake.quarantine import QuarantineChange, settle_quarantine
from ematix_flow.backends.lake.row_changes import (
    ACTION_COLUMN,
    INSERT,
    RowChanges,
    StepRunner,
    new_view_name,
    view_table,
)
from ematix_flow.backends.lake.row_hash import register_functions
from ematix_flow.backends.lake.spark_sql_session import SparkSqlSession
from ematix_flow.backends.lake.table_format import ConcurrentCommit, LakeFormat, NewTable
from ematix_flow.backends.sql.load_steps import (
    STRATEGIES,
    WORK_TABLES,
    count_incoming,
    incoming_rows,
    load_result,
    refuse_shrink,
    require_all_staged_rows,
)
from ematix_flow.backends.sql.rule_checks import CheckedRows
from ematix_flow.backends.stores.ledger_records import new_ledger_entry
from ematix_flow.errors import SchemaMismatch, TargetFailed
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.spec.tables import TableContents
from ematix_flow.strategies.sql import column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)
WITH_COMPANION: tuple[TableContents, ...] = ("events", "changes", "change_versions")


@dataclass(frozen=True)
class ComputedLoad:
    """What a load will do, computed before anything changes."""

    applied: LoadResult
    batch_key: str
    changes: RowChanges | None
    companion_changes: RowChanges | None
    checked: CheckedRows | None = None  # what the gate found
    makes_progress: bool = True


class LakeLoad:
    """``rows`` are the staged rows, ``staged`` their number; ``scratch`` is a folder for temporary files.

    ``gate`` checks the rows before anything is written.
    """

    def __init__(
        self,
        spark: SparkSession,
        format: LakeFormat,
        load: Load,
        journal: Journal,
        rows: DataFrame,
        staged: int,
        scratch: str,
        gate: LakeGate | None = None,
    ) -> None:
        self._spark, self._format, self._load, self._journal = spark, format, load, journal
        self._rows, self._staged, self._scratch, self._gate = rows, staged, scratch, gate
        self._wanted = load.table.with_load_columns()
        self._snapshot = format.snapshot(spark, self._wanted)
        if self._snapshot is None and journal.last_number:
            raise missing_table_error(load, journal)
        if (
            self._snapshot is not None and not load.dry_run
        ):  # a dry run holds no lock: other loads may commit meanwhile
            newest = format.newest_load(spark, self._wanted)
            if newest > journal.last_number:
                raise unknown_load_error(load, journal, newest)
        spec = load.table.companion()
        self._companion = CompanionTable(spark, format, spec, journal) if spec is not None else None
        self._views: list[str] = []

    # ------------------------------------------------------------------ computing

    def compute(self) -> ComputedLoad:
        """Compute everything but the commit. Errors of rows are raised here; the table does not change."""
        load, spark = self._load, self._spark
        self._require_partitions()
        register_functions(spark, [c.type for c in load.table.columns])
        work = {name: new_view_name(name) for name in self._work_names()}
        self._views += work.values()
        target = self._create_view("target", self._stored_rows())
        named = {(load.table.schema, load.table.name): view_table(target)}
        companion_view = None
        if self._companion is not None:
            companion_view = self._create_view("companion", self._companion.current_rows())
            named[self._companion.spec.schema, self._companion.spec.name] = view_table(companion_view)
        dialect = LakeDialect(named)
        session = SparkSqlSession(spark)
        names = load.table.staged().column_names
        rows = self._create_view("rows", self._rows)
        select = exp.select(*[column(n) for n in names]).from_(view_table(rows))
        rows_in, high = self._staged, None
        if load.plan.range is not None or work:
            rows_in, high = count_incoming(dialect, session, load, select)
            require_all_staged_rows(load, rows_in, self._staged)
        key = batch_key(load, high)
        if load.plan.range is not None and not load.dry_run:
            found = self._journal.watermark(load.pipeline, load.target, load.plan.range.column)
            require_unmoved_watermark(load, found)
        if self._journal.has_batch(load.pipeline, load.target, key):
            return ComputedLoad(LoadResult(RowCounts(read=rows_in), duplicate=True), key, None, None)
        checked = self._gate.check(select, rows) if self._gate is not None else CheckedRows(select)
        passing = rows_in - checked.quarantined
        incoming = replace(
            incoming_rows(load, checked.select),
            work={name: view_table(view) for name, view in work.items()},
            into_empty=self._snapshot is None,
        )
        runner = StepRunner(spark, dialect, list(work.values()), self._scratch)
        runner.run(STRATEGIES[load.plan.mode](dialect, load.table, incoming), passing)
        as_they_are = not work and load.plan.range is None
        changes = runner.collect_changes(target, inserted=passing if as_they_are else None)
        assert changes is not None
        counts = {**changes.totals(), **runner.tallies}
        if changes.replaces_all:
            counts["delete"] = spark.table(target).count()
        refuse_shrink(load, counts, checked.results)
        applied = load_result(load, passing, counts, high)
        idle = made_no_progress(load.plan.range, applied)
        return ComputedLoad(
            replace(applied, rows=replace(applied.rows, read=rows_in), expectations=checked.results),
            key,
            changes,
            runner.collect_changes(companion_view) if companion_view is not None else None,
            checked,
            not idle or (self._gate is not None and self._gate.must_write(checked)),
        )

    def drop_views(self) -> None:
        """Drop the temporary views."""
        if self._gate is not None:
            self._gate.drop_views()
        for view in self._views:
            self._spark.catalog.dropTempView(view)

    def _require_partitions(self) -> None:
        load = self._load
        unknown = [name for name in load.plan.partition_by if name not in load.table.column_names]
        if unknown:
            raise SchemaMismatch(
                f"partition_by names {', '.join(map(repr, unknown))}, not a column of {load.table.label}",
                where=load.table.where,
                state="nothing was touched",
                next_step=f"its columns are {', '.join(load.table.column_names)}",
            )
        if not load.plan.partition_by or self._snapshot is None:
            return
        found = self._format.partition_columns(self._spark, self._wanted)
        if set(found) != set(load.plan.partition_by):
            shown, wanted = (
                f"by {', '.join(found)}" if found else "not at all",
                ", ".join(load.plan.partition_by),
            )
            raise SchemaMismatch(
                f"{load.table.label} is partitioned {shown}, and partition_by says {wanted}",
                where=load.table.where,
                state=f"{load.table.label} is unchanged",
                next_step="remove partition_by or make it the same: partitions are set at creation",
            )

    def _work_names(self) -> Sequence[str]:
        load = self._load
        if load.plan.mode not in WORK_TABLES:
            return ()
        return tuple(WORK_TABLES[load.plan.mode](load.table, incoming_rows(load, exp.Select())))

    def _stored_rows(self) -> DataFrame:
        """The table's rows in its snapshot, with the columns that it will have."""
        if self._snapshot is None:
            return conform_frame(self._spark, None, self._wanted)
        frame = self._format.read_snapshot(self._spark, self._wanted, self._snapshot)
        return conform_frame(self._spark, frame, self._wanted)

    def _create_view(self, name: str, frame: DataFrame) -> str:
        view = new_view_name(name)
        frame.createOrReplaceTempView(view)
        self._views.append(view)
        return view

    # ------------------------------------------------------------------ committing

    def commit(self, computed: ComputedLoad, change: Callable[[], None]) -> LoadResult:
        """Commit the computed load. ``change`` applies the planned column changes and creates the companion
        table."""
        applied = computed.applied
        if applied.duplicate or not computed.makes_progress:
            return applied
        changes = computed.changes
        assert changes is not None
        commit = self._journal.next_commit()
        self._journal.store.require_locks_held()
        self._undo_uncommitted_events()
        self._journal.write_entry(commit, self._ledger_entry(computed), applied.watermark)
        fault_points.point("apply.ledger_written")
        if not self._format.is_current(self._spark, self._wanted, self._snapshot):
            raise ConcurrentCommit
        self._journal.store.require_locks_held()
        change()
        if self._companion is not None and computed.companion_changes is not None:
            self._journal.store.require_locks_held()
            self._companion.write_changes(computed.companion_changes, commit)
        set_aside = self._set_aside(computed, commit)
        fault_points.point("apply.rows_written")
        self._journal.store.require_locks_held()
        fault_points.point("apply.before_commit")
        if self._snapshot is None:
            self._create_table(changes, commit)
            self._require_commit(commit)
        elif changes.is_empty:  # only the entry's mark records the batch
            self._journal.mark_committed(commit, self._ledger_entry(computed), applied.watermark)
        else:
            self._write_changes(changes, commit)
            self._require_commit(commit)
        fault_points.point("apply.after_commit")
        self._journal.mark_committed(commit, self._ledger_entry(computed), applied.watermark)
        self._remove_uncommitted(set_aside)
        return applied

    def _set_aside(self, computed: ComputedLoad, commit: LakeCommit) -> Sequence[QuarantineChange]:
        """Write to the quarantine tables, and return what was done to each."""
        if self._gate is None or computed.checked is None:
            return ()
        self._journal.store.require_locks_held()
        return self._gate.set_aside(
            computed.checked, computed.applied.rows.read or 0, computed.applied.watermark, commit
        )

    def _remove_uncommitted(self, set_aside: Sequence[QuarantineChange]) -> None:
        """Remove what crashed loads left, which can no longer commit: rows in quarantine, journal entries.

        Not earlier: the Java process of a killed run may live a little longer, and commit. ``set_aside``
        is what this load did.
        """
        try:
            settle_quarantine(self._spark, self._format, self._journal, set_aside)
            self._journal.remove_uncommitted()
        except Exception as error:  # the load is committed: the next load removes them
            _log.warning("%s still has leftovers of crashed loads: %s", self._load.table.label, error)

    def _undo_uncommitted_events(self) -> None:
        """Remove the events that a crashed load left: they must never count, even if this load fails."""
        companions = [self._companion] if self._companion is not None else []
        if self._journal.uncommitted:  # the crashed load may have been of another mode
            others = [replace(self._load.table, keeps=keeps).companion() for keeps in WITH_COMPANION]
            companions += [
                CompanionTable(self._spark, self._format, spec, self._journal)
                for spec in others
                if spec is not None and (self._companion is None or spec != self._companion.spec)
            ]
        for companion in companions:
            companion.undo_uncommitted(self._snapshot is not None)

    def _write_changes(self, changes: RowChanges, commit: LakeCommit) -> None:
        format, spark, table = self._format, self._spark, self._wanted
        if changes.replaces_all:
            format.replace(spark, table, self._inserted_rows(changes), commit)
        elif changes.inserts_only and not changes.match_on:
            format.append(spark, table, self._inserted_rows(changes), commit)
        else:
            format.merge(spark, table, changes, commit)

    def _create_table(self, changes: RowChanges, commit: LakeCommit) -> None:
        """Create the table with the rows of its first load."""
        format, spark, table = self._format, self._spark, self._wanted
        rows = self._inserted_rows(changes) if changes.counts.get(INSERT) else None
        try:
            frame = conform_frame(spark, rows, table)
            format.create_with_rows(spark, NewTable(table, self._load.plan.partition_by, frame, commit))
        except Exception as error:
            if format.is_current(spark, table, None) or format.has_commit(lambda: spark, table, commit.token):
                raise
            raise ConcurrentCommit from error  # another writer created the table meanwhile

    def _require_commit(self, commit: LakeCommit) -> None:
        """Fail if the commit is missing: a format skips a commit whose number it already has."""
        if not self._format.has_commit(lambda: self._spark, self._wanted, commit.token):
            raise unknown_load_error(self._load, self._journal, commit.number)

    def _inserted_rows(self, changes: RowChanges) -> DataFrame:
        frame = changes.frame
        rows = frame.where(frame[ACTION_COLUMN] == INSERT)
        names = next((c.columns for c in changes.actions if c.marker == INSERT), ())
        return rows.select(*[LakeDialect().quote(name) for name in names])

    def _ledger_entry(self, computed: ComputedLoad) -> LedgerEntry:
        return new_ledger_entry(self._load, computed.batch_key, computed.applied)


def unknown_load_error(load: Load, journal: Journal, number: int) -> TargetFailed:
    table, folder = load.table.label, journal.store.uri(journal.folder)
    return TargetFailed(
        f"{table} already has load {number}, but its journal {folder} has no entry of it",
        state=f"{table} holds nothing of this load",
        next_step="restore the journal's files; without them no load knows what the table holds",
    )


def missing_table_error(load: Load, journal: Journal) -> TargetFailed:
    folder = journal.store.uri(journal.folder)
    return TargetFailed(
        f"{load.table.label} does not exist, but its journal {folder} lists {journal.last_number:,} loads",
        state="nothing was touched",
        next_step="restore the table; or remove that folder, and the next run loads the whole table again",
    )
