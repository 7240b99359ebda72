"""A folder of CSV files into DuckDB, cleaned by Spark on the way, then a report inside DuckDB."""

from ematix_flow import Annotated, BigInt, Date, Numeric, String, TimestampTZ, ematix, pk
from ematix_flow.normalize import lower, parse_numeric, parse_timestamp, trim


@ematix.connection
class files:
    kind = "object_store_local"
    path = "data"
    format = "csv"


@ematix.connection
class warehouse:
    kind = "duckdb"
    path = "warehouse.duckdb"


@ematix.table(schema="sales")
class Sales:
    sale_id: Annotated[BigInt, pk()]
    product: Annotated[String[50], trim(), lower()]
    amount: Annotated[Numeric[12, 2], parse_numeric(12, 2, on_failure="error")]
    sold_at: Annotated[TimestampTZ, parse_timestamp()]


@ematix.pipeline(target=Sales, source_connection="files", target_connection="warehouse", mode="truncate")
def sales():
    """Every file below data/sales."""
    return "SELECT sale_id, product, amount, sold_at FROM sales"


@ematix.table(schema="sales")
class DailySales:
    day: Annotated[Date, pk()]
    amount: Numeric[18, 2]


@ematix.pipeline(target=DailySales, target_connection="warehouse", mode="truncate", depends_on=[sales])
def daily_sales():
    """Sales by day, computed inside DuckDB."""
    return "SELECT CAST(sold_at AS DATE) AS day, sum(amount) AS amount FROM sales.sales GROUP BY 1"
