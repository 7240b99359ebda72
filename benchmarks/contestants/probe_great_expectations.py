"""Great Expectations: ten expectations in a suite, its default result format, by three of its engines.

By default its Spark engine keeps the rows in memory for its many queries (``persist=True``).
"""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

from benchmarks.contestants import Load
from benchmarks.contestants.probe_figures import (
    AMOUNTS,
    AT_LEAST_ROWS,
    AT_MOST_ROWS,
    CARDINALITIES,
    FRESH_DAYS,
    QUANTITIES,
    checks,
)
from benchmarks.job import Job
from benchmarks.probe_data import EMAIL, STATUSES, TABLE, newest_text

os.environ["GX_ANALYTICS_ENABLED"] = "false"

import great_expectations as gx
import great_expectations.expectations as gxe
from great_expectations.datasource.fluent.interfaces import Batch


def prepare(job: Job) -> Load:
    """By SQLAlchemy on PostgreSQL, by Spark elsewhere."""
    if job.source.kind != "postgres":
        return _spark(job, persist=True)
    import psycopg2

    assert psycopg2
    context = new_context()

    def check() -> dict[str, Any]:
        name = f"database {len(context.data_sources.all())}"
        source = context.data_sources.add_postgres(name, connection_string=sqlalchemy_url(job))
        asset = source.add_table_asset(TABLE, table_name=TABLE)
        return figures(asset.add_batch_definition_whole_table("all").get_batch())

    return checks(job, check)


def prepare_unpersisted(job: Job) -> Load:
    return _spark(job, persist=False)


def prepare_pandas(job: Job) -> Load:
    """The files are read as pandas does; reading belongs to the check."""
    import pandas as pd

    context = new_context()

    def check() -> dict[str, Any]:
        frame = pd.read_parquet(job.source.location)
        source = context.data_sources.add_pandas(f"pandas {len(context.data_sources.all())}")
        batches = source.add_dataframe_asset(TABLE).add_batch_definition_whole_dataframe("all")
        return figures(batches.get_batch(batch_parameters={"dataframe": frame}))

    return checks(job, check)


def _spark(job: Job, *, persist: bool) -> Load:
    from benchmarks.contestants.probe_spark import rows_of, session

    spark, context = session(job), new_context()

    def check() -> dict[str, Any]:
        name = f"spark {len(context.data_sources.all())}"
        source = context.data_sources.add_spark(name, persist=persist)
        batches = source.add_dataframe_asset(TABLE).add_batch_definition_whole_dataframe("all")
        rows = rows_of(spark, job)
        try:
            return figures(batches.get_batch(batch_parameters={"dataframe": rows}))
        finally:
            rows.unpersist(blocking=True)

    return checks(job, check)


def new_context() -> Any:
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    return context


def suite() -> dict[str, Any]:
    """The expectations by the names of the figures."""
    now = dt.datetime.now(dt.timezone.utc).replace(tzinfo=None)
    return {
        "row_count": gxe.ExpectTableRowCountToBeBetween(min_value=AT_LEAST_ROWS, max_value=AT_MOST_ROWS),
        "order_id.not_null": gxe.ExpectColumnValuesToNotBeNull(column="order_id"),
        "order_id.unique": gxe.ExpectColumnValuesToBeUnique(column="order_id"),
        "customer_id.not_null": gxe.ExpectColumnValuesToNotBeNull(column="customer_id"),
        "amount.between": between("amount", AMOUNTS),
        "quantity.between": between("quantity", QUANTITIES),
        "status.is_in": gxe.ExpectColumnValuesToBeInSet(column="status", value_set=list(STATUSES)),
        "email.regex": gxe.ExpectColumnValuesToMatchRegex(column="email", regex=EMAIL),
        "country.cardinality": gxe.ExpectColumnUniqueValueCountToBeBetween(
            column="country", min_value=CARDINALITIES[0], max_value=CARDINALITIES[1]
        ),
        "created_at.freshness": gxe.ExpectColumnMaxToBeBetween(
            column="created_at", min_value=now - dt.timedelta(days=FRESH_DAYS)
        ),
    }


def between(column: str, bounds: tuple[int, int]) -> Any:
    return gxe.ExpectColumnValuesToBeBetween(column=column, min_value=bounds[0], max_value=bounds[1])


def figures(batch: Batch) -> dict[str, Any]:
    declared = suite()
    result = batch.validate(gx.ExpectationSuite(name="orders", expectations=list(declared.values())))
    kinds = {(each.expectation_type, getattr(each, "column", None)): name for name, each in declared.items()}
    found: dict[str, Any] = {}
    for each in result.results:
        if each.exception_info.get("raised_exception"):
            raise RuntimeError(each.exception_info.get("exception_message"))
        config = each.expectation_config
        name = kinds[config.type, config.kwargs.get("column")]
        found[name] = each.result.get("unexpected_count", each.result.get("observed_value"))
    return {**found, "created_at.freshness": newest_text(found["created_at.freshness"])}


def sqlalchemy_url(job: Job) -> str:
    return "postgresql+psycopg2" + job.source.location[job.source.location.index("://") :]
