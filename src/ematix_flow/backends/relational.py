"""The commit protocol on a SQL database: what Postgres, SQLite and DuckDB share.

A target subclass brings a dialect, sessions, staging and a lock; this module owns the one transaction in
which rows, ledger entry and watermark commit together.
"""

from __future__ import annotations

import datetime as dt
from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Any

from sqlglot import exp

from ematix_flow import faults
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
from ematix_flow.backends.positions import batch_key, require_position
from ematix_flow.backends.sql_session import SqlDialect, SqlSession, transaction
from ematix_flow.backends.table_plans import compare_tables, create_table_sql
from ematix_flow.errors import PlanError, RowRejected, TargetFailed
from ematix_flow.spec.tables import TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies import append, truncate
from ematix_flow.strategies.sql import Incoming, Step, column, identifier, verbatim

_COMPUTED = "_ematix_computed"
_STRATEGIES = {"append": append.steps, "truncate": truncate.steps}


class RelationalTarget(Target):
    """A SQL database as a target."""

    dialect: SqlDialect

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

    def plan_table(self, table: TableSpec, live: LiveTable | None) -> TablePlan:
        wanted = table.with_load_columns()
        if live is None:
            with self.reading() as session:
                changes = self.schema_changes(session, table)
            changes.append(TableChange("create_table", table.label, create_table_sql(self.dialect, wanted)))
            return TablePlan(tuple(changes))
        return compare_tables(self.dialect, wanted, live)

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
            if load.dry_run:
                return self._rehearse(session, load, select, staged)
            with transaction(session):
                faults.point("apply.began")
                for change in load.changes.changes:
                    session.execute(change.sql)
                if staged is None and load.range is not None:
                    select = self._computed_once(session, select)
                applied = self._apply_within(session, load, select, staged)
                if staged is None and load.range is not None:
                    session.execute(f"DROP TABLE {self.dialect.quote(_COMPUTED)}")
                if applied.duplicate or (load.range is not None and not applied.rows_inserted):
                    return applied  # nothing new: nothing is written, not even a ledger row
                faults.point("apply.before_commit")
        faults.point("apply.after_commit")
        return applied

    def _computed_once(self, session: SqlSession, select: exp.Expr) -> exp.Expr:
        """The user's query is asked once: an incremental load reads its rows several times."""
        table = self.dialect.quote(_COMPUTED)
        session.execute(f"CREATE TEMPORARY TABLE {table} AS {self.dialect.render(select)}")
        return exp.select("*").from_(exp.Table(this=identifier(_COMPUTED)))

    def _rehearse(self, session: SqlSession, load: Load, select: exp.Expr, staged: int | None) -> Applied:
        """The strategy's statements in a transaction that is always rolled back."""
        session.begin()
        try:
            rows_in, high = self._measure(session, load, select)
            _require_staged(load, rows_in, staged)
            if self.live_columns(session, load.table) is None:
                return Applied(rows_in=rows_in, rows_inserted=rows_in, watermark=high)
            counts = self._run_steps(session, self._steps(load, select))
            _refuse_shrink(load, counts)
        finally:
            session.rollback()
        return Applied(rows_in, counts["insert"], counts["update"], counts["delete"], watermark=high)

    def _steps(self, load: Load, select: exp.Expr) -> list[Step]:
        if load.mode not in _STRATEGIES:
            raise PlanError(f"mode {load.mode!r} cannot be applied here")
        low = load.range.low if load.range else None
        incoming = Incoming(select, str(load.run_id), load.loaded_at, low)
        return _STRATEGIES[load.mode](self.dialect, load.table, incoming)

    def _apply_within(self, session: SqlSession, load: Load, select: exp.Expr, staged: int | None) -> Applied:
        rows_in, high = 0, None
        if staged is not None or load.range is not None:
            rows_in, high = self._measure(session, load, select)
            _require_staged(load, rows_in, staged)
        low = load.range.low if load.range else None
        key = batch_key(load, high)
        if load.range is not None:
            current = self._position(session, load.pipeline, load.target, load.range.column)
            require_position(load, current)
        if self._ledger_holds(session, load, key):
            return Applied(rows_in=rows_in, duplicate=True)
        counts = self._run_steps(session, self._steps(load, select))
        if staged is None and load.range is None:
            rows_in = counts["insert"]  # asked once, so that what is counted is what was written
        _refuse_shrink(load, counts)
        faults.point("apply.rows_written")
        if load.range is not None and not counts["insert"]:
            return Applied(rows_in=rows_in)
        session.execute(
            control_insert(self.dialect, LEDGER),
            {
                "pipeline": load.pipeline,
                "target": load.target,
                "batch_key": key,
                "run_id": str(load.run_id),
                "source_from": low.encode() if low else None,
                "source_to": high.encode() if high else None,
                "rows_in": rows_in,
                "rows_inserted": counts["insert"],
                "rows_updated": counts["update"],
                "rows_deleted": counts["delete"],
                "committed_at": self.bind(dt.datetime.now(dt.timezone.utc), MOMENT),
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
                    "updated_at": self.bind(dt.datetime.now(dt.timezone.utc), MOMENT),
                },
            )
        return Applied(
            rows_in=rows_in,
            rows_inserted=counts["insert"],
            rows_updated=counts["update"],
            rows_deleted=counts["delete"],
            watermark=high,
        )

    def bind(self, value: Any, data_type: DataType) -> Any:
        """A Python value as the driver takes it as a parameter."""
        return value

    def _run_steps(self, session: SqlSession, steps: list[Step]) -> dict[str, int]:
        counts = {"insert": 0, "update": 0, "delete": 0}
        for step in steps:
            counts[step.action] += session.execute(self.dialect.render(step.statement))
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
