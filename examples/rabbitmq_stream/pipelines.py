"""From a queue into a table."""

from ematix_flow import Annotated, BigInt, Text, ematix, pk


@ematix.connection
class broker:
    kind = "rabbitmq"
    amqp_url = "${RABBITMQ_URL}"


@ematix.connection
class warehouse:
    kind = "sqlite"
    path = "warehouse.db"


@ematix.table
class Signups:
    user_id: Annotated[BigInt, pk()]
    email: Text


@ematix.streaming_pipeline(
    source=broker,
    source_query="example-signups",
    source_columns=Signups,
    target=Signups,
    target_connection=warehouse,
)
def signups():
    """Every sign-up, once."""
