"""The windowed count as a stateful processor: Spark's ``transformWithStateInPandas``, state in RocksDB.

Each page and window is a group with a counter and a timer at the end of its window.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.contestants import Load
from benchmarks.contestants.spark_stateful import LATE, VIEW, messages, prepare_query
from benchmarks.job import Job

OUTPUT = "page bigint, window_start timestamp, window_end timestamp, views bigint"


def prepare(job: Job) -> Load:
    return prepare_query(job, windows)


def windows(spark: SparkSession, job: Job) -> DataFrame:
    length = int(job.options["window"])
    rows = messages(spark, job, VIEW).withWatermark("at", LATE)
    start = F.expr(f"unix_millis(at) - pmod(unix_millis(at), {length})").alias("start")
    return (
        rows.select("page", start, "at")
        .groupBy("page", "start")
        .transformWithStateInPandas(WindowCount(length), OUTPUT, "append", "eventTime")
    )


class WindowCount(StatefulProcessor):
    """Counts the rows of one page and window, and returns the count when the watermark has passed."""

    def __init__(self, length: int) -> None:
        self.length = length

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.views = handle.getValueState("views", "views bigint")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        views = sum(len(each) for each in rows)
        if self.views.exists():  # get() logs a warning for each group without a value
            views += self.known_views()
        else:
            self.handle.registerTimer(key[1] + self.length)
        self.views.update((views,))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        page, start = key
        views = self.known_views()
        self.views.clear()
        times = pd.to_datetime([start, start + self.length], unit="ms", utc=True)
        yield pd.DataFrame(
            {
                "page": [page],
                "window_start": [times[0]],
                "window_end": [times[1]],
                "views": [views],
            }
        )

    def known_views(self) -> int:
        found = self.views.get()
        return int(found[0]) if found is not None else 0

    def close(self) -> None:
        return
