"""A load inside its transaction: the strategy's statements, the ledger row and the watermark.

What a database does in its own way (sessions, work tables, changes to a table) it brings as a
`RelationalTarget`; that also begins and commits.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow import faults
from ematix_flow.backends.base import Applied, Load
from ematix_flow.backends.control_tables import (
    LEDGER,
    MOMENT,
    WATERMARKS,
    control_insert,
    control_select,
)
from ematix_flow.backends.planned_changes import still_needed
from ematix_flow.backends.positions import batch_key, nothing_new, require_position
from ematix_flow.backends.sql_session import SqlDialect, SqlSession
from ematix_flow.errors import FlowError, PlanError, RowRejected, TargetFailed
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies import append, merge, scd2, truncate
from ematix_flow.strategies.sql import (
    Dialect,
    Guard,
    Incoming,
    Shrinking,
    Step,
    Tally,
    called,
    column,
    insert_into,
)

if TYPE_CHECKING:
    from ematix_flow.backends.relational import RelationalTarget

BATCH = "batch"
STRATEGIES: dict[str, Callable[[Dialect, TableSpec, Incoming], Sequence[Step | Guard | Tally]]] = {
    "append": append.steps,
    "truncate": truncate.steps,
    "merge": merge.steps,
    "scd2": scd2.steps,
}
WORK_TABLES = {"merge": merge.work_tables, "scd2": scd2.work_tables}


@contextmanager
def work_tables(
    target: RelationalTarget, session: SqlSession, load: Load, *, computed: bool
) -> Iterator[Mapping[str, exp.Table]]:
    """Empty tables of the strategy's own, made before the transaction and gone after it.

    What the database computes itself goes to one of them first where the load looks at it more than
    once: the user's query is asked once.
    """
    wanted = (
        dict(WORK_TABLES[load.mode](load.table, incoming_of(load, exp.Select())))
        if load.mode in WORK_TABLES
        else {}
    )
    if computed and (wanted or load.range is not None):
        columns = tuple(replace(c, nullable=True, primary_key=False) for c in load.table.columns)
        wanted[BATCH] = TableSpec(None, BATCH, columns)
    made: dict[str, exp.Table] = {}
    try:
        for name, spec in wanted.items():
            made[name] = target.create_work_table(session, load, spec)
        yield made
    finally:
        for table in made.values():
            with suppress(FlowError):  # a session that broke has taken it along; the first error counts
                target.drop_work_table(session, table)


@dataclass(frozen=True)
class Application:
    """One load on one open session: ``select`` yields its rows, of which ``staged`` were written aside."""

    target: RelationalTarget
    session: SqlSession
    load: Load
    select: exp.Expr
    staged: int | None
    work: Mapping[str, exp.Table]

    @property
    def dialect(self) -> SqlDialect:
        return self.target.dialect

    def rehearse(self) -> Applied:
        """The strategy's statements in a transaction that is always rolled back."""
        session, load, target = self.session, self.load, self.target
        session.begin()
        try:
            select = self._asked_once()
            rows_in, high = self._measure(select)
            require_staged(load, rows_in, self.staged)
            if target.control_exists(session, LEDGER) and self._ledger_holds(batch_key(load, high)):
                # the rows are there from before, which is no reason to refuse them
                return Applied(rows_in=rows_in, duplicate=True)
            if target.transactional_ddl and load.changes.changes:
                target.change(session, load)
            elif not self._is_as_planned():
                return Applied(rows_in=rows_in, rows_inserted=rows_in, watermark=high)
            counts = self._run(self._steps(select), rows_in)
            refuse_shrink(load, counts)
            session.check_deferred()
        finally:
            session.rollback()
        return applied_of(load, rows_in, counts, high)

    def _is_as_planned(self) -> bool:
        """Whether the table is there, with all changes that were planned."""
        target, load = self.target, self.load
        live = target.live_columns(self.session, load.table)
        if live is None or not load.changes.changes:
            return live is not None
        return not still_needed(load, target.plan_within(self.session, load.table, live, load.matching))

    def _asked_once(self) -> exp.Expr:
        if BATCH not in self.work:
            return self.select
        names, batch = self.load.table.column_names, self.work[BATCH]
        self.session.execute(self.dialect.render(insert_into(batch, names, self.select)))
        self._analyze(batch)
        return exp.select(*[column(n) for n in names]).from_(batch.copy())

    def _analyze(self, table: exp.Table) -> None:
        sql = self.dialect.analyze_sql(table)
        if sql is not None:
            self.session.execute(sql)

    def _steps(self, select: exp.Expr) -> Sequence[Step | Guard | Tally]:
        load = self.load
        if load.mode not in STRATEGIES:
            raise PlanError(f"mode {load.mode!r} cannot be applied here")
        incoming = replace(
            incoming_of(load, select), work=self.work, into_empty=bool(self.work) and self._is_empty()
        )
        return STRATEGIES[load.mode](self.dialect, load.table, incoming)

    def _is_empty(self) -> bool:
        table = self.load.table
        any_row = exp.select("1").from_(self.dialect.table(table.schema, table.name)).limit(1)
        return not self.session.fetch(self.dialect.render(any_row))

    def carry_out(self) -> Applied:
        """Everything between the transaction's beginning and its commit."""
        session, load = self.session, self.load
        rows_in, high = self.staged or 0, None
        select = self._asked_once()
        counted = bool(self.work) or (self.staged is not None and load.range is not None)
        if counted:
            rows_in, high = self._measure(select)
            require_staged(load, rows_in, self.staged)
        key = batch_key(load, high)
        if load.range is not None:
            current = self.target.position(session, load.pipeline, load.target, load.range.column)
            require_position(load, current)
        if self._ledger_holds(key):
            return Applied(rows_in=rows_in, duplicate=True)
        counts = self._run(self._steps(select), rows_in)
        if not counted and self.staged is None:
            rows_in = counts["insert"]  # asked once, so that what is counted is what was written
        elif not counted and counts["insert"] != self.staged:  # a trigger's doing, or is staging not whole?
            require_staged(load, self._measure(select)[0], self.staged)
        refuse_shrink(load, counts)
        faults.point("apply.rows_written")
        applied = applied_of(load, rows_in, counts, high)
        if not nothing_new(load.range, applied):
            self._record(key, applied)
        return applied

    def _record(self, key: str, applied: Applied) -> None:
        """The ledger row and the watermark."""
        session, load = self.session, self.load
        high = applied.watermark
        began, ended = load.source_bounds(high)
        now = self.target.bind(dt.datetime.now(dt.timezone.utc), MOMENT)
        session.execute(
            control_insert(self.dialect, LEDGER),
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
                control_insert(self.dialect, WATERMARKS, replace_on=WATERMARKS.primary_key),
                {
                    "pipeline": load.pipeline,
                    "target": load.target,
                    "column_name": high.column,
                    "value_type": high.type_json(),
                    "value": high.encode(),
                    "updated_at": now,
                },
            )

    def _run(self, steps: Sequence[Step | Guard | Tally], rows_in: int) -> dict[str, int]:
        session = self.session
        counts = {"insert": 0, "update": 0, "delete": 0, "work": 0}
        own = {table.name: table for table in self.work.values()}
        for step in steps:
            if isinstance(step, Guard):
                refused = step.judge(session.fetch(self.dialect.render(step.query)), counts)
                if refused is not None:
                    raise refused
                continue
            if isinstance(step, Tally):
                take_tally(counts, step, rows_in, self.dialect, session)
                continue
            counts[step.action] += session.execute(self.dialect.render(step.statement))
            filled = step.statement.find(exp.Table)
            if step.action == "work" and filled is not None and filled.name in own:
                self._analyze(own[filled.name])
        return counts

    def _measure(self, select: exp.Expr) -> tuple[int, Watermark | None]:
        if self.load.range is not None:
            self.target.check_watermark(self.load.table.column(self.load.range.column).type)
        return measure(self.dialect, self.session, self.load, select)

    def _ledger_holds(self, batch_key: str) -> bool:
        load = self.load
        sql = control_select(self.dialect, LEDGER, ["run_id"], ["pipeline", "target", "batch_key"])
        named = {"pipeline": load.pipeline, "target": load.target, "batch_key": batch_key}
        return bool(self.session.fetch(sql, named))


def measure(
    dialect: SqlDialect, session: SqlSession, load: Load, select: exp.Expr
) -> tuple[int, Watermark | None]:
    """How many rows come, and the highest watermark among them."""
    rows = called(exp.Subquery(this=select.copy()), "m")
    if load.range is None:
        counted = session.fetch(dialect.render(exp.select(exp.Count(this=exp.Star())).from_(rows)))
        return int(counted[0][0]), None
    mark = column(load.range.column, "m")
    data_type = load.table.column(load.range.column).type
    latest = dialect.fetched(exp.Max(this=dialect.comparable(mark.copy(), data_type)), data_type)
    query = exp.select(exp.Count(this=exp.Star()), exp.Count(this=mark), latest).from_(rows)
    total, marked, highest = session.fetch(dialect.render(query))[0]
    if marked != total:
        raise RowRejected(
            f"{total - marked:,} of {total:,} rows have no watermark in column {load.range.column!r}",
            state=f"{load.table.label} is unchanged",
            next_step="filter these rows out in the source SQL, or choose a column that is never null",
        )
    if highest is None:
        return 0, None
    return int(total), Watermark(load.range.column, data_type, dialect.to_python(highest, data_type))


def take_tally(
    counts: dict[str, int], step: Tally, rows_in: int, dialect: SqlDialect, session: SqlSession
) -> None:
    """Ask how many rows had this fate, unless every row has had another."""
    found = 0
    if rows_in > counts.get("brought", 0):
        found = int(session.fetch(dialect.render(step.query))[0][0])
    counts[step.fate] = found


def incoming_of(load: Load, select: exp.Expr) -> Incoming:
    return Incoming(
        select,
        str(load.run_id),
        load.loaded_at,
        load.range.low if load.range else None,
        load.matching,
        shrinking=Shrinking(load.table.label, load.max_shrink, load.allow_empty),
    )


def applied_of(load: Load, rows_in: int, counts: Mapping[str, int], high: Watermark | None) -> Applied:
    outranked = counts.get("outranked", 0)
    if "brought" in counts:  # by event time each row is counted by what became of it
        unchanged = rows_in - counts["brought"] - outranked
    else:
        unchanged = unchanged_rows(load.mode, rows_in, counts["insert"], counts["update"])
    return Applied(
        rows_in=rows_in,
        rows_inserted=counts["insert"],
        rows_updated=counts["update"],
        rows_deleted=counts["delete"],
        rows_unchanged=unchanged,
        rows_outranked=outranked,
        watermark=high,
    )


def unchanged_rows(mode: str, rows_in: int, inserted: int, updated: int) -> int:
    """Rows that matched and changed nothing are those that were neither inserted nor updated."""
    written = {"merge": inserted + updated, "scd2": inserted}.get(mode, rows_in)
    return max(rows_in - written, 0)


def require_staged(load: Load, rows: int, staged: int | None) -> None:
    """A database that crashed and came back may have emptied its staging: never load less than was read."""
    if staged is not None and rows != staged:
        raise TargetFailed(
            f"staging of {load.table.label} holds {rows:,} rows, and {staged:,} were written to it",
            state=f"{load.table.label} is unchanged",
            next_step="run it again; look into the server's log for a restart",
        )


def refuse_shrink(load: Load, counts: dict[str, int]) -> None:
    if load.mode == "truncate":
        truncate.check_shrink(
            load.table.label,
            counts["delete"],
            counts["insert"],
            max_shrink=load.max_shrink,
            allow_empty=load.allow_empty,
        )
