"""A load that promises to be at most six hours old."""

from ematix_flow import Annotated, BigInt, ematix, pk


@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"


@ematix.table
class Orders:
    order_id: Annotated[BigInt, pk()]
    amount: BigInt


@ematix.pipeline(target=Orders, target_connection="shop", mode="truncate", freshness_sla="6h")
def orders():
    return "SELECT order_id, amount FROM raw_orders"
