"""Orders from SQLite into Parquet files of a bucket, and from the bucket into DuckDB."""

from ematix_flow import Annotated, BigInt, Numeric, Text, ematix, pk


@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"


@ematix.connection
class lake:
    kind = "object_store_s3"
    bucket = "${LAKE_BUCKET}"
    endpoint = "${LAKE_ENDPOINT}"
    region = "us-east-1"
    access_key_id = "${LAKE_KEY}"
    secret_access_key = "${LAKE_SECRET}"
    format = "parquet"


@ematix.connection
class warehouse:
    kind = "duckdb"
    path = "warehouse.duckdb"


@ematix.table(schema="sales")
class Orders:
    order_id: Annotated[BigInt, pk()]
    product: Text
    amount: Numeric[12, 2]


@ematix.pipeline(target=Orders, source_connection="shop", target_connection="lake", mode="truncate")
def orders():
    """Into the bucket."""
    return "SELECT order_id, product, amount FROM raw_orders"


@ematix.table(schema="reports")
class Revenue:
    product: Annotated[Text, pk()]
    amount: Numeric[18, 2]


@ematix.pipeline(
    target=Revenue,
    source_connection="lake",
    target_connection="warehouse",
    mode="truncate",
    depends_on=[orders],
)
def revenue():
    """Out of the bucket."""
    return "SELECT product, CAST(sum(amount) AS DECIMAL(18, 2)) AS amount FROM sales.orders GROUP BY product"
