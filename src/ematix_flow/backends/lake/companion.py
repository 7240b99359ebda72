"""The events beside a history, as a second lake table that changes with the first one's commit.

A lake commits one table at a time. So each row here says from which load of the history on it counts, and
from which on no more; what counts is decided by the newest load that the history has committed. A load
writes here first, and a load that then dies leaves rows that never count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.backends.lake.actions import DO, INSERT, Changes, fresh_view
from ematix_flow.backends.lake.dialect import LakeDialect
from ematix_flow.backends.lake.frames import conformed
from ematix_flow.backends.lake.journal import Commit, Journal
from ematix_flow.backends.lake.table import LakeFormat
from ematix_flow.errors import SchemaMismatch, TargetFailed
from ematix_flow.spec.tables import EVENT_AT, IS_DELETE, ColumnSpec, TableSpec
from ematix_flow.spec.types import DataType
from ematix_flow.strategies.sql import alias_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINCE, UNTIL = "_since_load", "_until_load"
_TIDIED_EVERY = 50


def with_lifetime(spec: TableSpec) -> TableSpec:
    """The companion as it is stored."""
    number = DataType("big_int")
    since, until = ColumnSpec(SINCE, number, nullable=True), ColumnSpec(UNTIL, number, nullable=True)
    return TableSpec(spec.schema, spec.name, (*spec.columns, since, until), where=spec.where)


def refuse_lifetime_names(table: TableSpec) -> None:
    """By event time, a declared column may not be called as those that say which events count."""
    for name in table.column_names if table.keeps == "events" else ():
        if name.lower() in (SINCE, UNTIL):
            raise SchemaMismatch(
                f"{table.label} declares {name!r}, which a lake keeps next to its history itself",
                where=table.where,
                state="nothing was touched",
                next_step="give the column another name, with column_map= or AS in the source SQL",
            )


def is_companion(table: TableSpec) -> bool:
    return {EVENT_AT, IS_DELETE} <= set(table.column_names)


class Companion:
    def __init__(self, spark: SparkSession, format: LakeFormat, spec: TableSpec, journal: Journal) -> None:
        self._spark, self._format, self.spec, self._journal = spark, format, spec, journal
        self._stored = with_lifetime(spec)
        self._snapshot = format.snapshot(spark, self._stored)
        self._dialect = LakeDialect()

    def live(self) -> DataFrame:
        """The rows that count now."""
        if self._snapshot is None:
            return conformed(self._spark, None, self.spec)
        frame = self._format.frame(self._spark, self._stored, self._snapshot)
        number = self._journal.number
        counts = f"{_since(SINCE, number)} AND ({UNTIL} IS NULL OR {UNTIL} > {number})"
        return conformed(self._spark, frame.where(counts), self.spec)

    def mend(self, history_is_there: bool) -> None:
        """Undo what a load that never committed left, and now and then remove what counts no more.

        Such a load was the next one. Events of later ones beside a history that is there mean that the
        journal is not the history's.
        """
        if self._snapshot is None:
            return
        number, name = self._journal.number, self._dialect.render(self._format.table(self._stored))
        stored = self._format.frame(self._spark, self._stored, self._snapshot)
        left = stored.where(f"{SINCE} > {number} OR {UNTIL} > {number}")
        latest = left.selectExpr(f"max(greatest({SINCE}, {UNTIL}))").collect()[0][0]
        if latest is not None:
            if history_is_there and latest > number + 1:
                raise TargetFailed(
                    f"{self.spec.label} has events of load {latest}, and the journal of its history knows of "
                    f"{number} loads",
                    state="nothing was touched",
                    next_step="restore the journal's files; without them no load can tell which events count",
                )
            self._spark.sql(f"DELETE FROM {name} WHERE {SINCE} > {number}")
            self._spark.sql(f"UPDATE {name} SET {UNTIL} = NULL WHERE {UNTIL} > {number}")
        if number and number % _TIDIED_EVERY == 0:
            self._spark.sql(f"DELETE FROM {name} WHERE {UNTIL} <= {number}")

    def write(self, changes: Changes, commit: Commit) -> None:
        """From this load on: rows of the touched keys count no more, the new ones do."""
        from pyspark.sql import functions as f

        if changes.is_empty:
            return
        view = fresh_view("events")
        ended = f.when(f.col(DO) != INSERT, f.lit(commit.number)).cast("bigint")
        begun = f.when(f.col(DO) == INSERT, f.lit(commit.number)).cast("bigint")
        changes.frame.withColumn(UNTIL, ended).withColumn(SINCE, begun).createOrReplaceTempView(view)
        quote, number = self._dialect.quote, self._journal.number
        t, s = self._dialect.render(alias_name("t")), self._dialect.render(alias_name("s"))
        names = [*(c.name for c in self.spec.columns), SINCE]
        matches = [f"{t}.{quote(name)} = {s}.{quote(changes.match_column(name))}" for name in changes.matched]
        live = f"{_since(f'{t}.{SINCE}', number)} AND {t}.{UNTIL} IS NULL"
        self._spark.sql(
            f"MERGE INTO {self._dialect.render(self._format.table(self._stored))} AS {t} "
            f"USING {quote(view)} AS {s} ON {s}.{UNTIL} IS NOT NULL AND {live} AND {' AND '.join(matches)} "
            f"WHEN MATCHED THEN UPDATE SET {UNTIL} = {s}.{UNTIL} "
            f"WHEN NOT MATCHED AND {s}.{SINCE} IS NOT NULL "
            f"THEN INSERT ({', '.join(map(quote, names))}) "
            f"VALUES ({', '.join(f'{s}.{quote(name)}' for name in names)})"
        )
        self._spark.catalog.dropTempView(view)


def _since(name: str, number: int) -> str:
    """Marks of deletion that a table had before it became a history are of no load."""
    return f"({name} IS NULL OR {name} <= {number})"
