"""The rows of each sink: from decoded messages, through the SQL of the stream, to the columns of a target."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

from ematix_flow.engine.planning.stream_columns import run_transform_sql
from ematix_flow.engine.streams.batch_frames import last_of_each_key, quote, with_ages
from ematix_flow.engine.streams.decoding import ORDER
from ematix_flow.engine.streams.sinks import StreamSink
from ematix_flow.engine.streams.state.stateful_operator import SOURCE
from ematix_flow.plan.stream_capabilities import STREAM_VIEW
from ematix_flow.spec.streams import StreamSpec
from ematix_flow.spec.tables import AGE, MESSAGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def keeps_last_of_key(sink: StreamSink) -> bool:
    return sink.plan.target.mode == "merge"


def run_sql_by_source(spec: StreamSpec, rows: DataFrame, lookups: Mapping[str, str]) -> DataFrame:
    """Run the SQL: over all rows, or over those of each source if their watermarks differ."""
    if SOURCE not in rows.columns:
        return run_transform_sql(spec, rows, lookups)
    from pyspark.sql import functions as F

    computed = [
        run_transform_sql(spec, rows.where(F.col(SOURCE) == number).drop(SOURCE), lookups).withColumn(
            SOURCE, F.lit(number)
        )
        for number in range(len(spec.sources))
    ]
    return reduce(lambda one, other: one.unionByName(other), computed)


def rows_for_sink(sink: StreamSink, rows: DataFrame) -> DataFrame:
    """The rows in the columns of the sink's target; of a merge those that may be the last of their key."""
    if keeps_last_of_key(sink) and ORDER[0] in rows.columns:
        staged = with_ages if sink.plan.load.stages_older else last_of_each_key
        rows = staged(rows, sink.plan.target.keys)
    if sink.plan.projection is not None:
        rows.createOrReplaceTempView(STREAM_VIEW)
        rows = rows.sparkSession.sql(sink.plan.projection)
    names = [column.name for column in sink.plan.table.columns]
    if sink.plan.load.stages_older:
        names.append(AGE)
    if sink.plan.load.names_messages:
        names.append(MESSAGE)
    return rows.select(*map(quote, names))
