"""Follows a folder of JSON lines into a table."""

from ematix_flow import Annotated, BigInt, Text, ematix, pk


@ematix.connection
class files:
    kind = "object_store_local"
    path = "incoming"
    format = "json_lines"


@ematix.connection
class warehouse:
    kind = "sqlite"
    path = "warehouse.db"


@ematix.table
class Clicks:
    click_id: Annotated[BigInt, pk()]
    page: Text


@ematix.streaming_pipeline(
    source=files,
    source_query="clicks",
    source_columns=Clicks,
    source_options={"settle_seconds": 0},  # files are complete when they appear
    target=Clicks,
    target_connection=warehouse,
)
def clicks():
    """Every click, once."""
