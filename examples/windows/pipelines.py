"""Counts clicks per page and minute."""

from ematix_flow import Aggregation, Window, ematix


@ematix.connection
class files:
    kind = "object_store_local"
    path = "incoming"
    format = "json_lines"


@ematix.connection
class warehouse:
    kind = "sqlite"
    path = "warehouse.db"


@ematix.streaming_pipeline(
    source=files,
    source_query="clicks",
    source_options={"settle_seconds": 0},  # files are complete when they appear
    target=warehouse,
    target_table="clicks_per_minute",
    mode="merge",  # a window that changes replaces its row
    keys=("page", "window_start"),
    window=Window(
        kind="tumbling",
        duration_ms=60_000,
        event_time_column="at",
        group_by=("page",),
        late_data="reopen",
        allowed_lateness_ms=600_000,
        aggregations=[Aggregation(agg="count", as_="clicks")],
    ),
)
def clicks_per_minute():
    """One row for each page and minute."""
