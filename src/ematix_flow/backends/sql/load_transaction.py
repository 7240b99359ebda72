"""A load inside its transaction: the strategy's statements, the ledger row and the watermark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from sqlglot import exp

from ematix_flow import fault_points
from ematix_flow.backends.base import Load, LoadResult, LoadRows, QuarantinedRows, SameDatabaseRows
from ematix_flow.backends.incremental_loads import batch_key, made_no_progress, require_unmoved_watermark
from ematix_flow.backends.sql.control_tables import (
    LEDGER,
    TIMESTAMP,
    WATERMARKS,
    insert_control_sql,
    select_control_sql,
)
from ematix_flow.backends.sql.database import SqlDatabase
from ematix_flow.backends.sql.expectation_gate import ExpectationGate, RulesRefused
from ematix_flow.backends.sql.load_steps import (
    STRATEGIES,
    WORK_TABLES,
    count_incoming,
    count_tally,
    incoming_rows,
    load_result,
    refuse_shrink,
    require_all_staged_rows,
)
from ematix_flow.backends.sql.older_rows import OLDER_TABLE, newest_rows, older_table
from ematix_flow.backends.sql.quarantine import (
    BATCH_TABLE,
    GATED_TABLE,
    batch_table,
    delete_quarantined,
    gated_table,
    mark_quarantined,
    select_quarantined,
)
from ematix_flow.backends.sql.rule_checks import CheckedRows
from ematix_flow.backends.sql.session import SamplesRefused, SqlDialect, SqlSession, transaction
from ematix_flow.backends.sql.table_plans import remaining_changes
from ematix_flow.backends.sql.unchanged_quarantine import are_in_quarantine
from ematix_flow.backends.stores.ledger_records import entry_to_columns, new_ledger_entry
from ematix_flow.errors import FlowError, PlanError
from ematix_flow.spec.expectations import POSITION
from ematix_flow.spec.row_counts import RowCounts
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies.load_guard import LoadGuard
from ematix_flow.strategies.matching import Matching
from ematix_flow.strategies.sql import (
    RowTally,
    StrategyStep,
    column,
    insert_into,
    subquery,
)


@contextmanager
def create_work_tables(
    database: SqlDatabase, session: SqlSession, load: Load, computed: bool, replayed: bool
) -> Iterator[Mapping[str, exp.Table]]:
    """The empty tables that the strategy works with, created before the transaction and dropped after it.

    One of them takes the rows of a query that the database computes itself, when the load reads the rows
    more than once: the user's query runs once.
    """
    wanted = (
        dict(WORK_TABLES[load.plan.mode](load.table, incoming_rows(load, exp.Select())))
        if load.plan.mode in WORK_TABLES
        else {}
    )
    gate = load.plan.gate
    if computed and (wanted or load.plan.range is not None or gate is not None or replayed):
        wanted[BATCH_TABLE] = batch_table(load.table, replayed)
    if gate is not None and gate.sets_aside:
        wanted[GATED_TABLE] = gated_table(load.table, replayed, load.plan.names_messages)
        if load.plan.stages_older and not replayed:
            wanted[OLDER_TABLE] = older_table(load.table)
    made: dict[str, exp.Table] = {}
    try:
        for name, spec in wanted.items():
            made[name] = database.create_work_table(session, load, spec)
        yield made
    finally:
        for table in made.values():
            with suppress(FlowError):  # a broken session has dropped it; the first error counts
                database.drop_work_table(session, table)


def apply_load(database: SqlDatabase, session: SqlSession, load: Load, rows: LoadRows) -> LoadResult:
    """Apply the load in one transaction: table changes, rows, ledger row and watermark."""
    staged, replayed, with_older, with_messages = None, None, None, None
    if isinstance(rows, SameDatabaseRows):
        select = database.computed_select(session, rows.sql, load.table)
    elif isinstance(rows, QuarantinedRows):
        replayed, select = rows, select_quarantined(rows, load.table, database.dialect)
    else:
        staged = sum(part.rows for part in rows.parts)
        select = database.staged_select(session, rows, load.plan.staged)
        if load.plan.stages_older:
            with_older, select = select, newest_rows(load.table, select)
        if load.plan.names_messages:
            names = [column(name, "s") for name in load.table.column_names]
            with_messages, select = select, exp.select(*names).from_(subquery(select, "s"))
    with create_work_tables(database, session, load, staged is None, replayed is not None) as work:
        load_transaction = LoadTransaction(
            database, session, load, select, staged, work, replayed, with_older, with_messages
        )
        try:
            try:
                return _run_transaction(database, session, load, load_transaction)
            except SamplesRefused:  # all is rolled back
                again = replace(load_transaction, with_samples=False)
                return _run_transaction(database, session, load, again)
        except RulesRefused as refused:
            cause = refused.error
            found = load_transaction.expectation_gate.diagnose(cause)
            raise found from (cause.__cause__ if found is cause else cause)


def _run_transaction(
    database: SqlDatabase, session: SqlSession, load: Load, load_transaction: LoadTransaction
) -> LoadResult:
    if load.dry_run:
        return load_transaction.dry_run()
    if not database.transactional_ddl:
        _make_changes(database, session, load)
    with transaction(session):
        fault_points.point("apply.began")
        if database.transactional_ddl:
            _make_changes(database, session, load)
        result = load_transaction.run()
        if is_committed(load, result):
            fault_points.point("apply.before_commit")
    return result


def _make_changes(database: SqlDatabase, session: SqlSession, load: Load) -> None:
    """Change the table and the quarantine table as planned."""
    database.make_planned_changes(session, load)
    gate = load.plan.gate
    if gate is not None and gate.quarantine is not None and load.plan.quarantine_plan.changes:
        plan = load.plan.quarantine_plan
        own = replace(load.plan, table=gate.quarantine, matching=Matching(), table_plan=plan)
        # under another name, because a new table makes the database forget the watermarks of its target
        database.make_planned_changes(session, replace(load, target=f"{load.target}#quarantine", plan=own))


def is_committed(load: Load, result: LoadResult) -> bool:
    """Whether the load has changed something: a dry run, a duplicate and a load without news have not."""
    return not (load.dry_run or result.duplicate or made_no_progress(load.plan.range, result))


@dataclass(frozen=True)
class LoadTransaction:
    """One load on one open session. ``select`` yields its rows; ``staged`` is how many tasks have staged.

    ``with_older`` yields all staged rows, if ``select`` has only the newest row of each key.
    ``with_messages`` yields the rows with the message that each comes from. ``with_samples``: whether the
    gate reads failing rows to show them.
    """

    database: SqlDatabase
    session: SqlSession
    load: Load
    select: exp.Expr
    staged: int | None
    work: Mapping[str, exp.Table]
    replayed: QuarantinedRows | None = None
    with_older: exp.Expr | None = None
    with_messages: exp.Expr | None = None
    with_samples: bool = True

    @property
    def dialect(self) -> SqlDialect:
        return self.database.dialect

    def dry_run(self) -> LoadResult:
        """Change the table and run the strategy's statements, in a transaction that is always rolled back.

        Without the planned changes, which some databases cannot roll back, the strategy is left out.
        """
        session, load, database = self.session, self.load, self.database
        session.begin()
        try:
            select = self._materialize_query()
            rows_in, high = self._count_staged(select)
            if database.control_table_exists(session, LEDGER) and self._ledger_holds(batch_key(load, high)):
                # the table holds the rows already, which must not fail the dry run
                return LoadResult(RowCounts(read=rows_in), duplicate=True)
            if database.transactional_ddl:
                database.make_planned_changes(session, load)
            checked = self.expectation_gate.check(select)
            rows_in += checked.older
            if not self._table_is_as_planned():
                inserted = rows_in - checked.quarantined
                return LoadResult(
                    RowCounts(read=rows_in, inserted=inserted), high, expectations=checked.results
                )
            counts = self._run_steps(self._strategy_steps(checked.select), rows_in - checked.quarantined)
            refuse_shrink(load, counts, checked.results)
            session.check_deferred_constraints()
        finally:
            session.rollback()
        return self._result(checked, rows_in, counts, high)

    def _table_is_as_planned(self) -> bool:
        """Whether the table exists with all planned changes."""
        database, load = self.database, self.load
        live = database.read_live_table(self.session, load.table)
        if live is None or not load.plan.table_plan.changes:
            return live is not None
        return not remaining_changes(
            load, database.plan_in_session(self.session, load.table, live, load.plan.matching)
        )

    def _materialize_query(self) -> exp.Expr:
        if BATCH_TABLE not in self.work:
            return self.select
        names, batch = self.load.table.column_names, self.work[BATCH_TABLE]
        if self.replayed is None:
            self.session.execute(self.dialect.render(insert_into(batch, names, self.select)))
        else:
            self._take_from_quarantine(self.replayed, batch)
        self._analyze(batch)
        return exp.select(*[column(n) for n in names]).from_(batch.copy())

    def _take_from_quarantine(self, rows: QuarantinedRows, batch: exp.Table) -> None:
        """Move the chosen rows to the batch. They go back, in this transaction, if they fail again.

        They are marked first: a row that is set aside or purged meanwhile is in all statements or in none.
        """
        if self._ledger_holds(batch_key(self.load, None)):
            return  # an earlier try has committed: what is there now has been set aside since
        names = [*self.load.table.column_names, POSITION]
        taken = replace(rows, chosen=replace(rows.chosen, rule=None, batch=str(self.load.run_id)))
        for statement in (
            mark_quarantined(rows, self.load.run_id, self.dialect),
            insert_into(batch, names, select_quarantined(taken, self.load.table, self.dialect)),
            delete_quarantined(taken, self.dialect),
        ):
            self.session.execute(self.dialect.render(statement))
        fault_points.point("gate.replay_removed")

    def _analyze(self, table: exp.Table) -> None:
        sql = self.dialect.analyze_sql(table)
        if sql is not None:
            self.session.execute(sql)

    def _strategy_steps(self, select: exp.Expr) -> Sequence[StrategyStep | LoadGuard | RowTally]:
        load = self.load
        if load.plan.mode not in STRATEGIES:
            raise PlanError(f"mode {load.plan.mode!r} cannot be applied here")
        incoming = replace(
            incoming_rows(load, select),
            work=self.work,
            into_empty=bool(self.work) and self._target_is_empty(),
        )
        return STRATEGIES[load.plan.mode](self.dialect, load.table, incoming)

    def _target_is_empty(self) -> bool:
        table = self.load.table
        any_row = exp.select("1").from_(self.dialect.table(table.schema, table.name)).limit(1)
        return not self.session.fetch(self.dialect.render(any_row))

    def run(self) -> LoadResult:
        """Run everything between BEGIN and COMMIT."""
        session, load = self.session, self.load
        rows_in, high = self.staged or 0, None
        select = self._materialize_query()
        counted = bool(self.work) or (self.staged is not None and load.plan.range is not None)
        if counted:
            rows_in, high = self._count_staged(select)
        key = batch_key(load, high)
        if load.plan.range is not None:
            current = self.database.read_watermark(
                session, load.pipeline, load.target, load.plan.range.column
            )
            require_unmoved_watermark(load, current)
        if self._ledger_holds(key):
            return LoadResult(RowCounts(read=rows_in), duplicate=True)
        checked = self.expectation_gate.check(select)
        rows_in += checked.older
        counts = self._run_steps(self._strategy_steps(checked.select), rows_in - checked.quarantined)
        if not counted and self.staged is None:
            rows_in = counts["insert"]  # the query ran once, so the rows written are the rows read
        elif not counted and counts["insert"] != self.staged:  # a trigger, or incomplete staging
            require_all_staged_rows(load, self._count_incoming(select)[0], self.staged)
        refuse_shrink(load, counts, checked.results)
        applied = self._result(checked, rows_in, counts, high)
        idle = made_no_progress(load.plan.range, applied)
        if idle and self._are_in_quarantine(checked):
            kept = tuple(replace(each, quarantined=0) for each in checked.results)
            return replace(applied, expectations=kept)
        self.expectation_gate.set_aside(select, checked, high)
        fault_points.point("apply.rows_written")
        if not idle:
            self._record_batch(key, applied)
        return applied

    def _are_in_quarantine(self, checked: CheckedRows) -> bool:
        gated = self.work.get(GATED_TABLE)
        return gated is not None and are_in_quarantine(self.session, self.dialect, self.load, checked, gated)

    @property
    def expectation_gate(self) -> ExpectationGate:
        replayed = self.replayed is not None
        return ExpectationGate(
            self.database,
            self.session,
            self.load,
            self.select,
            self.work,
            replayed,
            self.with_older,
            self.with_messages,
            self.with_samples,
        )

    def _result(
        self, checked: CheckedRows, rows_in: int, counts: Mapping[str, int], high: Watermark | None
    ) -> LoadResult:
        """The result of the load. Rows that were set aside are read, and nothing else."""
        found = load_result(self.load, rows_in - checked.quarantined, counts, high)
        return replace(found, rows=replace(found.rows, read=rows_in), expectations=checked.results)

    def _record_batch(self, key: str, applied: LoadResult) -> None:
        """Write the ledger row and the watermark."""
        session, load, high = self.session, self.load, applied.watermark
        entry = new_ledger_entry(load, key, applied)
        now = self.database.bind(entry.committed_at, TIMESTAMP)
        session.execute(
            insert_control_sql(self.dialect, LEDGER), {**entry_to_columns(entry), "committed_at": now}
        )
        fault_points.point("apply.ledger_written")
        if high is not None:
            session.execute(
                insert_control_sql(self.dialect, WATERMARKS, replace_on=WATERMARKS.primary_key),
                {
                    "pipeline": load.pipeline,
                    "target": load.target,
                    "column_name": high.column,
                    "value_type": high.type_json(),
                    "value": high.encode(),
                    "updated_at": now,
                },
            )

    def _run_steps(
        self, steps: Sequence[StrategyStep | LoadGuard | RowTally], rows_in: int
    ) -> dict[str, int]:
        session = self.session
        counts = {"insert": 0, "update": 0, "delete": 0, "work": 0}
        own = {table.name: table for table in self.work.values()}
        for step in steps:
            if isinstance(step, LoadGuard):
                refused = step.judge(session.fetch(self.dialect.render(step.query)), counts)
                if refused is not None:
                    raise refused
                continue
            if isinstance(step, RowTally):
                count_tally(counts, step, rows_in, self.dialect, session)
                continue
            counts[step.action] += session.execute(self.dialect.render(step.statement))
            filled = step.statement.find(exp.Table)
            if step.action == "work" and filled is not None and filled.name in own:
                self._analyze(own[filled.name])
        return counts

    def _count_staged(self, select: exp.Expr) -> tuple[int, Watermark | None]:
        """Count the rows, after a check that staging has all of them."""
        found = self._count_incoming(select)
        every = found if self.with_older is None else self._count_incoming(self.with_older)
        require_all_staged_rows(self.load, every[0], self.staged)
        return found

    def _count_incoming(self, select: exp.Expr) -> tuple[int, Watermark | None]:
        if self.load.plan.range is not None:
            self.database.require_orderable(self.load.table.column(self.load.plan.range.column).type)
        return count_incoming(self.dialect, self.session, self.load, select)

    def _ledger_holds(self, batch_key: str) -> bool:
        load = self.load
        sql = select_control_sql(self.dialect, LEDGER, ["run_id"], ["pipeline", "target", "batch_key"])
        named = {"pipeline": load.pipeline, "target": load.target, "batch_key": batch_key}
        return bool(self.session.fetch(sql, named))
