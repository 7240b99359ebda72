"""Orders from MySQL or MariaDB into DuckDB, matched by their key."""

from ematix_flow import Annotated, BigInt, Numeric, String, TimestampTZ, ematix, pk


@ematix.connection
class shop:
    kind = "mysql"
    url = "${MYSQL_URL}"


@ematix.connection
class warehouse:
    kind = "duckdb"
    path = "warehouse.duckdb"


@ematix.table(schema="sales")
class Orders:
    order_id: Annotated[BigInt, pk()]
    product: String[100]
    amount: Numeric[12, 2]
    changed_at: TimestampTZ


@ematix.pipeline(
    target=Orders,
    source_connection="shop",
    target_connection="warehouse",
    mode="merge",
    incremental=True,
    watermark_column="changed_at",
    lag=30,  # MySQL does not show its open transactions: leave the newest half minute to the next run
)
def orders():
    """Orders that changed since the last run."""
    return "SELECT order_id, product, amount, changed_at FROM orders"
