"""A load inside its transaction: the strategy's statements, the ledger row and the watermark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow import faults
from ematix_flow.backends.base import Load, LoadResult
from ematix_flow.backends.incremental_loads import batch_key, made_no_progress, require_unmoved_watermark
from ematix_flow.backends.sql.control_tables import (
    LEDGER,
    TIMESTAMP,
    WATERMARKS,
    insert_control_sql,
    select_control_sql,
)
from ematix_flow.backends.sql.session import SqlDialect, SqlSession
from ematix_flow.backends.sql.table_plans import remaining_changes
from ematix_flow.errors import FlowError, PlanError, RowRejected, TargetFailed
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies import append, merge, scd2, truncate
from ematix_flow.strategies.sql import (
    IncomingRows,
    LoadGuard,
    RowTally,
    ShrinkLimit,
    StrategyDialect,
    StrategyStep,
    column,
    insert_into,
    with_alias,
)

if TYPE_CHECKING:
    from ematix_flow.backends.sql.target import RelationalTarget

BATCH_TABLE = "batch"
STRATEGIES: dict[
    str, Callable[[StrategyDialect, TableSpec, IncomingRows], Sequence[StrategyStep | LoadGuard | RowTally]]
] = {
    "append": append.steps,
    "truncate": truncate.steps,
    "merge": merge.steps,
    "scd2": scd2.steps,
}
WORK_TABLES = {"merge": merge.work_tables, "scd2": scd2.work_tables}


@contextmanager
def create_work_tables(
    target: RelationalTarget, session: SqlSession, load: Load, *, computed: bool
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
    if computed and (wanted or load.plan.range is not None):
        columns = tuple(replace(c, nullable=True, primary_key=False) for c in load.table.columns)
        wanted[BATCH_TABLE] = TableSpec(None, BATCH_TABLE, columns)
    made: dict[str, exp.Table] = {}
    try:
        for name, spec in wanted.items():
            made[name] = target.create_work_table(session, load, spec)
        yield made
    finally:
        for table in made.values():
            with suppress(FlowError):  # a broken session has dropped it; the first error counts
                target.drop_work_table(session, table)


@dataclass(frozen=True)
class LoadTransaction:
    """One load on one open session. ``select`` yields its rows; ``staged`` is how many tasks have staged."""

    target: RelationalTarget
    session: SqlSession
    load: Load
    select: exp.Expr
    staged: int | None
    work: Mapping[str, exp.Table]

    @property
    def dialect(self) -> SqlDialect:
        return self.target.dialect

    def dry_run(self) -> LoadResult:
        """Run the strategy's statements in a transaction that is always rolled back."""
        session, load, target = self.session, self.load, self.target
        session.begin()
        try:
            select = self._materialize_query()
            rows_in, high = self._count_incoming(select)
            require_all_staged_rows(load, rows_in, self.staged)
            if target.control_table_exists(session, LEDGER) and self._ledger_holds(batch_key(load, high)):
                # the table holds the rows already, which must not fail the dry run
                return LoadResult(rows_in=rows_in, duplicate=True)
            if target.transactional_ddl and load.plan.table_plan.changes:
                target.make_planned_changes(session, load)
            elif not self._table_is_as_planned():
                return LoadResult(rows_in=rows_in, rows_inserted=rows_in, watermark=high)
            counts = self._run_steps(self._strategy_steps(select), rows_in)
            refuse_shrink(load, counts)
            session.check_deferred_constraints()
        finally:
            session.rollback()
        return load_result(load, rows_in, counts, high)

    def _table_is_as_planned(self) -> bool:
        """Whether the table exists with all planned changes."""
        target, load = self.target, self.load
        live = target.read_live_table(self.session, load.table)
        if live is None or not load.plan.table_plan.changes:
            return live is not None
        return not remaining_changes(
            load, target.plan_in_session(self.session, load.table, live, load.plan.matching)
        )

    def _materialize_query(self) -> exp.Expr:
        if BATCH_TABLE not in self.work:
            return self.select
        names, batch = self.load.table.column_names, self.work[BATCH_TABLE]
        self.session.execute(self.dialect.render(insert_into(batch, names, self.select)))
        self._analyze(batch)
        return exp.select(*[column(n) for n in names]).from_(batch.copy())

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
            rows_in, high = self._count_incoming(select)
            require_all_staged_rows(load, rows_in, self.staged)
        key = batch_key(load, high)
        if load.plan.range is not None:
            current = self.target.read_watermark(session, load.pipeline, load.target, load.plan.range.column)
            require_unmoved_watermark(load, current)
        if self._ledger_holds(key):
            return LoadResult(rows_in=rows_in, duplicate=True)
        counts = self._run_steps(self._strategy_steps(select), rows_in)
        if not counted and self.staged is None:
            rows_in = counts["insert"]  # the query ran once, so the rows written are the rows read
        elif not counted and counts["insert"] != self.staged:  # a trigger, or incomplete staging?
            require_all_staged_rows(load, self._count_incoming(select)[0], self.staged)
        refuse_shrink(load, counts)
        faults.point("apply.rows_written")
        applied = load_result(load, rows_in, counts, high)
        if not made_no_progress(load.plan.range, applied):
            self._record_batch(key, applied)
        return applied

    def _record_batch(self, key: str, applied: LoadResult) -> None:
        """Write the ledger row and the watermark."""
        session, load = self.session, self.load
        high = applied.watermark
        began, ended = load.source_bounds(high)
        now = self.target.bind(dt.datetime.now(dt.timezone.utc), TIMESTAMP)
        session.execute(
            insert_control_sql(self.dialect, LEDGER),
            {
                "pipeline": load.pipeline,
                "target": load.target,
                "batch_key": key,
                "run_id": str(load.run_id),
                "source_from": began,
                "source_to": ended,
                "rows_in": applied.rows_in,
                "rows_inserted": applied.rows_inserted,
                "rows_updated": applied.rows_updated,
                "rows_deleted": applied.rows_deleted,
                "committed_at": now,
            },
        )
        faults.point("apply.ledger_written")
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

    def _count_incoming(self, select: exp.Expr) -> tuple[int, Watermark | None]:
        if self.load.plan.range is not None:
            self.target.require_orderable(self.load.table.column(self.load.plan.range.column).type)
        return count_incoming(self.dialect, self.session, self.load, select)

    def _ledger_holds(self, batch_key: str) -> bool:
        load = self.load
        sql = select_control_sql(self.dialect, LEDGER, ["run_id"], ["pipeline", "target", "batch_key"])
        named = {"pipeline": load.pipeline, "target": load.target, "batch_key": batch_key}
        return bool(self.session.fetch(sql, named))


def count_incoming(
    dialect: SqlDialect, session: SqlSession, load: Load, select: exp.Expr
) -> tuple[int, Watermark | None]:
    """The number of incoming rows, and the highest watermark among them."""
    rows = with_alias(exp.Subquery(this=select.copy()), "m")
    if load.plan.range is None:
        counted = session.fetch(dialect.render(exp.select(exp.Count(this=exp.Star())).from_(rows)))
        return int(counted[0][0]), None
    mark = column(load.plan.range.column, "m")
    data_type = load.table.column(load.plan.range.column).type
    latest = dialect.as_fetchable(exp.Max(this=dialect.comparable(mark.copy(), data_type)), data_type)
    query = exp.select(exp.Count(this=exp.Star()), exp.Count(this=mark), latest).from_(rows)
    total, marked, highest = session.fetch(dialect.render(query))[0]
    if marked != total:
        raise RowRejected(
            f"{total - marked:,} of {total:,} rows have no watermark in column {load.plan.range.column!r}",
            state=f"{load.table.label} is unchanged",
            next_step="filter these rows out in the source SQL, or choose a column that is never null",
        )
    if highest is None:
        return 0, None
    return int(total), Watermark(load.plan.range.column, data_type, dialect.to_python(highest, data_type))


def count_tally(
    counts: dict[str, int], step: RowTally, rows_in: int, dialect: SqlDialect, session: SqlSession
) -> None:
    """Count the rows with this outcome, unless every row has another one."""
    found = 0
    if rows_in > counts.get("brought", 0):
        found = int(session.fetch(dialect.render(step.query))[0][0])
    counts[step.fate] = found


def incoming_rows(load: Load, select: exp.Expr) -> IncomingRows:
    return IncomingRows(
        select,
        str(load.run_id),
        load.loaded_at,
        load.plan.range.low if load.plan.range else None,
        load.plan.matching,
        shrinking=ShrinkLimit(load.table.label, load.plan.max_shrink, load.plan.allow_empty),
    )


def load_result(load: Load, rows_in: int, counts: Mapping[str, int], high: Watermark | None) -> LoadResult:
    outranked = counts.get("outranked", 0)
    if "brought" in counts:  # by event time each row is counted by its outcome
        unchanged = rows_in - counts["brought"] - outranked
    else:
        unchanged = count_unchanged_rows(load.plan.mode, rows_in, counts["insert"], counts["update"])
    return LoadResult(
        rows_in=rows_in,
        rows_inserted=counts["insert"],
        rows_updated=counts["update"],
        rows_deleted=counts["delete"],
        rows_unchanged=unchanged,
        rows_outranked=outranked,
        watermark=high,
    )


def count_unchanged_rows(mode: str, rows_in: int, inserted: int, updated: int) -> int:
    """The rows that were neither inserted nor updated: they matched and changed nothing."""
    written = {"merge": inserted + updated, "scd2": inserted}.get(mode, rows_in)
    return max(rows_in - written, 0)


def require_all_staged_rows(load: Load, rows: int, staged: int | None) -> None:
    """Fail when staging holds fewer rows than tasks wrote: a server that crashed may have emptied it."""
    if staged is not None and rows != staged:
        raise TargetFailed(
            f"staging of {load.table.label} holds {rows:,} rows, and {staged:,} were written to it",
            state=f"{load.table.label} is unchanged",
            next_step="run it again; check the server's log for a restart",
        )


def refuse_shrink(load: Load, counts: dict[str, int]) -> None:
    if load.plan.mode == "truncate":
        truncate.check_shrink(
            load.table.label,
            counts["delete"],
            counts["insert"],
            max_shrink=load.plan.max_shrink,
            allow_empty=load.plan.allow_empty,
        )
