"""A workflow every night, and another one after it."""

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


@ematix.table
class Published:
    name: Annotated[Text, pk()]
    amount: BigInt


@ematix.pipeline(target=Orders, target_connection="shop", mode="merge")
def orders():
    return "SELECT order_id, item_id, amount FROM raw_orders"


@ematix.pipeline(target=Items, target_connection="shop", mode="merge")
def items():
    return "SELECT item_id, name FROM raw_items"


@ematix.pipeline(target=Revenue, target_connection="shop", mode="truncate", depends_on=[orders, items])
def revenue():
    return "SELECT name, sum(amount) AS amount FROM orders JOIN items USING (item_id) GROUP BY name"


@ematix.pipeline(target=Published, target_connection="shop", mode="truncate")
def published():
    return "SELECT name, amount FROM revenue"


ematix.workflow("nightly", jobs=[orders, items, revenue], schedule="0 2 * * *", timezone="Europe/Berlin")
ematix.workflow("publish", jobs=[published], triggered_by="nightly")
