"""Structured Streaming by hand: Spark's own windows, sessions and joins, state in RocksDB, and upserts.

The results of a batch go as CSV through COPY into a temporary table, and from there with one statement into
the target, in one transaction. A batch that comes again after a crash writes the same rows again.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.contestants import Load
from benchmarks.contestants.spark_jdbc import session
from benchmarks.contestants.spark_streams import REMEMBERED, followed
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job
from benchmarks.stateful_messages import LATENESS, SESSION_GAP
from benchmarks.stateful_watches import TABLE

ROCKSDB = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state"
    ".RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
VIEW = "page bigint, at timestamp"
ORDER = "order_id bigint, customer string, cents bigint, at timestamp"
PAYMENT = "order_id bigint, method string, at timestamp"
CUSTOMER = ("id", "name", "email", "city", "balance", "seq", "sent_at")
CHANGE = (
    "op string, before struct<id: bigint>, after struct<id: bigint, name: string, email: string,"
    " city: string, balance: bigint, seq: bigint, sent_at: bigint>, source struct<lsn: bigint>"
)
LATE = f"{LATENESS} milliseconds"

Write = Callable[[DataFrame, int], None]


def prepare(job: Job) -> Load:
    streams = {"window": windows, "session": sessions, "join": join, "cdc": changes}
    return prepare_query(job, streams[job.options["stream"]])


def prepare_query(job: Job, build: Callable[[SparkSession, Job], DataFrame]) -> Load:
    """Get ready for a query, which then runs until the harness stops it."""
    spark = session(job, **REMEMBERED, **ROCKSDB)

    def load(target: Endpoint) -> dict[str, Any]:
        stream = job.options["stream"]
        write = apply_changes(target) if stream == "cdc" else upsert(target, KEYS[stream])
        writer = build(spark, job).writeStream.outputMode("append").foreachBatch(write)
        writer = writer.option("checkpointLocation", str(Path(job.marks).with_name("checkpoint")))
        query = writer.start()

        def check() -> None:
            if not query.isActive:
                raise query.exception() or RuntimeError("the query has ended")

        told = followed(spark, job, check)
        query.stop()
        return told

    return load


KEYS = {
    "window": ("page", "window_start"),
    "session": ("page", "window_start"),
    "join": ("left_order_id",),
}


def messages(spark: SparkSession, job: Job, schema: str, topic: str | None = None) -> DataFrame:
    """The messages of a topic as rows of these columns."""
    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", job.source.location)
    read = read.option("subscribe", topic or job.options["topic"]).option("startingOffsets", "earliest")
    return read.load().select(F.from_json(F.col("value").cast("string"), schema).alias("row")).select("row.*")


def windows(spark: SparkSession, job: Job) -> DataFrame:
    window = F.window("at", f"{job.options['window']} milliseconds")
    return counted(messages(spark, job, VIEW), window)


def sessions(spark: SparkSession, job: Job) -> DataFrame:
    return counted(messages(spark, job, VIEW), F.session_window("at", f"{SESSION_GAP} milliseconds"))


def counted(rows: DataFrame, window: Any) -> DataFrame:
    counts = rows.withWatermark("at", LATE).groupBy(window.alias("window"), "page").count()
    return counts.selectExpr(
        "page", "window.start AS window_start", "window.end AS window_end", "count AS views"
    )


def join(spark: SparkSession, job: Job) -> DataFrame:
    orders, payments = job.options["topic"].split(",")
    left = messages(spark, job, ORDER, orders).withWatermark("at", LATE).alias("o")
    right = messages(spark, job, PAYMENT, payments).withWatermark("at", LATE).alias("p")
    matches = "o.order_id = p.order_id AND p.at >= o.at AND p.at <= o.at + INTERVAL 5 SECONDS"
    return left.join(right, F.expr(matches)).selectExpr(
        *(f"o.{name} AS left_{name}" for name in ("order_id", "customer", "cents", "at")),
        *(f"p.{name} AS right_{name}" for name in ("order_id", "method", "at")),
    )


def changes(spark: SparkSession, job: Job) -> DataFrame:
    """The changes with their keys; tombstones have none."""
    rows = messages(spark, job, CHANGE).where("op IS NOT NULL")
    return rows.selectExpr("coalesce(after.id, before.id) AS id", "op", "after", "source.lsn AS lsn")


def upsert(target: Endpoint, keys: tuple[str, ...]) -> Write:
    """Insert the rows of a batch, or update those that are there."""
    connection = psycopg.connect(target.location)

    def batch(rows: DataFrame, number: int) -> None:
        found = rows.toArrow()
        if not found.num_rows:
            return
        names = ", ".join(found.column_names)
        values = ", ".join(f"{name} = excluded.{name}" for name in found.column_names if name not in keys)
        with connection.transaction(), connection.cursor() as cursor:
            copy_aside(cursor, found, f"(LIKE {TABLE})")
            run(
                cursor,
                f"INSERT INTO {TABLE} ({names}) SELECT {names} FROM arrived"
                f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {values}",
            )

    return batch


def apply_changes(target: Endpoint) -> Write:
    """The last change of each key in a batch: rows are deleted, inserted or updated."""
    connection = psycopg.connect(target.location)
    names = ", ".join(CUSTOMER)
    values = ", ".join(f"{name} = excluded.{name}" for name in CUSTOMER[1:])

    def batch(rows: DataFrame, number: int) -> None:
        last = rows.groupBy("id").agg(F.max_by(F.struct("op", "after"), "lsn").alias("last"))
        after = (f"last.after.{name} AS {name}" for name in CUSTOMER[1:])
        found = last.selectExpr("last.op AS op", "id", *after).toArrow()
        if not found.num_rows:
            return
        with connection.transaction(), connection.cursor() as cursor:
            copy_aside(cursor, found, f"(op text, LIKE {TABLE})")
            run(cursor, f"DELETE FROM {TABLE} t USING arrived a WHERE a.op = 'd' AND t.id = a.id")
            run(
                cursor,
                f"INSERT INTO {TABLE} ({names}) SELECT {names} FROM arrived WHERE op <> 'd'"
                f" ON CONFLICT (id) DO UPDATE SET {values}",
            )

    return batch


def copy_aside(cursor: psycopg.Cursor[Any], rows: pa.Table, columns: str) -> None:
    """Copy rows into the temporary table ``arrived``."""
    text = io.BytesIO()
    csv.write_csv(rows, text, csv.WriteOptions(include_header=False))
    run(cursor, f"CREATE TEMP TABLE arrived {columns} ON COMMIT DROP")
    names = ", ".join(rows.column_names)
    with cursor.copy(f"COPY arrived ({names}) FROM STDIN (FORMAT csv)".encode()) as copying:
        copying.write(text.getbuffer())


def run(cursor: psycopg.Cursor[Any], statement: str) -> None:
    cursor.execute(statement.encode())
