"""From a topic into a table, and from a topic to another topic."""

from ematix_flow import Annotated, BigInt, Numeric, Text, ematix, pk


@ematix.connection
class broker:
    kind = "kafka"
    bootstrap_servers = "${KAFKA_BOOTSTRAP}"
    group_id = "example-orders"


@ematix.connection
class warehouse:
    kind = "sqlite"
    path = "warehouse.db"


@ematix.table
class Orders:
    order_id: Annotated[BigInt, pk()]
    customer: Text
    amount: Numeric[12, 2]


@ematix.streaming_pipeline(
    source=broker,
    source_query="example-orders",
    source_columns=Orders,
    target=Orders,
    target_connection=warehouse,
    mode="merge",  # of several messages with one key the last wins
)
def orders():
    """The newest state of each order."""


@ematix.streaming_pipeline(
    source=broker,
    source_query="example-orders",
    source_columns=Orders,
    transform_sql="SELECT string(order_id) AS order_id, customer, amount FROM source WHERE amount > 20",
    target=broker,
    target_topic="example-large-orders",
    target_message_key_column="order_id",
    delivery="exactly_once",
)
def large_orders():
    """Orders above 20, as messages with the order's id as their key."""
