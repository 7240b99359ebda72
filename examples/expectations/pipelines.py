"""Orders whose rows are checked before they become visible."""

from ematix_flow import Annotated, BigInt, Text, ematix, pk


@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"


@ematix.table
class CleanOrders:
    order_id: Annotated[BigInt, pk()]
    amount: BigInt
    email: Text | None


@ematix.pipeline(target=CleanOrders, target_connection="shop", mode="merge")
@ematix.expect_or_fail("some orders", lambda t: t.row_count(at_least=1))
@ematix.expect_or_drop("amount is positive", "amount > 0")
@ematix.expect("email is an address", lambda t: t.column("email").regex("@"))
def clean_orders():
    """Orders with a positive amount; the others go to clean_orders__quarantine."""
    return "SELECT order_id, amount, email FROM orders"
