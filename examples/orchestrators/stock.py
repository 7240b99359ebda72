"""A load for orchestrators: what is in stock, counted inside one SQLite database, a new count each run."""

from ematix_flow import BigInt, Text, ematix


@ematix.connection
class shop:
    kind = "sqlite"
    path = "${SHOP_DB:-shop.db}"


@ematix.table
class StockLevels:
    sku: Text
    on_hand: BigInt


@ematix.pipeline(target=StockLevels, target_connection="shop", mode="append")
def stock_levels():
    """Every row also says when and by which run it was loaded."""
    return "SELECT sku, sum(quantity) AS on_hand FROM movements GROUP BY sku"
