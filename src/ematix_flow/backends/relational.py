"""The commit protocol on a SQL database: what Postgres, SQLite and DuckDB share.

A target subclass brings a dialect, sessions, staging and a lock; this module owns the one transaction in
which rows, ledger entry and watermark commit together.
"""

from __future__ import annotations

import datetime as dt
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any

from sqlglot import exp

from ematix_flow import faults
from ematix_flow.backends.alterations import altered
from ematix_flow.backends.base import (
    Applied,
    LedgerEntry,
    LiveTable,
    Load,
    SameDatabaseRows,
    StagedRows,
    TableChange,
    TablePlan,
    Target,
)
from ematix_flow.backends.control_tables import (
    LEDGER,
    MOMENT,
    WATERMARKS,
    control_insert,
    control_select,
)
from ematix_flow.backends.planned_changes import (
    created_lines,
    joined_plans,
    matched_by_key,
    planned,
    still_needed,
)
from ematix_flow.backends.positions import batch_key, require_position
from ematix_flow.backends.sql_session import SqlDialect, SqlSession, transaction
from ematix_flow.backends.table_diff import TableDiff, compare_tables
from ematix_flow.backends.table_plans import create_table_sql
from ematix_flow.errors import FlowError, PlanError, RowRejected, TargetFailed
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies import append, merge, scd2, truncate
from ematix_flow.strategies.matching import Matching
from ematix_flow.strategies.sql import (
    Dialect,
    Guard,
    Incoming,
    Shrinking,
    Step,
    column,
    identifier,
    insert_into,
    verbatim,
)

_BATCH = "batch"
_STRATEGIES: dict[str, Callable[[Dialect, TableSpec, Incoming], Sequence[Step | Guard]]] = {
    "append": append.steps,
    "truncate": truncate.steps,
    "merge": merge.steps,
    "scd2": scd2.steps,
}
_WORK = {"merge": merge.work_tables, "scd2": scd2.work_tables}


class RelationalTarget(Target):
    """A SQL database as a target."""

    dialect: SqlDialect
    transactional_ddl = True  # False where a change of a table commits what came before it

    # -------------------------------------------------------------- what a database brings

    @abstractmethod
    def session(self) -> AbstractContextManager[SqlSession]:
        """Context manager of a `SqlSession`; closes it at the end."""

    def reading(self) -> AbstractContextManager[SqlSession]:
        """A session for questions: it changes nothing, and creates no database that is not there yet."""
        return self.session()

    @abstractmethod
    def live_columns(self, session: SqlSession, table: TableSpec) -> LiveTable | None: ...

    @abstractmethod
    def staged_select(self, session: SqlSession, rows: StagedRows, table: TableSpec) -> exp.Expr:
        """SELECT of the declared columns, cast to their types, from the parts. Outside a transaction."""

    def computed_select(self, session: SqlSession, sql: str, table: TableSpec) -> exp.Expr:
        """SELECT of the declared columns from SQL that the database computes itself."""
        return exp.select("*").from_(_aliased(verbatim(sql)))

    @abstractmethod
    def schema_changes(self, session: SqlSession, table: TableSpec) -> list[TableChange]:
        """CREATE SCHEMA when the table's schema is missing."""

    # -------------------------------------------------------------- tables

    def inspect(self, table: TableSpec) -> LiveTable | None:
        with self.reading() as session:
            return self.live_columns(session, table)

    def plan_table(
        self, table: TableSpec, live: LiveTable | None, matching: Matching | None = None
    ) -> TablePlan:
        with self.reading() as session:
            return self._plan(session, table, live, matching)

    def _plan(
        self, session: SqlSession, table: TableSpec, live: LiveTable | None, matching: Matching | None
    ) -> TablePlan:
        matching = matching or matched_by_key(table)
        found = self._plan_one(session, table.with_load_columns(), live, matching)
        companion = table.companion()
        if companion is None:
            return found
        beside = self._plan_one(session, companion, self.live_columns(session, companion), matching)
        return joined_plans(found, beside, companion.name)

    def _plan_one(
        self, session: SqlSession, wanted: TableSpec, live: LiveTable | None, matching: Matching
    ) -> TablePlan:
        if live is not None:
            diff = compare_tables(
                self.dialect, wanted, live, matching, lambda query: session.fetch(self.dialect.render(query))
            )
            return planned(diff, lambda: self.alterations(session, diff))
        changes = self.schema_changes(session, wanted)
        changes.append(TableChange("create_table", wanted.label, create_table_sql(self.dialect, wanted)))
        return TablePlan(tuple(changes), diff=created_lines(self.dialect, wanted))

    def alterations(self, session: SqlSession, diff: TableDiff) -> list[TableChange]:
        """The statements that mend what can be mended; CannotAlter when this database has none."""
        return altered(self.dialect, diff)

    def change_table(self, table: TableSpec, plan: TablePlan) -> None:
        """Create what is missing, control tables included, in one transaction."""
        with self.session() as session, transaction(session):
            for control in (LEDGER, WATERMARKS):
                for change in self.schema_changes(session, control):
                    session.execute(change.sql)
                session.execute(create_table_sql(self.dialect, control))
            for change in plan.changes:
                session.execute(change.sql)

    # -------------------------------------------------------------- ledger and watermark

    def _control_exists(self, session: SqlSession, control: TableSpec) -> bool:
        return self.live_columns(session, control) is not None

    def watermark(self, pipeline: str, target: str, column: str) -> Watermark | None:
        with self.reading() as session:
            if not self._control_exists(session, WATERMARKS):
                return None
            return self._position(session, pipeline, target, column)

    def _position(self, session: SqlSession, pipeline: str, target: str, column: str) -> Watermark | None:
        sql = control_select(
            self.dialect, WATERMARKS, ["value_type", "value"], ["pipeline", "target", "column_name"]
        )
        rows = session.fetch(sql, {"pipeline": pipeline, "target": target, "column_name": column})
        return Watermark.decode(column, rows[0][0], rows[0][1]) if rows else None

    def ledger(
        self, pipeline: str, target: str, *, run_id: str | None = None, limit: int = 100
    ) -> list[LedgerEntry]:
        names = list(LEDGER.column_names)
        filters = ["pipeline", "target"] + (["run_id"] if run_id else [])
        params = {"pipeline": pipeline, "target": target} | ({"run_id": run_id} if run_id else {})
        with self.reading() as session:
            if not self._control_exists(session, LEDGER):
                return []
            sql = control_select(self.dialect, LEDGER, names, filters, order="committed_at", limit=limit)
            rows = session.fetch(sql, params)
        return [self._ledger_entry(dict(zip(names, row, strict=True))) for row in rows]

    def _ledger_entry(self, row: dict[str, Any]) -> LedgerEntry:
        return LedgerEntry(**{**row, "committed_at": self.dialect.to_python(row["committed_at"], MOMENT)})

    # -------------------------------------------------------------- the one transaction

    def apply_session(self, load: Load) -> AbstractContextManager[SqlSession]:
        """The session of the load's transaction: a database may use the one that holds its lock."""
        return self.session()

    def apply(self, load: Load, rows: SameDatabaseRows | StagedRows) -> Applied:
        staged = None if isinstance(rows, SameDatabaseRows) else sum(part.rows for part in rows.parts)
        with self.apply_session(load) as session:
            if isinstance(rows, SameDatabaseRows):
                select = self.computed_select(session, rows.sql, load.table)
            else:
                select = self.staged_select(session, rows, load.table)
            with self._work_tables(session, load, computed=staged is None) as work:
                if load.dry_run:
                    return self._rehearse(session, load, select, staged, work)
                if not self.transactional_ddl:
                    self._change(session, load)
                with transaction(session):
                    faults.point("apply.began")
                    if self.transactional_ddl:
                        self._change(session, load)
                    applied = self._apply_within(session, load, select, staged, work)
                    if applied.duplicate or _nothing_new(load, applied):
                        return applied  # nothing is written, not even a ledger row
                    faults.point("apply.before_commit")
        faults.point("apply.after_commit")
        return applied

    def _change(self, session: SqlSession, load: Load) -> None:
        """Compared anew, in the transaction: another process may have done the same a moment ago."""
        if not load.changes.changes:
            return
        self.before_change(session, load)
        live = self.live_columns(session, load.table)
        for change in still_needed(load, self._plan(session, load.table, live, load.matching)):
            session.execute(change.sql)

    def before_change(self, session: SqlSession, load: Load) -> None:
        """What keeps the table as it is from here to the commit, where a transaction alone does not."""

    # -------------------------------------------------------------- work tables

    @contextmanager
    def _work_tables(
        self, session: SqlSession, load: Load, *, computed: bool
    ) -> Iterator[Mapping[str, exp.Table]]:
        """Empty tables of the strategy's own, made before the transaction and gone after it.

        What the database computes itself goes to one of them first where the load looks at it more than
        once: the user's query is asked once.
        """
        wanted = (
            dict(_WORK[load.mode](load.table, _incoming(load, exp.Select()))) if load.mode in _WORK else {}
        )
        if computed and (wanted or load.range is not None):
            columns = tuple(replace(c, nullable=True, primary_key=False) for c in load.table.columns)
            wanted[_BATCH] = TableSpec(None, _BATCH, columns)
        made: dict[str, exp.Table] = {}
        try:
            for name, spec in wanted.items():
                made[name] = self.create_work_table(session, load, spec)
            yield made
        finally:
            for table in made.values():
                with suppress(FlowError):  # a session that broke has taken it along; the first error counts
                    self.drop_work_table(session, table)

    def create_work_table(self, session: SqlSession, load: Load, spec: TableSpec) -> exp.Table:
        """A table that only this session sees, gone with it at the latest."""
        table = exp.Table(this=identifier(f"_ematix_{spec.name}"))
        self.drop_work_table(session, table)  # a session that serves several loads may have kept it
        session.execute(f"CREATE TEMPORARY TABLE {self.dialect.render(table)} ({self.work_columns(spec)})")
        return table

    def work_columns(self, spec: TableSpec) -> str:
        quote = self.dialect.quote
        lines = [f"{quote(c.name)} {self.dialect.native_type(c.type)}" for c in spec.columns]
        if spec.primary_key:
            lines.append(f"PRIMARY KEY ({', '.join(quote(k) for k in spec.primary_key)})")
        return ", ".join(lines)

    def drop_work_table(self, session: SqlSession, table: exp.Table) -> None:
        session.execute(f"DROP TABLE IF EXISTS {self.dialect.render(table)}")

    def _rehearse(
        self,
        session: SqlSession,
        load: Load,
        select: exp.Expr,
        staged: int | None,
        work: Mapping[str, exp.Table],
    ) -> Applied:
        """The strategy's statements in a transaction that is always rolled back."""
        session.begin()
        try:
            select = self._asked_once(session, load, select, work)
            rows_in, high = self._measure(session, load, select)
            _require_staged(load, rows_in, staged)
            if self.transactional_ddl and load.changes.changes:
                self._change(session, load)
            elif self.live_columns(session, load.table) is None or load.changes.changes:
                return Applied(rows_in=rows_in, rows_inserted=rows_in, watermark=high)
            counts = self._run_steps(session, self._steps(session, load, select, work), work)
            _refuse_shrink(load, counts)
        finally:
            session.rollback()
        return _applied(load, rows_in, counts, high)

    def _asked_once(
        self, session: SqlSession, load: Load, select: exp.Expr, work: Mapping[str, exp.Table]
    ) -> exp.Expr:
        if _BATCH not in work:
            return select
        names = load.table.column_names
        session.execute(self.dialect.render(insert_into(work[_BATCH], names, select)))
        self._analyze(session, work[_BATCH])
        return exp.select(*[column(n) for n in names]).from_(work[_BATCH].copy())

    def _analyze(self, session: SqlSession, table: exp.Table) -> None:
        sql = self.dialect.analyze_sql(table)
        if sql is not None:
            session.execute(sql)

    # -------------------------------------------------------------- within the transaction

    def _steps(
        self, session: SqlSession, load: Load, select: exp.Expr, work: Mapping[str, exp.Table]
    ) -> Sequence[Step | Guard]:
        if load.mode not in _STRATEGIES:
            raise PlanError(f"mode {load.mode!r} cannot be applied here")
        incoming = replace(
            _incoming(load, select), work=work, into_empty=bool(work) and self._is_empty(session, load.table)
        )
        return _STRATEGIES[load.mode](self.dialect, load.table, incoming)

    def _is_empty(self, session: SqlSession, table: TableSpec) -> bool:
        any_row = exp.select("1").from_(self.dialect.table(table.schema, table.name)).limit(1)
        return not session.fetch(self.dialect.render(any_row))

    def _apply_within(
        self,
        session: SqlSession,
        load: Load,
        select: exp.Expr,
        staged: int | None,
        work: Mapping[str, exp.Table],
    ) -> Applied:
        rows_in, high = 0, None
        select = self._asked_once(session, load, select, work)
        counted = staged is not None or bool(work)
        if counted:
            rows_in, high = self._measure(session, load, select)
            _require_staged(load, rows_in, staged)
        key = batch_key(load, high)
        if load.range is not None:
            current = self._position(session, load.pipeline, load.target, load.range.column)
            require_position(load, current)
        if self._ledger_holds(session, load, key):
            return Applied(rows_in=rows_in, duplicate=True)
        counts = self._run_steps(session, self._steps(session, load, select, work), work)
        if not counted:
            rows_in = counts["insert"]  # asked once, so that what is counted is what was written
        _refuse_shrink(load, counts)
        faults.point("apply.rows_written")
        applied = _applied(load, rows_in, counts, high)
        if not _nothing_new(load, applied):
            self._record(session, load, key, applied)
        return applied

    def _record(self, session: SqlSession, load: Load, key: str, applied: Applied) -> None:
        """The ledger row and the watermark."""
        low, high = load.range.low if load.range else None, applied.watermark
        now = self.bind(dt.datetime.now(dt.timezone.utc), MOMENT)
        session.execute(
            control_insert(self.dialect, LEDGER),
            {
                "pipeline": load.pipeline,
                "target": load.target,
                "batch_key": key,
                "run_id": str(load.run_id),
                "source_from": low.encode() if low else None,
                "source_to": high.encode() if high else None,
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

    def bind(self, value: Any, data_type: DataType) -> Any:
        """A Python value as the driver takes it as a parameter."""
        return value

    def _run_steps(
        self, session: SqlSession, steps: Sequence[Step | Guard], work: Mapping[str, exp.Table]
    ) -> dict[str, int]:
        counts = {"insert": 0, "update": 0, "delete": 0, "work": 0}
        own = {table.name: table for table in work.values()}
        for step in steps:
            if isinstance(step, Guard):
                refused = step.judge(session.fetch(self.dialect.render(step.query)), counts)
                if refused is not None:
                    raise refused
                continue
            counts[step.action] += session.execute(self.dialect.render(step.statement))
            filled = step.statement.find(exp.Table)
            if step.action == "work" and filled is not None and filled.name in own:
                self._analyze(session, own[filled.name])
        return counts

    def _measure(self, session: SqlSession, load: Load, select: exp.Expr) -> tuple[int, Watermark | None]:
        """How many rows come, and the highest watermark among them."""
        rows = exp.Subquery(this=select.copy(), alias=exp.TableAlias(this=identifier("m")))
        if load.range is None:
            counted = session.fetch(self.dialect.render(exp.select(exp.Count(this=exp.Star())).from_(rows)))
            return int(counted[0][0]), None
        mark = column(load.range.column, "m")
        data_type = load.table.column(load.range.column).type
        latest = exp.Max(this=self.dialect.comparable(mark.copy(), data_type))
        query = exp.select(exp.Count(this=exp.Star()), exp.Count(this=mark), latest).from_(rows)
        total, marked, highest = session.fetch(self.dialect.render(query))[0]
        if marked != total:
            raise RowRejected(
                f"{total - marked:,} of {total:,} rows have no watermark in column {load.range.column!r}",
                state=f"{load.table.label} is unchanged",
                next_step="filter these rows out in the source SQL, or choose a column that is never null",
            )
        if highest is None:
            return 0, None
        return int(total), Watermark(load.range.column, data_type, self.dialect.to_python(highest, data_type))

    def _ledger_holds(self, session: SqlSession, load: Load, batch_key: str) -> bool:
        sql = control_select(self.dialect, LEDGER, ["run_id"], ["pipeline", "target", "batch_key"])
        return bool(
            session.fetch(sql, {"pipeline": load.pipeline, "target": load.target, "batch_key": batch_key})
        )

    def run_sql(self, sql: str) -> int:
        with self.session() as session, transaction(session):
            return session.execute(sql)


def _incoming(load: Load, select: exp.Expr) -> Incoming:
    return Incoming(
        select,
        str(load.run_id),
        load.loaded_at,
        load.range.low if load.range else None,
        load.matching,
        shrinking=Shrinking(load.table.label, load.max_shrink, load.allow_empty),
    )


def _applied(load: Load, rows_in: int, counts: Mapping[str, int], high: Watermark | None) -> Applied:
    """Rows that matched and changed nothing are those that were neither inserted nor updated."""
    written = {"merge": counts["insert"] + counts["update"], "scd2": counts["insert"]}.get(load.mode, rows_in)
    return Applied(
        rows_in=rows_in,
        rows_inserted=counts["insert"],
        rows_updated=counts["update"],
        rows_deleted=counts["delete"],
        rows_unchanged=max(rows_in - written, 0),
        watermark=high,
    )


def _nothing_new(load: Load, applied: Applied) -> bool:
    """An incremental load that wrote nothing and got no further."""
    if load.range is None or applied.rows_inserted or applied.rows_updated or applied.rows_deleted:
        return False
    low, high = load.range.low, applied.watermark
    return high is None or (low is not None and high.value == low.value)


def _require_staged(load: Load, rows: int, staged: int | None) -> None:
    """A database that crashed and came back may have emptied its staging: never load less than was read."""
    if staged is not None and rows != staged:
        raise TargetFailed(
            f"staging of {load.table.label} holds {rows:,} rows, and {staged:,} were written to it",
            state=f"{load.table.label} is unchanged",
            next_step="run it again; look into the server's log for a restart",
        )


def _refuse_shrink(load: Load, counts: dict[str, int]) -> None:
    if load.mode == "truncate":
        truncate.check_shrink(
            load.table.label,
            counts["delete"],
            counts["insert"],
            max_shrink=load.max_shrink,
            allow_empty=load.allow_empty,
        )


def _aliased(subquery: exp.Subquery) -> exp.Subquery:
    subquery.set("alias", exp.TableAlias(this=identifier("rows")))
    return subquery
