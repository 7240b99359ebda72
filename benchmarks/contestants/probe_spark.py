"""What contestants of data probes with Spark share: a session, and the rows as a view."""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession

from benchmarks.contestants.spark_jdbc import DELTA, TUNED
from benchmarks.job import Job
from benchmarks.probe_data import TABLE

MEMORY = "6g"


def session(job: Job, **conf: str) -> SparkSession:
    """As tuned as that of the copies: parallel collector, few tasks for the log of a Delta table."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[*]").appName("probes")
    lake = {**DELTA, "spark.jars": ",".join(job.jars)} if job.source.kind == "delta" else {}
    settings = {"spark.driver.memory": MEMORY, "spark.sql.shuffle.partitions": str(4 * job.cores)}
    for name, value in {**TUNED, **settings, **lake, **conf}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(1).count()
    return spark


def rows_of(spark: SparkSession, job: Job) -> DataFrame:
    return spark.read.format(job.source.kind).load(job.source.location)


def rows_view(spark: SparkSession, job: Job) -> None:
    rows_of(spark, job).createOrReplaceTempView(TABLE)
