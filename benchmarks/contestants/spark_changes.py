"""Spark by hand: the changes by JDBC into a staging table, then the statements that an engineer writes."""

from __future__ import annotations

from typing import Any

from benchmarks.contestants import Load
from benchmarks.contestants.spark_jdbc import ROWS_AT_A_TIME, properties, session, url
from benchmarks.contestants.sql_changes import COLUMNS, statements
from benchmarks.job import Job
from benchmarks.place import Place


def prepare(job: Job) -> Load:
    import psycopg

    spark = session(job, **{"spark.driver.extraJavaOptions": "-XX:+UseParallelGC"})
    query = f"(SELECT {COLUMNS} FROM orders WHERE updated_at > '{job.options['after']}') AS changes"

    def load(target: Place) -> dict[str, Any]:
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
