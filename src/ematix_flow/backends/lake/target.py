"""A lake as a target: implements the commit protocol for tables that Spark writes."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from ematix_flow import fault_points
from ematix_flow.backends.base import (
    LedgerEntry,
    LiveTable,
    Load,
    LoadPlan,
    LoadResult,
    LoadRows,
    QuarantinedRows,
    SameDatabaseRows,
    SparkTarget,
    StagedRows,
    Staging,
    TableChange,
    TablePlan,
)
from ematix_flow.backends.gated_target import QuarantineCount
from ematix_flow.backends.lake.companion_table import (
    is_companion,
    refuse_lifetime_names,
    with_lifetime_columns,
)
from ematix_flow.backends.lake.conflict_retries import retry_on_conflict
from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.backends.lake.direct_load_rules import DirectLoads
from ematix_flow.backends.lake.direct_staging import DirectStaging
from ematix_flow.backends.lake.expectation_gate import LakeGate
from ematix_flow.backends.lake.frame_columns import staged_frame
from ematix_flow.backends.lake.journal import FOLD_ABOVE, Journal, open_journal
from ematix_flow.backends.lake.load import LakeLoad
from ematix_flow.backends.lake.maintenance import LakeMaintenance
from ematix_flow.backends.lake.plan import allow_null_load_columns, with_partitions, without_keys
from ematix_flow.backends.lake.quarantine import (
    COMMIT_COLUMNS,
    is_quarantine,
    purge_rows,
    refuse_commit_names,
    with_commit_columns,
)
from ematix_flow.backends.lake.spark_sql_session import SparkSqlSession, own_session
from ematix_flow.backends.lake.staging import BEGUN_MARKER, STAGING, LakeStaging
from ematix_flow.backends.lake.statements import resolve_tables
from ematix_flow.backends.lake.table_format import ConcurrentCommit, LakeFormat, TableField, TableSnapshot
from ematix_flow.backends.lake.target_notes import NO_COLUMNS, remember_table, remembered_table
from ematix_flow.backends.maintenance import MaintainableTarget, MaintenanceOptions, MaintenanceReport
from ematix_flow.backends.spark_sql.query_tables import TableName
from ematix_flow.backends.sql.alterations import alter_table_changes
from ematix_flow.backends.sql.create_table import unique_groups
from ematix_flow.backends.sql.scd2_conversion import VERSION_COLUMNS as VERSION_COLUMNS
from ematix_flow.backends.sql.session import SqlSession
from ematix_flow.backends.sql.table_diff import TableDiff
from ematix_flow.backends.sql.table_names import refuse_dotted_capital, require_distinct_names
from ematix_flow.backends.sql.target import RelationalTarget
from ematix_flow.backends.stores.base import Store
from ematix_flow.errors import FlowError, SchemaMismatch, TargetFailed, Unsupported
from ematix_flow.spec.generated_names import distinct_name
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.spec.tables import IS_CURRENT, ROW_HASH, VALID_FROM, ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies.matching import Matching

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_TRIES = 5

_log = logging.getLogger(__name__)
_REQUIRED_IN_VERSIONS = (VALID_FROM, IS_CURRENT, ROW_HASH)  # in every version


class LakeTarget(RelationalTarget, SparkTarget, MaintainableTarget):
    """``conf`` are the settings with which a session reaches the lake. ``store`` holds staging and locks."""

    dialect: LakeDialect
    transactional_ddl = False

    def __init__(self, format: LakeFormat, store: Store, conf: Mapping[str, str]) -> None:
        self.dialect = LakeDialect()
        self._format, self.store, self._conf = format, store, conf
        self._start: Callable[[], SparkSession] | None = None
        self._errors: Callable[[str], AbstractContextManager[None]] | None = None
        self._own: tuple[SparkSession, SparkSession] | None = None
        self._partition_by: tuple[str, ...] = ()
        self._direct = DirectLoads(format, store)

    def use_spark(
        self, spark: Callable[[], SparkSession], errors: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        self._start, self._errors = spark, errors

    def spark(self) -> SparkSession:
        """The session of this target. Nothing else sees its views and settings."""
        assert self._start is not None, "use_spark comes first"
        started = self._start()
        if self._own is None or self._own[0] is not started:
            self._own = started, own_session(started, self._conf)
        return self._own[1]

    @contextmanager
    def _explain_errors(self, what: str) -> Iterator[None]:
        assert self._errors is not None
        with self._errors(what):
            yield

    # -------------------------------------------------------------- tables

    @contextmanager
    def session(self) -> Iterator[SqlSession]:
        with self._explain_errors(f"asking {self._format.name}"):
            yield SparkSqlSession(self.spark())

    def inspect(self, table: TableSpec) -> LiveTable | None:
        self._require_valid_names(table)
        fields = self._format.direct_fields(table)
        if fields is None or set(VERSION_COLUMNS) <= {field.name for field in fields}:
            return super().inspect(table)
        return self._live_table(table, fields, None)

    def read_live_table(self, session: SqlSession, table: TableSpec) -> LiveTable | None:
        self._require_valid_names(table)
        snapshot = self._format.snapshot(self.spark(), table)
        if snapshot is not None:
            found = snapshot.schema.fields
            fields = [TableField(f.name, f.dataType.simpleString(), f.nullable) for f in found]
            return self._live_table(table, fields, self._has_plain_rows(table, snapshot))
        self._format.require_separate(table)
        return None

    def _require_valid_names(self, table: TableSpec) -> None:
        self.name_table(table)
        require_distinct_names(table, "Spark")
        refuse_dotted_capital(table.column_names, table.label, table.where)
        refuse_lifetime_names(table)
        refuse_commit_names(table)

    def name_table(self, table: TableSpec) -> None:
        """Register the table's SQL name with the dialect."""
        named = {(table.schema, table.name): self._format.table_expression(table)}
        companion = table.companion()
        if companion is not None:
            named[companion.schema, companion.name] = self._format.table_expression(companion)
        self.dialect.add_table_names(named)

    def _live_table(self, table: TableSpec, fields: Sequence[TableField], plain: bool | None) -> LiveTable:
        """The live table. Lakes have no keys: the declared ones are assumed, and each load enforces them.

        ``plain`` is the answer of `_has_plain_rows`.
        """
        keyed = table.with_load_columns()
        declared = {c.name: c.nullable for c in keyed.columns}
        columns, native = [], {}
        for field in fields:
            other = next((n for n in declared if n.lower() == field.name.lower() and n != field.name), None)
            if other is not None:
                raise SchemaMismatch(
                    f"column {field.name!r} of {table.label} is declared as {other!r}, "
                    "and Spark does not distinguish them",
                    where=table.where,
                    next_step=f"declare it as {field.name!r}",
                )
            shown = field.type.upper()
            native[field.name] = shown
            found = self.dialect.canonical_type(shown) or DataType("json")
            # a nullable column may have been added later, and Delta may report only nullable ones:
            # staging refuses undeclared nulls
            nullable = field.nullable and declared.get(field.name, True)
            if field.name in _REQUIRED_IN_VERSIONS and plain is not None:
                nullable = plain
            columns.append(ColumnSpec(field.name, found, nullable=nullable))
        return LiveTable(tuple(columns), keyed.primary_key, unique_groups(keyed), native)

    def _has_plain_rows(self, table: TableSpec, snapshot: TableSnapshot) -> bool | None:
        """Whether a table with version columns has rows without versions; None if it has no version columns.

        A lake may declare any column nullable: only the rows show whether these columns are filled.
        """
        declared = not table.keeps_versions and set(VERSION_COLUMNS) & set(table.column_names)
        if declared or not set(VERSION_COLUMNS) <= set(snapshot.schema.names):
            return None
        rows = self._format.read_snapshot(self.spark(), table, snapshot)
        return rows.where(f"{VALID_FROM} IS NULL").limit(1).count() > 0

    def with_partitions(self, partition_by: tuple[str, ...]) -> LakeTarget:
        self._partition_by = partition_by
        return self

    def plan_in_session(
        self, session: SqlSession, table: TableSpec, live: LiveTable | None, matching: Matching | None
    ) -> TablePlan:
        found = without_keys(super().plan_in_session(session, table, live, matching))
        if not self._partition_by or is_quarantine(table):
            return found
        there = None if live is None else self._format.partition_columns(self.spark(), table)
        return with_partitions(found, table, self._partition_by, there)

    def _plan_one_table(
        self, session: SqlSession, wanted: TableSpec, live: LiveTable | None, matching: Matching
    ) -> TablePlan:
        if live is not None:
            wanted = allow_null_load_columns(wanted, live)
        return super()._plan_one_table(session, wanted, live, matching)

    def schema_changes(self, session: SqlSession, table: TableSpec) -> list[TableChange]:
        return []

    def create_sql(self, table: TableSpec) -> str:
        return self._format.create_sql(*self._stored_table(table))

    def _stored_table(self, table: TableSpec) -> tuple[TableSpec, list[str]]:
        """The table to create, and its partition columns."""
        if is_quarantine(table):
            return with_commit_columns(table), []
        stored = with_lifetime_columns(table) if is_companion(table) else table
        return stored, [name for name in self._partition_by if name in table.column_names]

    def make_change(self, session: SqlSession, table: TableSpec, change: TableChange) -> None:
        if change.action in ("create_table", "add_column", "widen_column"):
            companion = table.companion()
            specs = [table.with_load_columns(), *([companion] if companion is not None else [])]
            (meant,) = [spec for spec in specs if f"{change.subject}.".startswith(f"{spec.label}.")]
            if change.action == "create_table":
                self._format.create(self.spark(), *self._stored_table(meant))
                return
            column = change.subject.removeprefix(f"{meant.label}.")
            self._format.prepare_column_change(self.spark(), meant, change.action, column)
        session.execute(change.sql)

    def alterations(self, session: SqlSession, diff: TableDiff) -> list[TableChange]:
        """The changes of an existing table, without keys."""
        return [
            c for c in alter_table_changes(self.dialect, diff) if c.action not in ("change_key", "add_unique")
        ]

    def change_table(self, table: TableSpec, plan: TablePlan) -> None:
        """Change the table. Nothing is created ahead: the journal is next to the table."""
        session = SparkSqlSession(self.spark()) if plan.changes else None
        for change in plan.changes:
            assert session is not None
            self.make_change(session, table, change)

    # -------------------------------------------------------------- lock, ledger, watermark

    def lock(self, pipeline: str, target: str, run_id: uuid.UUID) -> AbstractContextManager[None]:
        return self.store.lock(pipeline, target, run_id)

    def watermark(self, pipeline: str, target: str, column: str) -> Watermark | None:
        journal = self._journal_of(pipeline, target)
        return journal.watermark(pipeline, target, column) if journal is not None else None

    def ledger(
        self, pipeline: str, target: str, *, run_id: str | None = None, limit: int = 100
    ) -> list[LedgerEntry]:
        journal = self._journal_of(pipeline, target)
        if journal is None:
            return []
        entries = journal.entries(pipeline, target)
        return list(islice((e for e in entries if run_id is None or e.run_id == run_id), limit))

    def _journal_of(self, pipeline: str, target: str) -> Journal | None:
        """The journal of a pipeline's target table, found by the note of its last load."""
        table = remembered_table(self.store, pipeline, target)
        return self._open_journal(table) if table is not None else None

    def _open_journal(self, table: TableSpec) -> Journal:
        with self._explain_errors(f"reading the journal of {table.label}"):
            store, folder = self._format.table_folder(table)
            return open_journal(
                store, folder, lambda token: self._format.has_commit(self.spark, table, token)
            )

    def forget_batches(self, pipeline: str, target: str, before: dt.datetime) -> None:
        """Keep all entries: loads fold the old ones, which then cost little."""

    # -------------------------------------------------------------- quarantine

    def count_quarantined(self, table: TableSpec, pipeline: str) -> list[QuarantineCount]:
        self.name_table(table)
        return super().count_quarantined(table, pipeline)

    def read_quarantined(self, rows: QuarantinedRows, limit: int, offset: int) -> list[Mapping[str, Any]]:
        self.name_table(rows.table)
        found = super().read_quarantined(rows, limit, offset)
        return [{name: row[name] for name in row if name not in COMMIT_COLUMNS} for row in found]

    def purge_quarantined(self, rows: QuarantinedRows) -> int:
        self.name_table(rows.table)
        with self._explain_errors(f"purging rows of {rows.table.label}"):
            return purge_rows(self.spark(), self._format, rows, self.dialect)

    # -------------------------------------------------------------- staging and apply

    def create_staging(self, load: Load, schema: pa.Schema) -> LakeStaging:
        self._format.require_separate(load.table)
        attempt = f"{load.run_id.hex[:12]}-{uuid.uuid4().hex[:8]}"
        if not load.dry_run:
            remember_table(self.store, load)
        folder = f"{STAGING}/{distinct_name(load.pipeline, load.target)}/{attempt}"
        direct = self._direct.new_staging(load, folder)
        # so that a sweep finds the leftovers of a crash
        note = direct.note if direct is not None else ""
        self.store.create(f"{folder}/{BEGUN_MARKER}", note, durable=False)
        return direct or LakeStaging(self.store, folder, load.plan.staged)

    def commit_method(self, plan: LoadPlan) -> tuple[str, str] | None:
        return self._direct.commit_method(plan)

    def staged_select(self, session: SqlSession, rows: StagedRows, table: TableSpec) -> exp.Expr:
        raise NotImplementedError("a lake reads its staging as a frame")

    def apply(self, load: Load, rows: LoadRows) -> LoadResult:
        if isinstance(rows, SameDatabaseRows):
            raise Unsupported("a lake computes rows with Spark only", state="nothing was touched")
        if isinstance(rows, QuarantinedRows):
            staging = self.create_staging(load, load.table.arrow_schema())  # for the work files of the load
            try:
                return self._apply_rows(load, rows, staging)
            finally:
                self.drop_staging(staging)
        return self._apply_rows(load, rows, _as_lake_staging(rows.staging))

    def _apply_rows(self, load: Load, rows: StagedRows | QuarantinedRows, staging: LakeStaging) -> LoadResult:
        self.name_table(load.table)
        with self._explain_errors(f"loading {load.target}"):
            if load.dry_run:
                return self._preview_load(load, rows, staging, self._open_journal(load.table))
            return retry_on_conflict(
                lambda: self._apply(load, rows, staging),
                lambda error: isinstance(error, ConcurrentCommit) or self._format.is_conflict(error),
                _TRIES,
                lambda: TargetFailed(
                    f"other writers changed {load.table.label} during each of {_TRIES} attempts",
                    state=f"{load.table.label} holds nothing of this load",
                    next_step="run it again when they are done",
                ),
            )

    def _apply(self, load: Load, rows: StagedRows | QuarantinedRows, staging: LakeStaging) -> LoadResult:
        store, folder = self._format.table_folder(load.table)
        with store.table_lock(folder):
            fault_points.point("apply.began")
            journal = self._open_journal(load.table)
            if len(journal.committed) > FOLD_ABOVE:
                journal.fold()
                journal = self._open_journal(load.table)
            if isinstance(staging, DirectStaging) and isinstance(rows, StagedRows):
                applied = self._direct.apply(load, journal, rows, staging)
                if applied is not None:
                    return applied
            spark = self.spark()
            if any(change.action == "fill" for change in load.plan.table_plan.changes):
                # rows are compared by the filled values, so check before filling
                checked = self._preview_load(load, rows, staging, journal)
                if checked.duplicate:
                    return LoadResult(RowCounts(read=checked.rows.read), duplicate=True)
                self._change_table(load)
            work = self._new_load(spark, load, journal, rows, staging)
            try:
                computed = work.compute()
                return work.commit(computed, lambda: self._change_table(load))
            finally:
                work.drop_views()

    def _preview_load(
        self, load: Load, rows: StagedRows | QuarantinedRows, staging: LakeStaging, journal: Journal
    ) -> LoadResult:
        spark = self.spark()
        work = self._new_load(spark, load, journal, rows, staging)
        try:
            computed = work.compute()
            if computed.changes is not None:
                self._format.refuse_rows(spark, load.table, computed.changes)
            return computed.applied
        finally:
            work.drop_views()

    def _new_load(
        self,
        spark: SparkSession,
        load: Load,
        journal: Journal,
        rows: StagedRows | QuarantinedRows,
        staging: LakeStaging,
    ) -> LakeLoad:
        scratch = self.store.uri(f"{staging.folder}/changes")
        replayed = rows if isinstance(rows, QuarantinedRows) else None
        gate = None
        if load.plan.gate is not None or replayed is not None:
            gate = LakeGate(spark, self._format, load, journal, scratch, self._explain_errors, replayed)
        if isinstance(rows, StagedRows):
            frame, staged = staged_frame(spark, staging, rows), sum(part.rows for part in rows.parts)
        else:
            assert gate is not None
            frame = gate.replayed_rows()
            staged = frame.count()
        return LakeLoad(spark, self._format, load, journal, frame, staged, scratch, gate)

    def _change_table(self, load: Load) -> None:
        session = SparkSqlSession(self.spark())
        self._partition_by = load.plan.partition_by
        self.make_planned_changes(session, load)
        gate, plan = load.plan.gate, load.plan.quarantine_plan
        if gate is None or gate.quarantine is None or not plan.changes:
            return
        self.name_table(gate.quarantine)
        if not self._format.snapshot(self.spark(), gate.quarantine):
            for change in plan.changes:
                self.make_change(session, gate.quarantine, change)
            return
        own = replace(load.plan, table=gate.quarantine, matching=Matching(), table_plan=plan)
        # under another name: the watermarks of the target stay
        self.make_planned_changes(session, replace(load, target=f"{load.target}#quarantine", plan=own))

    def changes_to_make(self, session: SqlSession, load: Load) -> Sequence[TableChange]:
        """The changes before the commit. A new table is created with its first rows, in one commit."""
        due = super().changes_to_make(session, load)
        return [each for each in due if (each.action, each.subject) != ("create_table", load.table.label)]

    def drop_staging(self, staging: Staging) -> None:
        lake_staging = _as_lake_staging(staging)
        try:
            if isinstance(lake_staging, DirectStaging):
                self._direct.drop(lake_staging)
            lake_staging.store.remove_tree(lake_staging.folder)
        except (FlowError, OSError) as error:  # the load may be committed: the next run sweeps the rest
            _log.warning(
                "staging %s stays until the next run: %s", lake_staging.store.uri(lake_staging.folder), error
            )

    def sweep_staging(self, pipeline: str, target: str) -> list[str]:
        folder = f"{STAGING}/{distinct_name(pipeline, target)}"
        attempts = sorted({path.split("/")[0] for path, _ in self.store.files_below(folder)})
        swept = [attempt for attempt in attempts if self._direct.sweep(folder, attempt)]
        for attempt in swept:
            self.store.remove_tree(f"{folder}/{attempt}")
        if len(swept) == len(attempts):
            self.store.remove_tree(folder)
        return [f"staging {attempt}" for attempt in swept]

    def maintain(self, table: TableSpec, options: MaintenanceOptions) -> Sequence[MaintenanceReport]:
        with self._explain_errors(f"maintaining {table.label}"):
            spark = self.spark()
            return LakeMaintenance(
                spark, self._format, table, lambda: self._open_journal(table), options
            ).run()

    def run_sql(self, sql: str) -> int:
        """Run one INSERT, UPDATE, DELETE or MERGE, under the lock of the table that it changes."""
        with self._explain_errors("the statement"):
            spark = self.spark()
            statement = resolve_tables(sql, self._format.sql_name)
            with self._lock_out_loads(statement.changed_table):
                answer = spark.sql(statement.sql).collect()
        counted = [row.asDict().get("num_affected_rows") for row in answer]
        return int(counted[0] or 0) if counted else 0

    @contextmanager
    def _lock_out_loads(self, name: TableName) -> Iterator[None]:
        schema = self._format.levels.join(name[:-1]) or None
        store, folder = self._format.table_folder(TableSpec(schema, name[-1], NO_COLUMNS))
        with store.table_lock(folder):
            yield


def _as_lake_staging(staging: Staging) -> LakeStaging:
    assert isinstance(staging, LakeStaging)
    return staging
