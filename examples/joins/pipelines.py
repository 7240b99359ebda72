"""Joins orders with their payments."""

from ematix_flow import Join, Source, ematix


@ematix.connection
class broker:
    kind = "kafka"
    bootstrap_servers = "${KAFKA_BOOTSTRAP}"


@ematix.connection
class warehouse:
    kind = "sqlite"
    path = "warehouse.db"


@ematix.streaming_pipeline(
    sources=[Source(broker, "example-sold"), Source(broker, "example-paid")],
    target=warehouse,
    target_table="paid_orders",
    join=Join(
        kind="left_outer",  # orders without a payment too
        left_source="example-sold",
        right_source="example-paid",
        left_keys=("order_id",),
        right_keys=("order",),
        event_time_column="at",
        min_delta_ms=0,
        max_delta_ms=600_000,
    ),
)
def paid_orders():
    """Each order with the payments of the next ten minutes."""
