"""Spark by hand: the changes by JDBC into a staging table, then the statements that an engineer writes.

Spark merges them into Delta by one statement.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.contestants import Load
from benchmarks.contestants.spark_jdbc import ROWS_AT_A_TIME, TUNED, properties, session, url
from benchmarks.contestants.sql_changes import COLUMNS, KEY, statements
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job


def prepare(job: Job) -> Load:
    import psycopg

    spark = session(job, **TUNED)
    query = _changes(job)

    def load(target: Endpoint) -> dict[str, Any]:
        told = {**properties(job.source), "fetchsize": ROWS_AT_A_TIME}
        rows = spark.read.jdbc(url(job.source), query, properties=told)
        into = {**properties(target), "batchsize": ROWS_AT_A_TIME}
        address = f"{url(target)}?reWriteBatchedInserts=true"
        rows.write.jdbc(address, "staged", mode="overwrite", properties=into)
        with psycopg.connect(target.location) as writing:
            writing.execute("ANALYZE staged")
            for statement in statements(job.options["strategy"], "staged"):
                writing.execute(statement.encode())
            writing.execute("DROP TABLE staged")
        return {}

    return load


def prepare_delta(job: Job) -> Load:
    spark = session(job, **TUNED)

    def load(target: Endpoint) -> dict[str, Any]:
        told = {**properties(job.source), "fetchsize": ROWS_AT_A_TIME, "preferTimestampNTZ": "true"}
        rows = spark.read.jdbc(url(job.source), _changes(job), properties=told)
        rows.createOrReplaceTempView("changes")
        table = Path(target.location) / job.table
        spark.sql(
            f"MERGE INTO delta.`{table}` AS t USING changes AS s ON t.{KEY} = s.{KEY}"
            " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        return {}

    return load


def _changes(job: Job) -> str:
    return f"(SELECT {COLUMNS} FROM orders WHERE updated_at > '{job.options['after']}') AS changes"
