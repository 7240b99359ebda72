"""Copies of a table of Postgres, kept up to date by its change events, and its history.

Expects two variables: KAFKA_BOOTSTRAP and WAREHOUSE_URL
"""

from ematix_flow import CDC, Annotated, BigInt, Text, ematix, pk


@ematix.connection
class broker:
    kind = "kafka"
    bootstrap_servers = "${KAFKA_BOOTSTRAP}"
    group_id = "example-changes"


@ematix.connection
class warehouse:
    kind = "postgres"
    url = "${WAREHOUSE_URL}"


@ematix.connection
class lake:
    kind = "delta_local"
    path = "lake"


@ematix.table(schema="mirror")
class Customers:
    id: Annotated[BigInt, pk()]
    email: Text
    city: Text


@ematix.table(schema="mirror")
class CustomerVersions:
    id: Annotated[BigInt, pk()]
    email: Text
    city: Text


CHANGES = {"source": broker, "source_query": "example-changes"}


@ematix.streaming_pipeline(
    **CHANGES, target=Customers, target_connection=warehouse, cdc=CDC(envelope="debezium")
)
def customers():
    """The customers as the source has them."""


@ematix.streaming_pipeline(
    **CHANGES,
    target=lake,
    target_table="customers",
    cdc=CDC(envelope="debezium", delete_mode="soft", soft_delete_column="deleted_at"),
)
def customers_lake():
    """The same in a Delta table, where deleted customers are marked."""


@ematix.streaming_pipeline(
    **CHANGES,
    target=CustomerVersions,
    target_connection=warehouse,
    mode="scd2",
    cdc=CDC(envelope="debezium", schema_evolution="evolve"),
)
def customer_versions():
    """Every state that a customer had. A new column of the source becomes one here."""
