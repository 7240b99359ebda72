"""SQL by hand: one statement that finds the figures of all ten assertions, and no samples of failing rows.

In PostgreSQL ``count(DISTINCT …)`` sorts the rows and forbids parallel workers, hence the subqueries.
"""

from __future__ import annotations

from typing import Any

from benchmarks.contestants import Load
from benchmarks.contestants.probe_figures import AMOUNTS, QUANTITIES, checks, named
from benchmarks.job import Job
from benchmarks.probe_data import EMAIL, STATUSES, TABLE

_STATUSES = ", ".join(f"'{status}'" for status in STATUSES)
STATEMENT = """
SELECT count(*),
  count(*) FILTER (WHERE order_id IS NULL),
  count(*) FILTER (WHERE customer_id IS NULL),
  count(*) FILTER (WHERE amount NOT BETWEEN {amounts[0]} AND {amounts[1]}),
  count(*) FILTER (WHERE quantity NOT BETWEEN {quantities[0]} AND {quantities[1]}),
  count(*) FILTER (WHERE status NOT IN ({statuses})),
  count(*) FILTER (WHERE NOT {matches}),
  max(created_at),
  (SELECT count(*) FROM (SELECT DISTINCT country FROM {rows} WHERE country IS NOT NULL) AS countries),
  (SELECT coalesce(sum(often), 0) FROM (
    SELECT count(*) AS often FROM {rows} WHERE order_id IS NOT NULL GROUP BY order_id HAVING count(*) > 1
  ) AS repeated)
FROM {rows}"""


def prepare(job: Job) -> Load:
    return _postgres(job) if job.source.kind == "postgres" else _duckdb(job)


def prepare_spark(job: Job) -> Load:
    """The same statement by Spark SQL."""
    from benchmarks.contestants.probe_spark import rows_view, session

    spark = session(job)

    def check() -> dict[str, Any]:
        rows_view(spark, job)
        return named(tuple(spark.sql(statement(TABLE, "email RLIKE '{pattern}'")).collect()[0]))

    return checks(job, check)


def statement(rows: str, matches: str) -> str:
    return STATEMENT.format(
        rows=rows,
        amounts=AMOUNTS,
        quantities=QUANTITIES,
        statuses=_STATUSES,
        matches=matches.format(pattern=EMAIL),
    )


def _postgres(job: Job) -> Load:
    import psycopg

    def check() -> dict[str, Any]:
        with psycopg.connect(job.source.location) as connection:
            row = connection.execute(statement(TABLE, "email ~ '{pattern}'")).fetchone()
        assert row is not None
        return named(row)

    return checks(job, check)


def _duckdb(job: Job) -> Load:
    """The files of a Delta table are those that delta-rs names."""
    import duckdb

    if job.source.kind == "delta":
        import deltalake

        assert deltalake

    def check() -> dict[str, Any]:
        with duckdb.connect() as connection:
            rows = f"read_parquet({_files(job)!r})"
            found = connection.execute(statement(rows, "regexp_matches(email, '{pattern}')")).fetchone()
        assert found is not None
        return named(found)

    return checks(job, check)


def _files(job: Job) -> list[str]:
    if job.source.kind == "parquet":
        return [f"{job.source.location}/*.parquet"]
    from deltalake import DeltaTable

    return [uri.removeprefix("file://") for uri in DeltaTable(job.source.location).file_uris()]
