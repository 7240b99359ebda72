"""Structured Streaming as most people write it: ``from_json``, then ``foreachBatch`` with an append.

Into Kafka it is Spark's own sink. Nothing is tuned. A batch that fails half way is appended again.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.contestants import Load
from benchmarks.contestants.spark_jdbc import properties, session, url
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job
from benchmarks.stream_messages import DDL

REMEMBERED = {"spark.sql.streaming.numRecentProgressUpdates": "100000"}  # what is reported at the end


def prepare(job: Job) -> Load:
    spark = session(job, **REMEMBERED)

    def load(target: Endpoint) -> dict[str, Any]:
        messages = spark.readStream.format("kafka").option("kafka.bootstrap.servers", job.source.location)
        messages = messages.option("subscribe", job.options["topic"]).option("startingOffsets", "earliest")
        payload = F.from_json(F.col("value").cast("string"), DDL).alias("row")
        rows = messages.load().select(payload).select("row.*")
        if target.kind == "kafka":
            writer = rows.select(F.to_json(F.struct("*")).alias("value")).writeStream.format("kafka")
            writer = writer.option("kafka.bootstrap.servers", target.location)
            writer = writer.option("topic", job.options["out"])
        else:
            writer = rows.writeStream.foreachBatch(_append(target))
        query = writer.option("checkpointLocation", str(Path(job.marks).with_name("checkpoint"))).start()

        def check() -> None:
            if not query.isActive:
                raise query.exception() or RuntimeError("the query has ended")

        return followed(spark, job, check)

    return load


def _append(target: Endpoint) -> Callable[[DataFrame, int], None]:
    def batch(rows: DataFrame, number: int) -> None:
        if target.kind == "delta":
            rows.write.format("delta").mode("append").save(str(Path(target.location) / "events"))
        else:
            rows.write.jdbc(url(target), "events", mode="append", properties=properties(target))

    return batch


def followed(
    spark: SparkSession, job: Job, check: Callable[[], None], committed: Callable[[], int] | None = None
) -> dict[str, Any]:
    """Run until the harness stops it; report when the first batch began, and Spark's progress reports.

    If the job waits for a number of messages, also report when they are committed. By default these are the
    messages of the batches that Spark reports.
    """
    told = job.source.kind == "rabbitmq"  # a contestant that receives by itself has reported it
    awaited = int(job.options.get("awaited messages", 0))
    while not Path(job.options["stop"]).exists():
        check()
        batches = [] if told and not awaited else spark_batches(spark)
        if batches and not told:
            job.mark("first batch", began=batches[0]["began"])
            told = True
        if awaited and awaited <= (committed() if committed else sum(one["rows"] for one in batches)):
            job.mark("messages committed")
            awaited = 0
        time.sleep(0.1)
    return {"batches": spark_batches(spark)}


def spark_batches(spark: SparkSession) -> list[dict[str, Any]]:
    """When each batch began, by the clock of the marks, its rows, and how long each part of it took."""
    offset = time.monotonic() - time.time()
    found: dict[int, Mapping[str, Any]] = {}
    for query in spark.streams.active:
        for progress in query.recentProgress:
            if "addBatch" in progress["durationMs"]:
                found[progress["batchId"]] = progress
    return [
        {
            "began": dt.datetime.fromisoformat(one["timestamp"].replace("Z", "+00:00")).timestamp() + offset,
            "rows": one["numInputRows"],
            "seconds": {name: taken / 1000 for name, taken in one["durationMs"].items()},
        }
        for _, one in sorted(found.items())
    ]
