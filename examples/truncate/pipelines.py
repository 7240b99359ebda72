"""A report that each run replaces as a whole."""

from ematix_flow import Annotated, BigInt, Numeric, Text, ematix, pk


@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"


@ematix.table
class RevenueByProduct:
    product: Annotated[Text, pk()]
    orders: BigInt
    revenue: Numeric[12, 2]


@ematix.pipeline(target=RevenueByProduct, target_connection="shop", mode="truncate")
def revenue_by_product():
    """Orders and revenue of each product."""
    return "SELECT product, count(*) AS orders, sum(amount) AS revenue FROM orders GROUP BY product"
