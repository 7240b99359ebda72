"""Frames of a batch: union of sources, counts, null checks, and the last row of each key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from ematix_flow.backends.spark_sql.row_refusals import raise_error_sql, text_literal
from ematix_flow.engine.streams.decoding import ORDER, MessageCounts
from ematix_flow.engine.streams.message_names import ORIGIN
from ematix_flow.spec.generated_names import internal_name
from ematix_flow.spec.tables import AGE, TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CountMessages = Callable[[], MessageCounts]  # call it after Spark has computed the batch


def last_of_each_key(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The last message of each key: by position within a partition, by time across partitions."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    partition, position, at = ORDER
    key = [F.col(quote(name)) for name in keys]
    # compares numbers of any length as numbers, and texts as texts
    by_position = [F.length(position).desc_nulls_last(), F.col(position).desc_nulls_last()]
    within = Window.partitionBy(*key, F.col(partition)).orderBy(*by_position)
    between = Window.partitionBy(*key).orderBy(
        F.col(at).desc_nulls_last(), F.col(partition).desc_nulls_last()
    )
    rank = internal_name("rank")
    for window in (within, between):
        rows = rows.withColumn(rank, F.row_number().over(window)).where(F.col(rank) == 1).drop(rank)
    return rows


def with_ages(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Every message with its age within its key: 0 is the message that `last_of_each_key` keeps.

    Messages of one partition keep their order: one counts as no later than those that follow it.
    A message with a null in its key has no older ones.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    partition, position, at = ORDER
    key = [F.col(quote(name)) for name in keys]
    by_position = [F.length(position).desc_nulls_last(), F.col(position).desc_nulls_last()]
    later = Window.partitionBy(*key, F.col(partition)).orderBy(*by_position)
    later = later.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    moment, no_time = internal_name("moment"), F.lit("0001-01-01 00:00:00").cast("timestamp")
    rows = rows.withColumn(moment, F.min(F.coalesce(F.col(at), no_time)).over(later))
    between = Window.partitionBy(*key).orderBy(
        F.col(moment).desc(), F.col(partition).desc_nulls_last(), *by_position
    )
    has_null = reduce(lambda one, other: one | other, [each.isNull() for each in key])
    age = F.when(has_null, F.lit(0)).otherwise(F.row_number().over(between) - 1).cast("long")
    return rows.withColumn(AGE, age).drop(moment)


def count_rows(frame: DataFrame, reason: str | None = None) -> tuple[DataFrame, CountMessages]:
    """The frame, and a function that returns its row counts after Spark has computed it."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    observed, wanted = Observation(), [F.count(F.lit(1)).alias("read")]
    if reason is not None:
        wanted += [
            F.count(F.col(reason)).alias("bad"),
            F.first(F.col(reason), ignorenulls=True).alias("example"),
        ]

    def seen() -> MessageCounts:
        found = observed.get
        return MessageCounts(found["read"], found.get("bad", 0), 0, found.get("example"))

    return frame.observe(observed, *wanted), seen


def refuse_nulls(rows: DataFrame, declared: TableSpec | None) -> DataFrame:
    """Fail on a null in a column that ``source_columns=`` declares not null. For rows of files and tables."""
    from pyspark.sql import functions as F

    filled = {c.name for c in declared.columns if not c.nullable} if declared is not None else set()
    if filled.isdisjoint(rows.columns):
        return rows
    step = "fill it in the source, or declare the column nullable in source_columns="
    checked = []
    for name in rows.columns:
        if name in filled:
            message = f"column {name!r} is null or missing, and source_columns= declares it without nulls"
            refused = raise_error_sql(text_literal(message), next_step=step)
            checked.append(F.expr(f"coalesce({quote(name)}, {refused})").alias(name))
        else:
            checked.append(F.col(quote(name)))
    return rows.select(*checked)


def quote(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def union_messages(frames: Sequence[DataFrame]) -> DataFrame:
    """The messages of several sources in one frame, each with the number of its source."""
    from pyspark.sql import functions as F

    if len(frames) == 1:
        return frames[0]
    numbered = [frame.withColumn(ORIGIN, F.lit(number)) for number, frame in enumerate(frames)]
    return reduce(lambda one, other: one.unionByName(other), numbered)
