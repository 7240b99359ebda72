"""New page views are appended, each once."""

from ematix_flow import Annotated, BigInt, Text, TimestampTZ, ematix, pk


@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"


@ematix.table
class PageViews:
    view_id: Annotated[BigInt, pk()]
    page: Text
    seen_at: TimestampTZ


@ematix.pipeline(
    target=PageViews,
    target_connection="shop",
    mode="append",
    incremental=True,
    watermark_column="seen_at",
)
def page_views():
    """Views that are new since the last run."""
    return "SELECT view_id, page, seen_at FROM raw_views"
