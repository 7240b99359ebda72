"""The tables of the shop, as its pipelines declare them."""

from ematix_flow import Annotated, BigInt, ManagedTable, Text, pk


class Customers(ManagedTable):
    customer_id: Annotated[BigInt, pk()]
    email: Text | None
    country: Text
