"""A table into files of every format by one read, and back into a count."""

from ematix_flow import (
    Annotated,
    BigInt,
    Numeric,
    ObjectStoreLocalConnection,
    SQLiteConnection,
    Target,
    Text,
    ematix,
    pk,
    register_connection,
)

shop = register_connection(SQLiteConnection(name="shop", path="shop.db"))
FORMATS = ("csv", "json_lines", "parquet", "orc")
files = {
    format: register_connection(
        ObjectStoreLocalConnection(name=format, path=f"files/{format}", format=format)
    )
    for format in FORMATS
}


@ematix.table
class Orders:
    order_id: Annotated[BigInt, pk()]
    product: Text
    amount: Numeric[12, 2]


@ematix.table
class Counts:
    orders: BigInt
    amount: Numeric[18, 2]


@ematix.pipeline(
    targets=[Target(connection=name, table=Orders) for name in FORMATS],
    source_connection="shop",
    mode="truncate",
)
def orders():
    """All orders, written four times from one read."""
    return "SELECT order_id, product, amount FROM raw_orders"


@ematix.table(name="orc_counts")
class OrcCounts(Counts):
    pass


@ematix.pipeline(
    target=Counts, source_connection="parquet", target_connection="shop", mode="truncate", depends_on=[orders]
)
def counts():
    """Read back from Parquet."""
    return "SELECT count(*) AS orders, sum(amount) AS amount FROM orders"


@ematix.pipeline(
    target=OrcCounts, source_connection="orc", target_connection="shop", mode="truncate", depends_on=[orders]
)
def orc_counts():
    """Read back from ORC."""
    return "SELECT count(*) AS orders, sum(amount) AS amount FROM orders"
