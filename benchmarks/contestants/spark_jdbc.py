"""Spark's own JDBC source and sink: as most people write it, and as an expert tunes it.

Both contain what a driver requires: SQLite's needs the format of dates, and Spark cannot create a table
through DuckDB's, so the table exists before. Spark's own sources read and write files, that of Delta Lake
reads and writes Delta.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.contestants import Load
from benchmarks.datasets import Dataset
from benchmarks.endpoint import Endpoint
from benchmarks.job import Job

DRIVERS = {
    "postgres": "org.postgresql.Driver",
    "mysql": "com.mysql.cj.jdbc.Driver",
    "sqlite": "org.sqlite.JDBC",
    "duckdb": "org.duckdb.DuckDBDriver",
}
# The drivers of PostgreSQL and MySQL read all rows at once by default, for which Spark's 1 GB is too small.
MEMORY, MEMORY_OF_MANY, MANY_ROWS = "4g", "12g", 3_000_000
ROWS_AT_A_TIME = "10000"
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
TUNED = {
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.databricks.delta.snapshotPartitions": "2",  # 50 tasks for a short log cost seconds on few cores
}


def prepare_as_written(job: Job) -> Load:
    spark = session(job)

    def load(target: Endpoint) -> dict[str, Any]:
        if job.source.kind == "csv":
            rows = spark.read.csv(csv_file(job), header=True, inferSchema=True)
        else:
            rows = spark.read.jdbc(url(job.source), job.table, properties=properties(job.source))
        write(rows, job.dataset, target, tuned=False)
        return {}

    return load


def prepare_tuned(job: Job) -> Load:
    spark = session(job, **TUNED)

    def load(target: Endpoint) -> dict[str, Any]:
        write(partitioned(spark, job), job.dataset, target, tuned=True)
        return {}

    return load


def prepare_through_parquet(job: Job) -> Load:
    """The tuned read, written as Parquet, which DuckDB loads in one statement."""
    import duckdb

    spark = session(job, **TUNED)

    def load(target: Endpoint) -> dict[str, Any]:
        between = Path(target.location).with_suffix(".parquet")
        partitioned(spark, job).write.parquet(str(between))
        with duckdb.connect(target.location) as connection:
            connection.execute(
                f"CREATE TABLE {job.table} AS SELECT * FROM read_parquet(?)", [str(between / "*.parquet")]
            )
        shutil.rmtree(between)
        return {}

    return load


def session(job: Job, **conf: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[*]").appName("rival")
    if job.targets[0].kind == "delta":
        conf = {**DELTA, **conf}
    memory = MEMORY if job.rows < MANY_ROWS else MEMORY_OF_MANY
    builder = builder.config("spark.jars", ",".join(job.jars)).config("spark.driver.memory", memory)
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.range(1).count()
    return spark


def partitioned(spark: SparkSession, job: Job) -> DataFrame:
    """One range of keys for each core, fetched in larger pieces. The types of a file are given."""
    if job.source.kind == "csv":
        return spark.read.csv(csv_file(job), header=True, schema=csv_schema(job.dataset))
    told = {**properties(job.source), "fetchsize": ROWS_AT_A_TIME}
    address = url(job.source)
    if job.source.kind == "mysql":  # otherwise its driver ignores the fetch size and reads everything at once
        address += "?useCursorFetch=true"
    key = job.dataset.key[0]
    bounds = f"(SELECT min({key}) AS low, max({key}) AS high FROM {job.table}) AS bounds"
    low, high = spark.read.jdbc(address, bounds, properties=told).collect()[0]
    return spark.read.jdbc(
        address,
        job.table,
        column=key,
        lowerBound=low,
        upperBound=high,
        numPartitions=job.cores,
        properties=told,
    )


def write(rows: DataFrame, dataset: Dataset, target: Endpoint, *, tuned: bool) -> None:
    if target.kind == "parquet":
        rows.write.parquet(str(Path(target.location) / dataset.name))
        return
    if target.kind == "delta":
        rows.write.format("delta").save(str(Path(target.location) / dataset.name))
        return
    told = {**properties(target), **({"batchsize": ROWS_AT_A_TIME} if tuned else {})}
    address = url(target)
    if target.kind == "duckdb":
        create_in_duckdb(target.location, dataset)
        rows.write.jdbc(address, dataset.name, mode="append", properties=told)
        return
    if tuned:
        rewriting = {"postgres": "reWriteBatchedInserts", "mysql": "rewriteBatchedStatements"}
        address += f"?{rewriting[target.kind]}=true"
    rows.write.jdbc(address, dataset.name, mode="overwrite", properties=told)


def create_in_duckdb(file: str, dataset: Dataset) -> None:
    import duckdb

    with duckdb.connect(file) as connection:
        connection.execute(f"CREATE TABLE {dataset.name} ({dataset.column_lines('duckdb', nullable=True)})")


def csv_file(job: Job) -> str:
    return str(Path(job.source.location) / job.table / f"{job.table}.csv")


def csv_schema(dataset: Dataset) -> str:
    """Spark names these types as DuckDB does, except for text."""
    return dataset.column_lines("duckdb", nullable=True).replace("VARCHAR", "STRING")


def url(endpoint: Endpoint) -> str:
    if endpoint.kind in ("postgres", "mysql"):
        login = endpoint.login()
        product = {"postgres": "postgresql"}.get(endpoint.kind, endpoint.kind)
        return f"jdbc:{product}://{login.host}:{login.port}/{login.database}"
    suffix = "?date_string_format=yyyy-MM-dd" if endpoint.kind == "sqlite" else ""
    return f"jdbc:{endpoint.kind}:{endpoint.location}{suffix}"


def properties(endpoint: Endpoint) -> dict[str, str]:
    told = {"driver": DRIVERS[endpoint.kind]}
    if endpoint.kind in ("postgres", "mysql"):
        login = endpoint.login()
        told |= {"user": login.user, "password": login.password}
    return told
