"""Finds the visits of each user."""

from ematix_flow import Aggregation, Watermark, Window, ematix


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
    source_query="views",
    source_options={"settle_seconds": 0},  # files are complete when they appear
    target=warehouse,
    target_table="visits",
    mode="merge",  # a visit that grows replaces its row
    keys=("session_id",),
    window=Window(
        kind="session",
        gap_ms=300_000,  # five minutes without a page end a visit
        max_session_duration_ms=86_400_000,
        event_time_column="at",
        group_by=("user",),
        aggregations=[
            Aggregation(agg="count", as_="pages"),
            Aggregation(agg="first", column="page", as_="entry_page"),
            Aggregation(agg="last", column="page", as_="exit_page"),
        ],
    ),
    watermark=Watermark(lateness_ms=1_200_000),  # pages may come twenty minutes late
)
def visits():
    """One row for each visit."""
