"""One load of one lake table: the strategy on views of one moment, then one commit.

Nothing of the table changes before everything has been computed and checked. The order of what is
durable: the journal's entry, changes to the table's columns, events beside a history, the table's commit,
the journal's mark. Only the commit is seen by readers, and until it is there, nothing of the load counts.
The commit of a first load makes the table too.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow import faults
from ematix_flow.backends.applying import (
    STRATEGIES,
    WORK_TABLES,
    applied_of,
    incoming_of,
    measure,
    refuse_shrink,
    require_staged,
)
from ematix_flow.backends.base import Applied, LedgerEntry, Load
from ematix_flow.backends.lake.actions import DO, INSERT, Changes, StepRunner, fresh_view, view_table
from ematix_flow.backends.lake.companion import Companion
from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.backends.lake.frames import conformed
from ematix_flow.backends.lake.hashing import register_functions
from ematix_flow.backends.lake.journal import Commit, Journal
from ematix_flow.backends.lake.session import SparkSqlSession
from ematix_flow.backends.lake.table import ChangedMeanwhile, LakeFormat
from ematix_flow.backends.positions import batch_key, nothing_new, require_position
from ematix_flow.errors import FlowError, SchemaMismatch, TargetFailed
from ematix_flow.strategies.sql import column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Computed:
    """What a load would do: known before anything is changed."""

    applied: Applied
    key: str
    changes: Changes | None
    beside: Changes | None


class LakeLoad:
    """``rows`` are the staged rows, of which there are ``staged``; ``scratch`` is a folder to write in."""

    def __init__(
        self,
        spark: SparkSession,
        format: LakeFormat,
        load: Load,
        journal: Journal,
        rows: DataFrame,
        staged: int,
        scratch: str,
    ) -> None:
        self._spark, self._format, self._load, self._journal = spark, format, load, journal
        self._rows, self._staged, self._scratch = rows, staged, scratch
        self._wanted = load.table.with_load_columns()
        self._snapshot = format.snapshot(spark, self._wanted)
        if self._snapshot is None and journal.number:
            raise _gone(load, journal)
        if self._snapshot is not None and not load.dry_run:  # which holds no lock: loads may come between
            newest = format.newest_load(spark, self._wanted)
            if newest > journal.number:
                raise _forgotten(load, journal, newest)
        spec = load.table.companion()
        self._companion = Companion(spark, format, spec, journal) if spec is not None else None
        self._views: list[str] = []

    # ------------------------------------------------------------------ computing

    def compute(self) -> Computed:
        """Everything but the commit. Errors of the rows come from here, and nothing is touched."""
        load, spark = self._load, self._spark
        self._require_partitions()
        register_functions(spark, [c.type for c in load.table.columns])
        work = {name: fresh_view(name) for name in self._work_names()}
        self._views += work.values()
        target = self._view("target", self._stored())
        named = {(load.table.schema, load.table.name): view_table(target)}
        beside = None
        if self._companion is not None:
            beside = self._view("beside", self._companion.live())
            named[self._companion.spec.schema, self._companion.spec.name] = view_table(beside)
        dialect = LakeDialect(named)
        session = SparkSqlSession(spark)
        names = load.table.column_names
        select = exp.select(*[column(n) for n in names]).from_(view_table(self._view("rows", self._rows)))
        rows_in, high = self._staged, None
        if load.range is not None or work:
            rows_in, high = measure(dialect, session, load, select)
            require_staged(load, rows_in, self._staged)
        key = batch_key(load, high)
        if load.range is not None and not load.dry_run:
            found = self._journal.watermark(load.pipeline, load.target, load.range.column)
            require_position(load, found)
        if self._journal.holds(load.pipeline, load.target, key):
            return Computed(Applied(rows_in=rows_in, duplicate=True), key, None, None)
        incoming = replace(
            incoming_of(load, select),
            work={name: view_table(view) for name, view in work.items()},
            into_empty=self._snapshot is None,
        )
        runner = StepRunner(spark, dialect, list(work.values()), self._scratch)
        runner.run(STRATEGIES[load.mode](dialect, load.table, incoming), rows_in)
        as_they_are = not work and load.range is None
        changes = runner.changes(target, inserted=rows_in if as_they_are else None)
        assert changes is not None
        counts = {**changes.totals(), **runner.tallied}
        if changes.everything:
            counts["delete"] = spark.table(target).count()
        refuse_shrink(load, counts)
        applied = applied_of(load, rows_in, counts, high)
        return Computed(applied, key, changes, runner.changes(beside) if beside is not None else None)

    def release(self) -> None:
        """Let go of the views."""
        for view in self._views:
            self._spark.catalog.dropTempView(view)

    def _require_partitions(self) -> None:
        load = self._load
        unknown = [name for name in load.partition_by if name not in load.table.column_names]
        if unknown:
            raise SchemaMismatch(
                f"partition_by names {', '.join(map(repr, unknown))}, no column of {load.table.label}",
                where=load.table.where,
                state="nothing was touched",
                next_step=f"its columns are {', '.join(load.table.column_names)}",
            )
        if not load.partition_by or self._snapshot is None:
            return
        found = self._format.partitions(self._spark, self._wanted)
        if set(found) != set(load.partition_by):
            shown, wanted = f"by {', '.join(found)}" if found else "not at all", ", ".join(load.partition_by)
            raise SchemaMismatch(
                f"{load.table.label} is divided {shown}, and partition_by says {wanted}",
                where=load.table.where,
                state=f"{load.table.label} is unchanged",
                next_step="leave partition_by out or make it the same: a table is divided when it is made",
            )

    def _work_names(self) -> Sequence[str]:
        load = self._load
        if load.mode not in WORK_TABLES:
            return ()
        return tuple(WORK_TABLES[load.mode](load.table, incoming_of(load, exp.Select())))

    def _stored(self) -> DataFrame:
        """The table's rows at one moment, with the columns that it will have."""
        if self._snapshot is None:
            return conformed(self._spark, None, self._wanted)
        frame = self._format.frame(self._spark, self._wanted, self._snapshot)
        return conformed(self._spark, frame, self._wanted)

    def _view(self, name: str, frame: DataFrame) -> str:
        view = fresh_view(name)
        frame.createOrReplaceTempView(view)
        self._views.append(view)
        return view

    # ------------------------------------------------------------------ committing

    def commit(self, computed: Computed, change: Callable[[], None]) -> Applied:
        """Make it so. ``change`` alters the table as the load was planned to, and makes those beside it."""
        applied = computed.applied
        if applied.duplicate or nothing_new(self._load.range, applied):
            return applied
        changes = computed.changes
        assert changes is not None
        commit = self._journal.next()
        self._journal.store.require_held()
        self._mend()
        self._journal.prepare(commit, self._entry(computed), applied.watermark)
        faults.point("apply.ledger_written")
        if not self._format.is_current(self._spark, self._wanted, self._snapshot):
            raise ChangedMeanwhile
        self._journal.store.require_held()
        change()
        if self._companion is not None and computed.beside is not None:
            self._journal.store.require_held()
            self._companion.write(computed.beside, commit)
        faults.point("apply.rows_written")
        self._journal.store.require_held()
        faults.point("apply.before_commit")
        if self._snapshot is None:
            self._create(changes, commit)
            self._require_commit(commit)
        elif changes.is_empty:  # the entry's mark alone says that the batch was here
            self._journal.settle(commit, self._entry(computed), applied.watermark)
        else:
            self._write(changes, commit)
            self._require_commit(commit)
        faults.point("apply.after_commit")
        self._journal.settle(commit, self._entry(computed), applied.watermark)
        self._forget_left()
        return applied

    def _forget_left(self) -> None:
        """Remove the entries of loads that died, now that none of them can commit any more.

        Not before: the Java process of a run that was killed may live for a moment longer, and commit.
        """
        try:
            self._journal.forget_left()
        except (FlowError, OSError) as error:  # the load is committed: the next one removes them
            _log.warning("the journal of %s keeps entries of dead loads: %s", self._load.table.label, error)

    def _mend(self) -> None:
        """Whatever this load does, what a dead one left beside the history must never count."""
        companion = self._companion
        if companion is None and self._journal.left:
            spec = replace(self._load.table, keeps="events").companion()
            assert spec is not None
            companion = Companion(self._spark, self._format, spec, self._journal)
        if companion is not None:
            companion.mend(self._snapshot is not None)

    def _write(self, changes: Changes, commit: Commit) -> None:
        format, spark, table = self._format, self._spark, self._wanted
        if changes.everything:
            format.replace(spark, table, self._inserted(changes), commit)
        elif changes.inserts_only and not changes.matched:
            format.append(spark, table, self._inserted(changes), commit)
        else:
            format.merge(spark, table, changes, commit)

    def _create(self, changes: Changes, commit: Commit) -> None:
        """Make the table with the rows of its first load."""
        format, spark, table = self._format, self._spark, self._wanted
        rows = self._inserted(changes) if changes.counts.get(INSERT) else None
        try:
            format.create_with_rows(
                spark, table, self._load.partition_by, conformed(spark, rows, table), commit
            )
        except Exception as error:
            if format.is_current(spark, table, None) or format.has_commit(lambda: spark, table, commit.token):
                raise
            raise ChangedMeanwhile from error  # another writer made the table meanwhile

    def _require_commit(self, commit: Commit) -> None:
        """A format that knows the number already takes a commit for a repetition, and leaves it out."""
        if not self._format.has_commit(lambda: self._spark, self._wanted, commit.token):
            raise _forgotten(self._load, self._journal, commit.number)

    def _inserted(self, changes: Changes) -> DataFrame:
        frame = changes.frame
        rows = frame.where(frame[DO] == INSERT)
        names = next((c.columns for c in changes.changes if c.do == INSERT), ())
        return rows.select(*[LakeDialect().quote(name) for name in names])

    def _entry(self, computed: Computed) -> LedgerEntry:
        load, applied = self._load, computed.applied
        high = applied.watermark
        began, ended = load.source_bounds(high)
        return LedgerEntry(
            pipeline=load.pipeline,
            target=load.target,
            batch_key=computed.key,
            run_id=str(load.run_id),
            source_from=began,
            source_to=ended,
            rows_in=applied.rows_in,
            rows_inserted=applied.rows_inserted,
            rows_updated=applied.rows_updated,
            rows_deleted=applied.rows_deleted,
            committed_at=dt.datetime.now(dt.timezone.utc),
        )


def _forgotten(load: Load, journal: Journal, number: int) -> TargetFailed:
    table, folder = load.table.label, journal.store.uri(journal.folder)
    return TargetFailed(
        f"{table} has taken load {number} of ours before, and its journal {folder} knows nothing of it",
        state=f"{table} holds nothing of this load",
        next_step="restore the journal's files; without them no load can tell what the table has",
    )


def _gone(load: Load, journal: Journal) -> TargetFailed:
    folder = journal.store.uri(journal.folder)
    return TargetFailed(
        f"{load.table.label} is gone, and its journal {folder} knows of {journal.number:,} loads of it",
        state="nothing was touched",
        next_step="bring the table back; or remove that folder, and the next run loads the table anew",
    )
