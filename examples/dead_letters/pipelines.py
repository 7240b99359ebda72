"""Payments of a topic; what cannot be loaded is put aside."""

from pathlib import Path

from ematix_flow import Annotated, BigInt, Numeric, Text, ematix, pk


@ematix.connection
class broker:
    kind = "kafka"
    bootstrap_servers = "${KAFKA_BOOTSTRAP}"
    group_id = "example-payments"


@ematix.connection
class warehouse:
    kind = "sqlite"
    path = "warehouse.db"


@ematix.table
class Messages:
    payment_id: BigInt
    amount: Text


@ematix.table
class Payments:
    payment_id: Annotated[BigInt, pk()]
    amount: Numeric[12, 2]


@ematix.streaming_pipeline(
    source=broker,
    source_query="example-payments",
    source_columns=Messages,
    transform_sql=Path("transform.sql").read_text(),
    transform_on_error="dlq",
    dead_letter_connection=warehouse,
    target=Payments,
    target_connection=warehouse,
)
def payments():
    """Every payment that can be read."""
