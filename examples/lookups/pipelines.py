"""Adds the customer's tier and the price to each order."""

from ematix_flow import Lookup, ematix


@ematix.connection
class files:
    kind = "object_store_local"
    path = "incoming"
    format = "json_lines"


@ematix.connection
class catalog:
    kind = "object_store_local"
    path = "catalog"
    format = "csv"


@ematix.connection
class crm:
    kind = "sqlite"
    path = "crm.db"


@ematix.connection
class warehouse:
    kind = "sqlite"
    path = "warehouse.db"


@ematix.streaming_pipeline(
    source=files,
    source_query="orders",
    source_options={"settle_seconds": 0},  # files are complete when they appear
    target=warehouse,
    target_table="orders",
    transform_sql="""
        SELECT o.order_id, c.tier, o.quantity * p.price AS amount
        FROM source o
        LEFT JOIN customers c ON c.customer_id = o.customer_id
        JOIN products p ON p.product = o.product
    """,
    lookups={
        "customers": Lookup(crm, query="SELECT customer_id, tier FROM customers", refresh_interval_ms=60_000),
        "products": Lookup(catalog, table="products"),
    },
)
def orders():
    """One row for each order."""
