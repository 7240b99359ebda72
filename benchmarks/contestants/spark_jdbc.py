"""Spark's own JDBC source and sink: as most people write it, and as one who knows its options does.

What a driver forces on everyone is in both: SQLite's must be told how dates are written, and Spark
cannot create a table through DuckDB's, so that it is there before.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from benchmarks.contestants import Load
from benchmarks.job import Job
from benchmarks.orders import COLUMNS, KEY
from benchmarks.places import TABLE, Place

DRIVERS = {
    "postgres": "org.postgresql.Driver",
    "sqlite": "org.sqlite.JDBC",
    "duckdb": "org.duckdb.DuckDBDriver",
}
MEMORY = "4g"  # Spark's 1 GB does not hold what PostgreSQL's driver reads at once by default
ROWS_AT_A_TIME = "10000"


def prepare_as_written(job: Job) -> Load:
    spark = session(job)

    def load(target: Place) -> dict[str, Any]:
        rows = spark.read.jdbc(url(job.source), TABLE, properties=properties(job.source))
        write(rows, target, {})
        return {}

    return load


def prepare_tuned(job: Job) -> Load:
    spark = session(job, **{"spark.driver.extraJavaOptions": "-XX:+UseParallelGC"})

    def load(target: Place) -> dict[str, Any]:
        write(partitioned(spark, job), target, {"batchsize": ROWS_AT_A_TIME})
        return {}

    return load


def prepare_through_parquet(job: Job) -> Load:
    """The tuned read, handed to DuckDB as Parquet, which it reads itself: one statement."""
    import duckdb

    spark = session(job, **{"spark.driver.extraJavaOptions": "-XX:+UseParallelGC"})

    def load(target: Place) -> dict[str, Any]:
        between = Path(target.location).with_suffix(".parquet")
        partitioned(spark, job).write.parquet(str(between))
        with duckdb.connect(target.location) as connection:
            connection.execute(
                f"CREATE TABLE {TABLE} AS SELECT * FROM read_parquet(?)", [str(between / "*.parquet")]
            )
        shutil.rmtree(between)
        return {}

    return load


def session(job: Job, **conf: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[*]").appName("rival")
    builder = builder.config("spark.jars", ",".join(job.jars)).config("spark.driver.memory", MEMORY)
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.range(1).count()
    return spark


def partitioned(spark: SparkSession, job: Job) -> DataFrame:
    """One range of keys a core, fetched in larger pieces."""
    told = {**properties(job.source), "fetchsize": ROWS_AT_A_TIME}
    bounds = f"(SELECT min({KEY}) AS low, max({KEY}) AS high FROM {TABLE}) AS bounds"
    low, high = spark.read.jdbc(url(job.source), bounds, properties=told).collect()[0]
    return spark.read.jdbc(
        url(job.source),
        TABLE,
        column=KEY,
        lowerBound=low,
        upperBound=high,
        numPartitions=job.cores,
        properties=told,
    )


def write(rows: DataFrame, target: Place, options: dict[str, str]) -> None:
    if target.kind == "parquet":
        rows.write.parquet(str(Path(target.location) / TABLE))
        return
    told = {**properties(target), **options}
    address = url(target)
    if target.kind == "postgres":
        if options:
            address += "?reWriteBatchedInserts=true"
        rows.write.jdbc(address, TABLE, mode="overwrite", properties=told)
        return
    create_in_duckdb(target.location)
    rows.write.jdbc(address, TABLE, mode="append", properties=told)


def create_in_duckdb(file: str) -> None:
    import duckdb

    lines = ", ".join(f"{column.name} {column.duckdb}" for column in COLUMNS)
    with duckdb.connect(file) as connection:
        connection.execute(f"CREATE TABLE {TABLE} ({lines})")


def url(place: Place) -> str:
    if place.kind == "postgres":
        parts = urlsplit(place.location)
        return f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}"
    suffix = "?date_string_format=yyyy-MM-dd" if place.kind == "sqlite" else ""
    return f"jdbc:{place.kind}:{place.location}{suffix}"


def properties(place: Place) -> dict[str, str]:
    told = {"driver": DRIVERS[place.kind]}
    if place.kind == "postgres":
        parts = urlsplit(place.location)
        told |= {"user": unquote(parts.username or ""), "password": unquote(parts.password or "")}
    return told
