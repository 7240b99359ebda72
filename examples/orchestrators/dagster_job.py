"""Dagster: an asset that calls ``.sync()``, with the counts of the run as its metadata.

Try it:  dagster dev -f dagster_job.py
"""

import dagster as dg
from stock import stock_levels

hours = dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00")


@dg.asset(
    partitions_def=hours,
    retry_policy=dg.RetryPolicy(max_retries=2, delay=60, backoff=dg.Backoff.EXPONENTIAL),
    kinds={"sqlite"},
)
def stock_level_counts(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """A partition that is materialised again finds its hour in the ledger and loads nothing twice."""
    result = stock_levels.sync(slot=context.partition_time_window.end)
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": result.rows_inserted,
            "status": result.status,
            "run_id": result.run_id,
            "seconds": result.seconds,
        }
    )


load_stock = dg.define_asset_job("load_stock", [stock_level_counts])
defs = dg.Definitions(
    assets=[stock_level_counts],
    jobs=[load_stock],
    schedules=[dg.build_schedule_from_partitioned_job(load_stock)],
)
