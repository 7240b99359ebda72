"""Every version of each customer, by the time of its change."""

from ematix_flow import Annotated, BigInt, Text, TimestampTZ, ematix, pk


@ematix.connection
class shop:
    kind = "sqlite"
    path = "shop.db"


@ematix.table
class CustomerHistory:
    customer_id: Annotated[BigInt, pk()]
    email: Text
    changed_at: TimestampTZ


@ematix.pipeline(
    target=CustomerHistory,
    target_connection="shop",
    mode="scd2",
    compare_columns=["email"],
    event_timestamp_column="changed_at",
)
def customer_history():
    """A version opens when the email differs, at changed_at."""
    return "SELECT customer_id, email, changed_at FROM customers"
