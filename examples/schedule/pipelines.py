"""Two loads every five minutes, and a report after both."""

from ematix_flow import Annotated, BigInt, Text, ematix, pk


@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"


@ematix.table
class Orders:
    order_id: Annotated[BigInt, pk()]
    item_id: BigInt
    amount: BigInt


@ematix.table
class Items:
    item_id: Annotated[BigInt, pk()]
    name: Text


@ematix.table
class Revenue:
    name: Annotated[Text, pk()]
    amount: BigInt


@ematix.pipeline(
    target=Orders,
    target_connection="shop",
    mode="merge",
    schedule="*/5 * * * *",
    retry={"max_attempts": 3, "backoff_seconds": 30, "backoff_factor": 2.0},
)
def orders():
    """Tried three times before its slot is given up."""
    return "SELECT order_id, item_id, amount FROM raw_orders"


@ematix.pipeline(target=Items, target_connection="shop", mode="merge", schedule="*/5 * * * *", catchup="none")
def items():
    """Slots that were missed while the machine was off are left out."""
    return "SELECT item_id, name FROM raw_items"


@ematix.pipeline(
    target=Revenue,
    target_connection="shop",
    mode="truncate",
    schedule="*/5 * * * *",
    depends_on=[orders, items],
)
def revenue():
    """Runs when both have succeeded for the same time."""
    return "SELECT name, sum(amount) AS amount FROM orders JOIN items USING (item_id) GROUP BY name"
