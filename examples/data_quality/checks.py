"""What must hold for the shop."""

from tables import Customers

from ematix_probe import probe, probe_from_table, source

shop = source.sqlite("shop.db")

# not null, and unique keys: as the table declares them
customers = probe_from_table(
    Customers, source=shop, extend=lambda t: t.column("email").regex(r"^[^@]+@[^@]+$")
)


@probe.data(source=shop, table="orders")
def orders(t):
    """Each order has a customer, and a day has about as many orders as the day before."""
    t.column("order_id").not_null().unique()
    t.column("amount").between(0, 1_000).percentile_between(0.5, 5, 50)
    t.foreign_key("customer_id", references="customers", referenced_columns=["customer_id"])
    t.row_count_change(max_drop=0.2)


@probe.data(source=shop, query="SELECT country, count(*) AS customers FROM customers GROUP BY country")
def countries(t):
    t.column("country").is_in(["DE", "FR", "GB"], severity="warn")
