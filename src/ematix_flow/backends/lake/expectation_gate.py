"""The expectation gate of a lake: Spark checks the staged rows, and failing rows go to the quarantine table.

`check` divides the rows before anything is written. `set_aside` writes to the quarantine table, before the
target's commit; `quarantine` decides which of its rows count.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from ematix_flow import fault_points
from ematix_flow.backends.base import Load, QuarantinedRows
from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.backends.lake.frame_columns import conform_frame
from ematix_flow.backends.lake.journal import Journal, LakeCommit
from ematix_flow.backends.lake.quarantine import LakeQuarantine, QuarantineChange
from ematix_flow.backends.lake.row_changes import materialize_frame, new_view_name, view_table
from ematix_flow.backends.lake.spark_sql_session import SparkSqlSession
from ematix_flow.backends.lake.table_format import LakeFormat
from ematix_flow.backends.lake.target_notes import NO_COLUMNS
from ematix_flow.backends.sql.quarantine import (
    delete_quarantined,
    delete_read_again,
    failing_counts,
    fill_gated,
    insert_quarantined,
    passing_select,
    select_quarantined,
    superseded_keys,
)
from ematix_flow.backends.sql.rule_checks import CheckedRows, check_rows, column_infos, diagnose
from ematix_flow.errors import ExpectationFailed, FlowError, PlanError, RowRejected, TargetFailed
from ematix_flow.spec.expectations import POSITION, RULE, Expectation, ExpectationResult, Gate
from ematix_flow.spec.tables import ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.spec.watermarks import Watermark
from ematix_flow.strategies.sql import column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Explain = Callable[[str], AbstractContextManager[None]]
"""Turns what Spark raises in the block into an error of this product."""


class LakeGate:
    """The gate of one load. ``replayed`` are the rows that it takes from a quarantine table."""

    def __init__(
        self,
        spark: SparkSession,
        format: LakeFormat,
        load: Load,
        journal: Journal,
        scratch: str,
        explain: Explain,
        replayed: QuarantinedRows | None = None,
    ) -> None:
        self._spark, self._format, self._load, self._journal = spark, format, load, journal
        self._scratch, self._explain, self._replayed = scratch, explain, replayed
        self._dialect, self._session = LakeDialect(), SparkSqlSession(spark)
        self._rows: str | None = None  # the view of all rows of the load
        self._failing: str | None = None  # the view of the rows with the first rule that each fails
        self._views: list[str] = []

    @property
    def _gate(self) -> Gate | None:
        return self._load.plan.gate

    def _quarantine(self) -> LakeQuarantine | None:
        gate = self._gate
        if gate is None or gate.quarantine is None:
            return None
        return LakeQuarantine(self._spark, self._format, gate.quarantine, self._journal)

    def drop_views(self) -> None:
        for view in self._views:
            self._spark.catalog.dropTempView(view)

    # ------------------------------------------------------------------ rows to load again

    def replayed_rows(self) -> DataFrame:
        """The chosen rows of the quarantine table, with their source positions."""
        replayed = self._replayed
        assert replayed is not None
        rows = LakeQuarantine(self._spark, self._format, replayed.table, self._journal).current_rows()
        if rows is None:
            raise PlanError(
                f"there is no quarantine table {replayed.table.label}",
                state="nothing was touched",
                next_step="name the table that holds the rows, with quarantine=",
            )
        view = self._create_view("quarantine", rows)
        named = LakeDialect({(replayed.table.schema, replayed.table.name): view_table(view)})
        found = self._spark.sql(named.render(select_quarantined(replayed, self._load.table, named)))
        wanted = TableSpec(
            None,
            "replayed",
            (*self._load.table.columns, ColumnSpec(POSITION, DataType("text"), nullable=True)),
            stamped=False,
        )
        return materialize_frame(self._spark, conform_frame(self._spark, found, wanted), self._scratch)

    # ------------------------------------------------------------------ checking

    def check(self, select: exp.Select, rows: str) -> CheckedRows:
        """Evaluate the rules on ``select``, whose rows are those of the view ``rows``, and divide them."""
        gate, names = self._gate, self._load.table.staged().column_names
        self._rows = rows
        if gate is None or not gate.rules:
            self._require_values(select)
            return CheckedRows(select)
        results = self._evaluate_all(gate, select)
        if gate.quarantine is None or not any(r.failing for r in results if r.action == "quarantine"):
            self._require_values(select)
            return CheckedRows(select, 0, results)
        filled = [*names, *([POSITION] if self._replayed is not None else [])]
        every = exp.select(*[column(name) for name in filled]).from_(view_table(rows))
        insert = fill_gated(
            gate, filled, self._columns(), self._dialect, every, self._reference, view_table("_")
        )
        frame = self._spark.sql(self._dialect.render(insert.expression)).toDF(*filled, RULE)
        self._failing = self._create_view("gated", materialize_frame(self._spark, frame, self._scratch))
        gated = view_table(self._failing)
        counted = self._session.fetch(self._dialect.render(failing_counts(gated)))
        counts = {str(rule): int(number) for rule, number in counted}
        results = tuple(
            replace(each, quarantined=counts.get(each.rule, 0)) if each.action == "quarantine" else each
            for each in results
        )
        passing = passing_select(self._load.table.staged(), gated)
        self._require_values(passing)
        return CheckedRows(passing, sum(counts.values()), results)

    def _evaluate_all(self, gate: Gate, select: exp.Select) -> tuple[ExpectationResult, ...]:
        try:
            with self._explain("checking the rows"):
                return self._evaluate(gate, select)
        except ExpectationFailed:
            raise
        except FlowError as error:
            found = diagnose(gate, error, lambda rule: self._run_alone(rule, select), self._load)
            raise found from (error.__cause__ if found is error else error)

    def _run_alone(self, rule: Expectation, select: exp.Select) -> None:
        gate = self._gate
        assert gate is not None
        with self._explain("checking the rows"):
            self._evaluate(replace(gate, rules=(rule,), enforced=False), select)

    def _evaluate(self, gate: Gate, select: exp.Select) -> tuple[ExpectationResult, ...]:
        return check_rows(
            gate,
            self._load,
            self._columns(),
            self._dialect.name,
            select,
            self._reference,
            self._fetch,
            self._fetch_samples,
        )

    def _columns(self) -> Any:
        return column_infos(self._load.table.columns, self._dialect)

    def _reference(self, table: str) -> exp.Table:
        schema, _, name = table.rpartition(".")
        return self._format.table_expression(TableSpec(schema or None, name, NO_COLUMNS))

    def _fetch(self, sql: str) -> Sequence[tuple[Any, ...]]:
        rows = self._spark.sql(sql)
        kinds = [field.dataType.typeName() for field in rows.schema.fields]
        return [tuple(map(_with_zone, row, kinds)) for row in rows.collect()]

    def _fetch_samples(self, sql: str) -> Sequence[tuple[Any, ...]]:
        with self._explain("reading failing rows"):
            return self._fetch(sql)

    def _require_values(self, select: exp.Select) -> None:
        """Refuse replayed rows without a required value: a quarantine table takes any row."""
        required = [c.name for c in self._load.table.columns if not c.nullable]
        if self._replayed is None or not required:
            return
        missing = [exp.Count(this=exp.Star()) - exp.Count(this=column(name)) for name in required]
        counted = exp.select(*missing).from_(exp.Subquery(this=select.copy(), alias=exp.to_identifier("r")))
        found = self._session.fetch(self._dialect.render(counted))[0]
        for name, number in zip(required, found, strict=True):
            if number:
                raise RowRejected(
                    f"{number:,} of the replayed rows have no value in column {name!r} of "
                    f"{self._load.table.label}",
                    state="nothing was changed",
                    next_step="expect not_null of it with on_fail='quarantine', or purge these rows",
                )

    # ------------------------------------------------------------------ setting aside

    def must_write(self, checked: CheckedRows) -> bool:
        """Whether rows are set aside that are not in quarantine yet, although the load made no progress."""
        quarantine = self._quarantine()
        if not checked.quarantined or quarantine is None:
            return False
        read_again = self._read_again()
        rows = quarantine.current_rows() if read_again is not None else None
        if rows is None or read_again is None:
            return True
        kept = rows.where(self._dialect.render(read_again))
        return not self._are_those(kept)

    def _are_those(self, kept: DataFrame) -> bool:
        """Whether these rows of the quarantine table are the failing rows, each the same number of times."""
        from pyspark.sql import functions as f

        assert self._failing is not None
        names = [self._dialect.quote(name) for name in (*self._load.table.column_names, RULE)]
        failing = self._spark.table(self._failing).where(f"{self._dialect.quote(RULE)} IS NOT NULL")
        copies = failing.select(*names, f.lit(1)).unionAll(kept.select(*names, f.lit(-1)))
        copies = copies.toDF(*[f"c{number}" for number in range(len(names))], "copies")
        counted = copies.groupBy(*copies.columns[:-1]).agg(f.sum("copies").alias("copies"))
        return counted.where("copies <> 0").isEmpty()

    def _read_again(self) -> exp.Expr | None:
        """The condition for rows that the load has read again; None if it reads only new rows."""
        gate = self._gate
        found = delete_read_again(self._load, gate, self._dialect) if gate is not None else None
        return found.args["where"].this if found is not None else None

    def set_aside(
        self, checked: CheckedRows, read: int, high: Watermark | None, commit: LakeCommit
    ) -> list[QuarantineChange]:
        """Write to the quarantine tables, and return what was done to each."""
        fault_points.point("gate.checked")
        changes: dict[tuple[str | None, str], QuarantineChange] = {}

        def note(table: TableSpec, took_out: bool = False) -> None:
            """Note a change of the table, before the first one."""
            known = changes.get((table.schema, table.name))
            if known is None:
                known = QuarantineChange(self._journal.write_note(commit, table))
                fault_points.point("quarantine.noted")
            changes[table.schema, table.name] = replace(known, took_out=known.took_out or took_out)

        replayed, quarantine = self._replayed, self._quarantine()
        if replayed is not None:
            note(replayed.table, took_out=True)
            self._take_out_replayed(replayed, read, commit)
        if quarantine is not None:
            self._set_aside(quarantine, checked, high, commit, note)
        return list(changes.values())

    def _take_out_replayed(self, replayed: QuarantinedRows, read: int, commit: LakeCommit) -> None:
        taken_from = LakeQuarantine(self._spark, self._format, replayed.table, self._journal)
        taken_from.take_out(_condition(delete_quarantined(replayed, self._dialect)), commit)
        fault_points.point("quarantine.written")
        removed = taken_from.count_taken_out(commit)
        if removed != read:
            raise TargetFailed(
                f"{replayed.table.label} changed while its rows were read: {removed:,} of {read:,} are left",
                state="nothing was changed",
                next_step="replay them again",
            )

    def _set_aside(
        self,
        quarantine: LakeQuarantine,
        checked: CheckedRows,
        high: Watermark | None,
        commit: LakeCommit,
        note: Callable[..., None],
    ) -> None:
        gate, read_again = self._gate, self._read_again()
        assert gate is not None
        exists = quarantine.exists()
        if read_again is not None and exists:
            note(quarantine.spec)
            note(quarantine.spec, took_out=quarantine.take_out(read_again, commit))
            fault_points.point("quarantine.written")
        self._take_out_superseded(quarantine, commit, note)
        if checked.quarantined:
            note(quarantine.spec)
            if not exists:
                quarantine.create()
            assert self._failing is not None
            quarantine.add(self._failing_rows(gate, self._failing, high), commit)
            fault_points.point("quarantine.written")

    def _take_out_superseded(
        self, quarantine: LakeQuarantine, commit: LakeCommit, note: Callable[..., None]
    ) -> None:
        """Take out the rows of which this load has read a later one."""
        keys, pipeline = superseded_keys(self._load), self._load.pipeline
        if not keys or self._replayed is not None or self._rows is None:
            return
        older = quarantine.superseded(self._rows, keys, pipeline)
        if older is not None:
            note(quarantine.spec, took_out=True)
            quarantine.take_out_keys(older, keys, pipeline, commit)
            fault_points.point("quarantine.written")

    def _failing_rows(self, gate: Gate, view: str, high: Watermark | None) -> DataFrame:
        insert = insert_quarantined(
            self._load, gate, self._dialect, view_table(view), high, replayed=self._replayed is not None
        )
        names = [name.name for name in insert.this.expressions]
        return self._spark.sql(self._dialect.render(insert.expression)).toDF(*names)

    def _create_view(self, name: str, frame: DataFrame) -> str:
        view = new_view_name(name)
        frame.createOrReplaceTempView(view)
        self._views.append(view)
        return view


def _condition(statement: exp.Delete) -> exp.Expr:
    found: exp.Expr = statement.args["where"].this
    return found


def _with_zone(value: Any, kind: str) -> Any:
    """PySpark returns an instant in the machine's local zone, without saying so."""
    if kind == "timestamp" and isinstance(value, dt.datetime) and value.tzinfo is None:
        return value.astimezone(dt.timezone.utc)
    return value
