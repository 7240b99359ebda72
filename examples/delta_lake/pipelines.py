"""Orders from SQLite into a Delta Lake table, merged by their key; the lake's sums back into SQLite."""

from ematix_flow import Annotated, BigInt, Numeric, Text, Timestamp, ematix, pk


@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"


@ematix.connection
class lake:
    kind = "delta_local"
    path = "lake"


@ematix.table(schema="sales")
class Orders:
    order_id: Annotated[BigInt, pk()]
    product: Text
    amount: Numeric[12, 2]
    changed_at: Timestamp


@ematix.table
class Revenue:
    orders: BigInt
    amount: Numeric[18, 2]


@ematix.pipeline(
    target=Orders,
    source_connection="shop",
    target_connection="lake",
    mode="merge",
    incremental=True,
    watermark_column="changed_at",
)
def orders():
    """Orders that changed since the last run: one commit of the lake table."""
    return "SELECT order_id, product, amount, changed_at FROM raw_orders"


@ematix.pipeline(
    target=Revenue, source_connection="lake", target_connection="shop", mode="truncate", depends_on=[orders]
)
def revenue():
    """Read from the lake by Spark."""
    return "SELECT count(*) AS orders, CAST(sum(amount) AS DECIMAL(18, 2)) AS amount FROM sales.orders"
