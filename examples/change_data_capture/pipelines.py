"""A copy of a table, kept up to date by its change events."""

from ematix_flow import CDC, Annotated, BigInt, Text, ematix, pk


@ematix.connection
class broker:
    kind = "kafka"
    bootstrap_servers = "${KAFKA_BOOTSTRAP}"
    group_id = "example-changes"


@ematix.connection
class warehouse:
    kind = "sqlite"
    path = "warehouse.db"


@ematix.table
class Customers:
    id: Annotated[BigInt, pk()]
    email: Text
    city: Text


@ematix.streaming_pipeline(
    source=broker,
    source_query="example-changes",
    target=Customers,
    target_connection=warehouse,
    cdc=CDC(envelope="debezium"),
)
def customers():
    """The customers as the source has them."""
