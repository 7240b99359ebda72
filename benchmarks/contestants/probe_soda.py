"""Soda Core 3: ten checks of SodaCL, with its data sources for PostgreSQL, DuckDB and Spark.

Its count of duplicates is one of values; here each repeated value is in two rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contestants import Load
from benchmarks.contestants.probe_figures import (
    AMOUNTS,
    AT_LEAST_ROWS,
    CARDINALITIES,
    FRESH_DAYS,
    QUANTITIES,
    checks,
)
from benchmarks.job import Job
from benchmarks.probe_data import EMAIL, STATUSES, TABLE, newest_text

SOURCE = "orders_source"
CHECKS = f"""
checks for {TABLE}:
  - row_count >= {AT_LEAST_ROWS}:
      name: row_count
  - missing_count(order_id) = 0:
      name: order_id.not_null
  - duplicate_count(order_id) = 0:
      name: order_id.unique
  - missing_count(customer_id) = 0:
      name: customer_id.not_null
  - invalid_count(amount) = 0:
      name: amount.between
      valid min: {AMOUNTS[0]}
      valid max: {AMOUNTS[1]}
  - invalid_count(quantity) = 0:
      name: quantity.between
      valid min: {QUANTITIES[0]}
      valid max: {QUANTITIES[1]}
  - invalid_count(status) = 0:
      name: status.is_in
      valid values: {list(STATUSES)}
  - invalid_count(email) = 0:
      name: email.regex
      valid regex: {EMAIL}
  - countries between {CARDINALITIES[0]} and {CARDINALITIES[1]}:
      name: country.cardinality
      countries expression: COUNT(DISTINCT country)
  - freshness(created_at) < {FRESH_DAYS}d:
      name: created_at.freshness
"""


def prepare(job: Job) -> Load:
    _tell_no_usage()
    connect = {"postgres": _postgres, "parquet": _duckdb, "delta": _spark}[job.source.kind](job)
    from soda.scan import Scan

    def check() -> dict[str, Any]:
        scan = Scan()
        scan.set_data_source_name(SOURCE)
        connect(scan)
        scan.add_sodacl_yaml_str(CHECKS)
        scan.execute()
        if scan.has_error_logs():
            raise RuntimeError(scan.get_error_logs_text())
        return figures(scan)

    return checks(job, check)


def figures(scan: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for check in scan._checks:
        if check.name == "created_at.freshness":
            (newest,) = check.metrics.values()
            found[check.name] = newest_text(newest.value)
        else:
            found[check.name] = int(check.check_value)
    found["order_id.unique"] *= 2
    return found


def _postgres(job: Job) -> Callable[[Any], None]:
    import psycopg2

    assert psycopg2
    login = job.source.login()
    configuration = f"""
data_source {SOURCE}:
  type: postgres
  host: {login.host}
  port: "{login.port}"
  username: {login.user}
  password: "{login.password}"
  database: {login.database}
  schema: public
"""
    return lambda scan: scan.add_configuration_yaml_str(configuration)


def _duckdb(job: Job) -> Callable[[Any], None]:
    import duckdb

    def connect(scan: Any) -> None:
        connection = duckdb.connect()
        connection.execute(
            f"CREATE VIEW {TABLE} AS SELECT * FROM read_parquet('{job.source.location}/*.parquet')"
        )
        scan.add_duckdb_connection(connection, data_source_name=SOURCE)

    return connect


def _spark(job: Job) -> Callable[[Any], None]:
    from benchmarks.contestants.probe_spark import rows_view, session

    spark = session(job)

    def connect(scan: Any) -> None:
        rows_view(spark, job)
        scan.add_spark_session(spark, data_source_name=SOURCE)

    return connect


def _tell_no_usage() -> None:
    """A configuration in the job's folder, which comes before that of the user."""
    from soda.common.config_helper import ConfigHelper

    file = Path("soda.yml").absolute()
    file.write_text("send_anonymous_usage_stats: false\n", encoding="utf-8")
    ConfigHelper.get_instance(str(file))
