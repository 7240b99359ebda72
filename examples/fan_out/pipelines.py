"""One read of the source, three targets, each with its own mode."""

from ematix_flow import Annotated, BigInt, Numeric, Target, Text, TimestampTZ, ematix, pk


@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"


@ematix.connection
class warehouse:
    kind = "duckdb"
    path = "warehouse.duckdb"


@ematix.connection
class archive:
    kind = "object_store_local"
    path = "archive"
    format = "parquet"


@ematix.connection
class app:
    kind = "sqlite"
    path = "app.db"


@ematix.table(schema="sales")
class Orders:
    order_id: Annotated[BigInt, pk()]
    product: Text
    amount: Numeric[12, 2]
    ordered_at: TimestampTZ


@ematix.table
class LatestOrders:
    id: Annotated[BigInt, pk()]
    product: Text
    price: Numeric[12, 2]
    ordered_at: TimestampTZ


@ematix.pipeline(
    targets=[
        Target(connection="warehouse", table=Orders, mode="merge"),
        Target(connection="archive", prefix="orders", parquet_compression="zstd"),
        Target(
            connection="app",
            table=LatestOrders,
            mode="merge",
            column_map={"id": "order_id", "price": "amount"},
        ),
    ],
    source_connection="shop",
    incremental=True,
    watermark_column="ordered_at",
    continue_on_target_failure=True,  # one target that is down does not stop the others
)
def orders():
    """New orders, for everyone who needs them."""
    return "SELECT order_id, product, amount, ordered_at FROM orders"
