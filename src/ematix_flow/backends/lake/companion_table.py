"""The companion table with the events of a history: a second lake table that changes with the history's
commit.

A lake commits one table at a time. So each event records the load of the history from which it counts, and
the load from which it no longer counts. The newest committed load of the history decides which events count.
A load writes here first; if it then dies, its events never count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.backends.lake.frame_columns import conform_frame
from ematix_flow.backends.lake.journal import Journal, LakeCommit
from ematix_flow.backends.lake.row_changes import ACTION_COLUMN, INSERT, RowChanges, new_view_name
from ematix_flow.backends.lake.table_format import LakeFormat
from ematix_flow.errors import SchemaMismatch, TargetFailed
from ematix_flow.spec.tables import EVENT_AT, IS_DELETE, LAST_POSITION, ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.sql import alias_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINCE, UNTIL = "_since_load", "_until_load"
_CLEANUP_INTERVAL = 50


def with_lifetime_columns(spec: TableSpec) -> TableSpec:
    """The companion table as it is stored."""
    number = DataType("big_int")
    since, until = ColumnSpec(SINCE, number, nullable=True), ColumnSpec(UNTIL, number, nullable=True)
    return TableSpec(spec.schema, spec.name, (*spec.columns, since, until), where=spec.where)


def refuse_lifetime_names(table: TableSpec) -> None:
    """Refuse a declared column with the name of a lifetime column, for tables with a companion."""
    for name in table.column_names if table.companion() is not None else ():
        if name.lower() in (SINCE, UNTIL):
            raise SchemaMismatch(
                f"{table.label} declares {name!r}, which a lake adds to its companion table",
                where=table.where,
                state="nothing was touched",
                next_step="give the column another name, with column_map= or AS in the source SQL",
            )


def is_companion(table: TableSpec) -> bool:
    names = set(table.column_names)
    return {EVENT_AT, IS_DELETE} <= names or LAST_POSITION in names


class CompanionTable:
    def __init__(self, spark: SparkSession, format: LakeFormat, spec: TableSpec, journal: Journal) -> None:
        self._spark, self._format, self.spec, self._journal = spark, format, spec, journal
        self._stored = with_lifetime_columns(spec)
        self._snapshot = format.snapshot(spark, self._stored)
        self._dialect = LakeDialect()

    def current_rows(self) -> DataFrame:
        """The events that count now."""
        if self._snapshot is None:
            return conform_frame(self._spark, None, self.spec)
        frame = self._format.read_snapshot(self._spark, self._stored, self._snapshot)
        number = self._journal.last_number
        counts = f"{_began_by_sql(SINCE, number)} AND ({UNTIL} IS NULL OR {UNTIL} > {number})"
        return conform_frame(self._spark, frame.where(counts), self.spec)

    def undo_uncommitted(self, history_is_there: bool) -> None:
        """Undo what an uncommitted load left, and regularly remove events that no longer count.

        An uncommitted load has the next number. Events with higher numbers mean that the journal is not the
        history's.
        """
        if self._snapshot is None:
            return
        number, name = (
            self._journal.last_number,
            self._dialect.render(self._format.table_expression(self._stored)),
        )
        stored = self._format.read_snapshot(self._spark, self._stored, self._snapshot)
        left = stored.where(f"{SINCE} > {number} OR {UNTIL} > {number}")
        latest = left.selectExpr(f"max(greatest({SINCE}, {UNTIL}))").collect()[0][0]
        if latest is not None:
            if history_is_there and latest > number + 1:
                raise TargetFailed(
                    f"{self.spec.label} has events of load {latest}, and the journal of its history has "
                    f"{number} loads",
                    state="nothing was touched",
                    next_step="restore the journal's files; without them no load knows which events count",
                )
            self._spark.sql(f"DELETE FROM {name} WHERE {SINCE} > {number}")
            self._spark.sql(f"UPDATE {name} SET {UNTIL} = NULL WHERE {UNTIL} > {number}")
        if number and number % _CLEANUP_INTERVAL == 0:
            self._spark.sql(f"DELETE FROM {name} WHERE {UNTIL} <= {number}")

    def write_changes(self, changes: RowChanges, commit: LakeCommit) -> None:
        """From this load on, the events of the touched keys no longer count, and the new events do."""
        from pyspark.sql import functions as f

        if changes.is_empty:
            return
        view = new_view_name("events")
        ended = f.when(f.col(ACTION_COLUMN) != INSERT, f.lit(commit.number)).cast("bigint")
        since = f.when(f.col(ACTION_COLUMN) == INSERT, f.lit(commit.number)).cast("bigint")
        changes.frame.withColumn(UNTIL, ended).withColumn(SINCE, since).createOrReplaceTempView(view)
        quote, number = self._dialect.quote, self._journal.last_number
        t, s = self._dialect.render(alias_name("t")), self._dialect.render(alias_name("s"))
        names = [*(c.name for c in self.spec.columns), SINCE]
        matches = [
            f"{t}.{quote(name)} = {s}.{quote(changes.match_column(name))}" for name in changes.match_on
        ]
        live = f"{_began_by_sql(f'{t}.{SINCE}', number)} AND {t}.{UNTIL} IS NULL"
        self._spark.sql(
            f"MERGE INTO {self._dialect.render(self._format.table_expression(self._stored))} AS {t} "
            f"USING {quote(view)} AS {s} ON {s}.{UNTIL} IS NOT NULL AND {live} AND {' AND '.join(matches)} "
            f"WHEN MATCHED THEN UPDATE SET {UNTIL} = {s}.{UNTIL} "
            f"WHEN NOT MATCHED AND {s}.{SINCE} IS NOT NULL "
            f"THEN INSERT ({', '.join(map(quote, names))}) "
            f"VALUES ({', '.join(f'{s}.{quote(name)}' for name in names)})"
        )
        self._spark.catalog.dropTempView(view)


def _began_by_sql(name: str, number: int) -> str:
    """SQL: whether an event counts since that load. Deletion marks from before the history have no load."""
    return f"({name} IS NULL OR {name} <= {number})"
