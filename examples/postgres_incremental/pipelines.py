"""New events from one PostgreSQL database into another, every five minutes, each once.

Expects two variables: SOURCE_URL and WAREHOUSE_URL, as in postgres://user:password@host/database
"""

from ematix_flow import JSONB, Annotated, BigInt, Text, TimestampTZ, ematix, pk
from ematix_flow.transforms import filter_where


@ematix.connection
class app:
    kind = "postgres"
    url = "${SOURCE_URL}"


@ematix.connection
class warehouse:
    kind = "postgres"
    url = "${WAREHOUSE_URL}"


@ematix.table(schema="analytics")
class Events:
    event_id: Annotated[BigInt, pk()]
    kind: Text
    payload: JSONB | None
    received_at: TimestampTZ


@ematix.pipeline(
    target=Events,
    source_connection="app",
    target_connection="warehouse",
    incremental=True,
    watermark_column="received_at",
    lag=30,  # leave the newest half minute to the next run: slow writers may still commit
    transforms_pre=[filter_where("kind <> 'heartbeat'")],
    schedule="*/5 * * * *",
    retry={"max_attempts": 3, "backoff_seconds": 10, "backoff_factor": 2.0},
)
def events(conn):
    """Events by the time they were received."""
    return "SELECT event_id, kind, payload, received_at FROM public.events"
