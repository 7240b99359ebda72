"""A copy of the customers, matched by their key."""

from ematix_flow import Annotated, BigInt, Text, ematix, pk


@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"


@ematix.table
class CustomerCopy:
    customer_id: Annotated[BigInt, pk()]
    email: Text
    name: Text | None


@ematix.pipeline(target=CustomerCopy, target_connection="shop", mode="merge", handle_deletes="soft")
def customer_copy():
    """Every customer; the whole source, so that deletes are seen."""
    return "SELECT customer_id, email, name FROM customers"
