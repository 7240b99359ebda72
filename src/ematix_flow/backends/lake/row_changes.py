"""Turns the statements of a strategy into the one change that a lake table can commit.

A database runs the statements one by one in a transaction. A lake commits one statement. So the statements on
the table become rows of one frame, each with its action (insert, update, delete) and its stored row, and
`LakeFormat.merge` commits that frame. Statements that fill a work table become views. This works because the
statements of a strategy touch different rows, and use a stored row only to find it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlglot import exp

from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.backends.lake.spark_sql_session import SparkSqlSession
from ematix_flow.backends.sql.load_steps import count_tally
from ematix_flow.backends.stores.table_folders import literal_path
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.strategies.load_guard import LoadGuard
from ematix_flow.strategies.sql import RowTally, StrategyStep, alias_name, identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ACTION_COLUMN = internal_name("do")
INSERT, DELETE, UPDATE = "insert", "delete", "update"
_MATCH_PREFIX = internal_name("match_")


@dataclass(frozen=True)
class RowAction:
    """What one statement does to a table. ``marker`` marks its rows in the frame."""

    marker: str
    count_kind: str  # which count its rows belong to
    columns: tuple[str, ...]  # those it sets


@dataclass(frozen=True)
class RowChanges:
    """Everything that a load does to one table.

    ``frame`` has the columns that the actions set, `ACTION_COLUMN`, and one column for each of ``match_on``:
    the value in the stored row to update or delete, which must not exist for an insert, because another
    writer may have added the row meanwhile.
    """

    actions: tuple[RowAction, ...]
    match_on: tuple[str, ...]
    frame: DataFrame
    counts: Mapping[str, int]
    replaces_all: bool = False  # all stored rows go, and the inserted ones come instead

    @property
    def inserts_only(self) -> bool:
        return not self.replaces_all and all(not n for do, n in self.counts.items() if do != INSERT)

    @property
    def is_empty(self) -> bool:
        return not self.replaces_all and not any(self.counts.values())

    def match_column(self, name: str) -> str:
        return f"{_MATCH_PREFIX}{self.match_on.index(name)}"

    def totals(self) -> dict[str, int]:
        """The number of rows by kind of count."""
        totals = {"insert": 0, "update": 0, "delete": 0, "work": 0}
        for change in self.actions:
            totals[change.count_kind] += self.counts.get(change.marker, 0)
        return totals


@dataclass
class _PendingChanges:
    actions: list[RowAction] = field(default_factory=list)
    match_on: tuple[str, ...] = ()
    frames: list[DataFrame] = field(default_factory=list)
    replaces_all: bool = False


class StepRunner:
    """Runs a strategy's steps on views, and collects what they do to tables.

    ``work`` are the names of the work tables. Changes are materialized in the folder ``scratch``.
    """

    def __init__(self, spark: SparkSession, dialect: LakeDialect, work: Sequence[str], scratch: str) -> None:
        self._spark, self._dialect, self._scratch = spark, dialect, scratch
        self._session = SparkSqlSession(spark)
        self._work = set(work)
        self._filled: dict[str, DataFrame] = {}
        self._pending: dict[str, _PendingChanges] = {}
        self.tallies: dict[str, int] = {}

    def run(self, steps: Sequence[StrategyStep | LoadGuard | RowTally], rows_in: int) -> None:
        for step in steps:
            if isinstance(step, LoadGuard):
                refused = step.judge(self._session.fetch(self._dialect.render(step.query)), {})
                if refused is not None:
                    raise refused
                continue
            if isinstance(step, RowTally):
                count_tally(self.tallies, step, rows_in, self._dialect, self._session)
                continue
            statement = step.statement
            target = statement.this.this if isinstance(statement.this, exp.Schema) else statement.this
            if target.name in self._work:
                assert isinstance(statement, exp.Insert)
                self._fill_work_table(target.name, statement)
            else:
                self._collect(target.name, step.action, statement)

    def collect_changes(self, view: str, inserted: int | None = None) -> RowChanges | None:
        """The counted changes of the table behind a view; None if the steps do not change it.

        The changes are materialized first, so that the counted rows are the committed rows, even if a worker
        is lost in between. If all of them are ``inserted`` rows, they are used directly.
        """
        pending = self._pending.get(view)
        if pending is None:
            return None
        frame = _union_frames([_with_match_columns(frame, pending.match_on) for frame in pending.frames])
        if inserted is not None:
            counts = {INSERT: inserted}
        else:
            frame = materialize_frame(self._spark, frame, self._scratch)
            counted = {row[0]: int(row[1]) for row in frame.groupBy(ACTION_COLUMN).count().collect()}
            counts = {change.marker: counted.get(change.marker, 0) for change in pending.actions}
        return RowChanges(tuple(pending.actions), pending.match_on, frame, counts, pending.replaces_all)

    # ------------------------------------------------------------------

    def _statement_rows(self, statement: exp.Insert) -> DataFrame:
        names = [name.name for name in statement.this.expressions]
        return self._spark.sql(self._dialect.render(statement.expression)).toDF(*names)

    def _fill_work_table(self, work: str, statement: exp.Insert) -> None:
        rows = materialize_frame(self._spark, self._statement_rows(statement), self._scratch)
        if work in self._filled:
            rows = self._filled[work].unionByName(rows)
        self._filled[work] = rows
        rows.createOrReplaceTempView(work)

    def _collect(self, view: str, action: str, statement: exp.Expr) -> None:
        pending = self._pending.setdefault(view, _PendingChanges())
        if isinstance(statement, exp.Insert):
            if not any(change.marker == INSERT for change in pending.actions):
                columns = tuple(name.name for name in statement.this.expressions)
                pending.actions.append(RowAction(INSERT, action, columns))
            pending.frames.append(self._mark_action(self._statement_rows(statement), INSERT))
        elif isinstance(statement, exp.Delete) and not statement.args.get("using"):
            pending.replaces_all = True
        else:
            self._collect_matched(pending, action, statement)

    def _collect_matched(self, pending: _PendingChanges, action: str, statement: exp.Expr) -> None:
        """An UPDATE … FROM or DELETE … USING of a work table."""
        is_update = isinstance(statement, exp.Update)
        source = statement.args["from_"].this if is_update else statement.args["using"][0]
        places, conditions = _split_condition(statement.args["where"].this)
        if not pending.match_on:
            pending.match_on = tuple(places)
        assert set(places) == set(pending.match_on)
        sets = {each.this.name: each.expression for each in statement.expressions} if is_update else {}
        do = f"{UPDATE if is_update else DELETE}_{len(pending.actions)}"
        pending.actions.append(RowAction(do, action, tuple(sets)))
        values = [exp.alias_(value.copy(), name, quoted=True) for name, value in sets.items()]
        values += [
            exp.alias_(places[name].copy(), f"{_MATCH_PREFIX}{number}", quoted=True)
            for number, name in enumerate(pending.match_on)
        ]
        select = exp.select(*values).from_(source.copy())
        if conditions:
            select = select.where(*[condition.copy() for condition in conditions])
        pending.frames.append(self._mark_action(self._spark.sql(self._dialect.render(select)), do))

    def _mark_action(self, frame: DataFrame, do: str) -> DataFrame:
        from pyspark.sql import functions as f

        return frame.withColumn(ACTION_COLUMN, f.lit(do))


def materialize_frame(spark: SparkSession, frame: DataFrame, scratch: str) -> DataFrame:
    """Compute the frame once, into the folder ``scratch``.

    Later steps start from the result, because Spark analyses the whole plan at every step.
    """
    path = f"{scratch}/{uuid.uuid4().hex}"
    frame.write.parquet(path)
    return spark.read.schema(frame.schema).parquet(literal_path(path))


def _split_condition(condition: exp.Expr) -> tuple[dict[str, exp.Expr], list[exp.Expr]]:
    """Split a condition: the columns of the stored row with their values, and the conditions on the work
    table."""
    places: dict[str, exp.Expr] = {}
    conditions: list[exp.Expr] = []
    stored = alias_name("t").name
    for part in condition.flatten() if isinstance(condition, exp.And) else [condition]:
        tables = {c.table for c in part.find_all(exp.Column)}
        if isinstance(part, exp.EQ) and isinstance(part.this, exp.Column) and part.this.table == stored:
            places[part.this.name] = part.expression
        else:
            assert stored not in tables, f"a condition on a stored row that is not an equality: {part.sql()}"
            conditions.append(part)
    return places, conditions


def _with_match_columns(frame: DataFrame, matched: Sequence[str]) -> DataFrame:
    """Add the match columns to inserted rows; the other rows have them already."""
    from pyspark.sql import functions as f

    for number, name in enumerate(matched):
        if f"{_MATCH_PREFIX}{number}" not in frame.columns:
            frame = frame.withColumn(f"{_MATCH_PREFIX}{number}", f.col(LakeDialect().quote(name)))
    return frame


def _union_frames(frames: Sequence[DataFrame]) -> DataFrame:
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame, allowMissingColumns=True)
    return whole


def merge_sql(dialect: LakeDialect, table: exp.Table, view: str, changes: RowChanges) -> str:
    """The statement that commits the changes. The view holds their frame.

    A row to insert that exists by now, because another writer was faster, is updated.
    """
    quote, t, s = dialect.quote, dialect.render(alias_name("t")), dialect.render(alias_name("s"))

    def is_of(do: str) -> str:
        return f"{s}.{quote(ACTION_COLUMN)} = {exp.Literal.string(do).sql(dialect=dialect.name)}"

    def sets(columns: Sequence[str]) -> str:
        return ", ".join(f"{quote(name)} = {s}.{quote(name)}" for name in columns)

    matches = [f"{t}.{quote(name)} = {s}.{quote(changes.match_column(name))}" for name in changes.match_on]
    into = f"MERGE INTO {dialect.render(table)} AS {t} USING {quote(view)} AS {s}"
    lines = [f"{into} ON {' AND '.join(matches)}"]
    new = []
    for change in changes.actions:
        if change.marker == INSERT:
            names = ", ".join(quote(name) for name in change.columns)
            values = ", ".join(f"{s}.{quote(name)}" for name in change.columns)
            new.append(f"WHEN NOT MATCHED AND {is_of(INSERT)} THEN INSERT ({names}) VALUES ({values})")
            lines.append(f"WHEN MATCHED AND {is_of(INSERT)} THEN UPDATE SET {sets(change.columns)}")
        elif not changes.inserts_only:
            does = f"UPDATE SET {sets(change.columns)}" if change.columns else "DELETE"
            lines.append(f"WHEN MATCHED AND {is_of(change.marker)} THEN {does}")
    return "\n".join([*lines, *new])


def new_view_name(name: str) -> str:
    """A unique name for a view."""
    return internal_name(f"{name}_{uuid.uuid4().hex[:12]}")


def view_table(name: str) -> exp.Table:
    return exp.Table(this=identifier(name))
