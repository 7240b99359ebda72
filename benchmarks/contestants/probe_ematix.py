"""ematix_probe: a declared data probe and ``.run()``. Nothing is tuned."""

from __future__ import annotations

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
from ematix_probe import RunReport, probe, source

MEASURED = {"row_count": "row_count", "country.cardinality": "cardinality", "created_at.freshness": "newest"}


def prepare(job: Job) -> Load:
    opened, options = _source(job)
    import_what_runs(job)

    def check() -> dict[str, Any]:
        return figures(probe.data(source=opened, **options)(orders).run())

    return checks(job, check)


def prepare_frame(job: Job) -> Load:
    """The rows as a frame of Spark."""
    from benchmarks.contestants.probe_spark import rows_of, session

    spark = session(job)
    import_what_runs(job)

    def check() -> dict[str, Any]:
        return figures(probe.data(source=rows_of(spark, job))(orders).run())

    return checks(job, check)


def orders(t: Any) -> None:
    t.row_count(at_least=AT_LEAST_ROWS, name="row_count")
    t.column("order_id").not_null()
    t.column("order_id").unique()
    t.column("customer_id").not_null()
    t.column("amount").between(*AMOUNTS)
    t.column("quantity").between(*QUANTITIES)
    t.column("status").is_in(list(STATUSES), name="status.is_in")
    t.column("email").regex(EMAIL)
    t.column("country").cardinality_between(*CARDINALITIES, name="country.cardinality")
    t.freshness("created_at", within=f"{FRESH_DAYS}d", name="created_at.freshness")


def figures(report: RunReport) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for result in report.assertions:
        if result.verdict == "error":
            raise RuntimeError(result.message)
        measure = MEASURED.get(result.name)
        found[result.name] = result.failing if measure is None else result.measures[measure]
    return {**found, "created_at.freshness": newest_text(found["created_at.freshness"])}


def import_what_runs(job: Job) -> None:
    """Import what the check imports; no connection is opened."""
    from ematix_probe import running

    assert running
    if job.source.kind == "postgres":
        import psycopg

        assert psycopg
        return
    import duckdb

    assert duckdb
    if job.source.kind == "delta":
        import deltalake

        assert deltalake


def _source(job: Job) -> tuple[Any, dict[str, str]]:
    if job.source.kind == "postgres":
        return source.postgres(job.source.location), {"table": TABLE}
    return getattr(source, job.source.kind)(job.source.location), {}
